"""What an experience memory holds and gives back ([DS-MCM] 3.3.1, eq. 11, and 3.3.2, eq. 16)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from stopwise.data.errors import UsageError

Label = Literal["success", "failure"]
Source = Literal["offline", "online"]

LABELS: tuple[Label, ...] = get_args(Label)  # M+ holds the successes, M- the failures (eq. 12)


@dataclass(frozen=True, slots=True)
class Entry:
    """One session of a past run, m = (s, h, z, y) of eq. 11."""

    session: str  # s: the step as structured text, by `sessions.session_text`
    history: str  # h: summary of the sessions before it, by `sessions.history_summary`; empty at a first step
    abstraction: str  # z: what was done well, or what went wrong and what would be better, by label
    label: Label  # y: of the whole run offline (eq. 10), by the monitors online (eq. 19)
    question_id: str  # no question of an evaluation may be in a memory: see `ExperienceMemory.check_disjoint`
    question: str | None = None  # its text, which tells equal questions under several ids
    agent: str | None = None
    dataset: str | None = None
    source: Source = "offline"  # built from logs, or added while an agent ran
    abstraction_by: str = "extractive"  # "extractive@1", or the model and the prompt's version

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise UsageError(f"memory entry: label {self.label!r}; expected one of {', '.join(LABELS)}")
        if not self.session.strip():
            raise UsageError("memory entry: the session is empty; expected the text of a step")


@dataclass(frozen=True, slots=True)
class Recalled:
    """The most similar entries of both pools, R+ and R- of eq. 16, the most similar first."""

    successes: Sequence[Entry]
    failures: Sequence[Entry]
    success_similarities: Sequence[float] = ()  # cosines, one an entry
    failure_similarities: Sequence[float] = ()


class Recall(Protocol):
    """What the slow monitor needs of a memory."""

    def nearest(self, session: str, history: str, k: int) -> Recalled:
        """The `k` most similar entries of each pool."""
        ...

    def add(self, entry: Entry) -> bool:
        """Keep an entry, unless it is a near duplicate; returns whether it was kept."""
        ...


def online_label(flagged: bool, error_found: bool | None) -> Label | None:
    """The label of a session while its run's outcome is unknown ([DS-MCM] eq. 19).

    The paper leaves the rule open. Here: what the fast monitor let pass, or the critic cleared, is a success; where the
    critic found an error, a failure; a flagged session without a verdict gets no label and is not stored.
    """
    if not flagged or error_found is False:
        return "success"
    return "failure" if error_found else None
