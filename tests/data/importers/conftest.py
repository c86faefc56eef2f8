import json
from pathlib import Path

import pytest

from stopwise.data.importers import importer
from stopwise.data.importers.detect import sniff
from stopwise.data.importers.toolbox import ImportProblem
from stopwise.data.importers.tools import TOOLS
from stopwise.data.records import Trajectory


@pytest.fixture
def read_as(tmp_path):
    """Write content (text, or one JSON value a line where several are given) and read it as a format."""

    def read(format: str, *content, tools=TOOLS, detect: bool = True) -> list[Trajectory]:
        path = tmp_path / f"{format}.log"
        if len(content) == 1 and isinstance(content[0], str):
            path.write_text(content[0], encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(value) + "\n" for value in content), encoding="utf-8")
        if detect:
            assert sniff(path).format == format
        return list(importer(format).read(Path(path), tools))  # pyright: ignore[reportReturnType]

    return read


@pytest.fixture
def problems_as(read_as):
    """As `read_as`, giving only problems, each as "where: reason"."""

    def read(format: str, *content) -> list[str]:
        found = read_as(format, *content, detect=False)
        return [f"{item.where}: {item.reason}" for item in found if isinstance(item, ImportProblem)]

    return read
