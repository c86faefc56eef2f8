"""The page that users follow is executed: its own-format example, its importer, and its table of formats."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from stopwise.data.codec import trajectory_from_dict
from stopwise.data.importers import FORMATS
from stopwise.data.importers.detect import take_sample
from stopwise.data.importers.toolbox import ImportProblem

PAGE = (Path(__file__).parents[3] / "docs" / "bring_your_own_logs.md").read_text(encoding="utf-8")


def _block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[-1]


def test_the_table_names_every_format():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(FORMATS)


def test_the_example_of_our_own_format_is_right():
    run = trajectory_from_dict(json.loads(_block("json")))
    assert [step.kind for step in run.steps] == ["search", "answer"]


@pytest.fixture
def tea_importer():
    names: dict[str, object] = {}
    exec(compile(_block("python"), "bring_your_own_logs.md", "exec"), names)
    return SimpleNamespace(**names)


def test_the_importer_in_30_lines_works(tea_importer, tmp_path):
    assert len(_block("python").split("PICTURE")[1].splitlines()) <= 30
    path = tmp_path / "log"
    entry = {"tool": "web_search", "q": "Ada", "hits": [{"url": "http://a.org", "text": "Born in Lenn."}]}
    path.write_text(json.dumps({"asked": "Where?", "log": [entry], "final": "Lenn"}) + "\n{}\n")
    assert tea_importer.evidence(take_sample(path)) == 1.0
    run, problem = tea_importer.read(path)
    assert [(step.kind, step.queries) for step in run.steps] == [("search", ("Ada",)), ("answer", ("Lenn",))]
    assert [document.id for document in run.steps[0].documents] == ["url:a.org"]
    assert problem == ImportProblem(str(path), "line 2", "asked: found no question")
