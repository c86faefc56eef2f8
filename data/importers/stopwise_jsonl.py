"""stopwise's own interchange format: one trajectory a JSON line, every field of `Trajectory` (see `data.codec`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stopwise.data.codec import trajectory_from_dict
from stopwise.data.importers.sources import KEEPS_NAN, read_rows
from stopwise.data.importers.toolbox import ImportProblem, Sample
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import Trajectory

PICTURE = (
    '{"id": .., "question_id": .., "question": .., "steps": [{"kind": "search", "queries": [..], "documents": [..]}]}'
)


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    return 1.0 if any({"id", "question_id", "question"} <= row.keys() for row in sample.objects) else 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of a JSON Lines file, streamed; a line that is none is a problem that names the key's path.

    An id names one run: a line whose id came before is a problem, too. Steps have their kinds already; `tools` is
    unused.
    """
    seen: set[int] = set()  # hashes: ids of a large file take much memory

    def row(record: Any, number: int) -> Trajectory | str:
        try:
            run = trajectory_from_dict(record)
        except ValueError as error:
            return str(error)
        if hash(run.id) in seen:
            return (
                f"id: found {run.id!r}, which a run before it has; expected an id of its own for every run; this one "
                "is left out, give it another id if it is another run"
            )
        seen.add(hash(run.id))
        return run

    yield from read_rows(path, row, decoder=KEEPS_NAN)
