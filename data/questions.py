"""One id for each question of an import, so that its runs share a split and no two questions are averaged as one.

A question's id decides its split (`data.splits`) and its cluster in every interval. Logs number their questions as they
like: a row number is another question in the next log, and one question has another id in each tool's log.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stopwise.data.importers.toolbox import first_line, normalise_question, question_id
from stopwise.data.records import LOG_QUESTION_ID, Trajectory

_NUMBER = re.compile(r"[0-9]+")
_COUNTER = re.compile(r"(?:.*:)?[^0-9]{0,12}[0-9]{1,6}", re.DOTALL)  # q1, row-17, mydata:3: counts within one log


@dataclass(slots=True)
class QuestionReport:
    """What was settled; filled while the trajectories stream through. Its memory grows with the questions."""

    numbered: int = 0  # trajectories whose own id was a bare number
    merged: int = 0  # trajectories whose question was known under another id
    parted: int = 0  # trajectories whose counted id belongs to another question
    reworded: dict[str, str] = field(default_factory=dict)  # id with several texts: the second text; the first few
    reworded_count: int = 0  # texts beyond the first of their id
    questions: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able counts."""
        return {
            "numbered": self.numbered,
            "merged": self.merged,
            "parted": self.parted,
            "reworded": self.reworded_count,
            "reworded_examples": self.reworded,
        }


def settle_question_ids(trajectories: Iterable[Trajectory], report: QuestionReport) -> Iterator[Trajectory]:
    """Stream trajectories with question ids that can be trusted in a file of several logs.

    - A bare number becomes ``dataset:number``, or an id made from the text where the dataset is not known.
    - A text that came before keeps the id that it had then: one text, one split.
    - An id that counts (``q1``, ``row-17``) and came before with another text gives way to an id made from the text.
    - Any other id stays with each of its texts, as a question that was put in several ways; the report names them.

    A log's own id stays in ``meta["log_question_id"]`` where another took its place. Settled ids are settled again as
    they are.
    """
    known: dict[int, str] = {}  # hash of a text: its id
    first: dict[str, int] = {}  # id: hash of its first text
    for run in trajectories:
        text = hash(normalise_question(run.question))
        name = known.get(text)
        if name is None:
            name = _own(run)
            report.questions += name not in first
            if first.setdefault(name, text) != text:
                if _COUNTER.fullmatch(name):
                    report.parted += 1
                    name = question_id(run.question)
                    report.questions += name not in first
                    first.setdefault(name, text)
                else:
                    report.reworded_count += 1
                    if len(report.reworded) < 5:
                        report.reworded.setdefault(name, first_line(run.question, 80))
            known[text] = name
        elif (own := _own(run)) != name:
            taken = own in first and _COUNTER.fullmatch(own)
            report.parted += bool(taken)
            report.merged += not taken
        report.numbered += bool(_NUMBER.fullmatch(run.question_id))
        yield run if name == run.question_id else _renamed(run, name)


def _own(run: Trajectory) -> str:
    if not _NUMBER.fullmatch(run.question_id):
        return run.question_id
    return f"{run.dataset}:{run.question_id}" if run.dataset else question_id(run.question)


def _renamed(run: Trajectory, name: str) -> Trajectory:
    return replace(run, question_id=name, meta={LOG_QUESTION_ID: run.question_id, **run.meta})
