"""The records that everything else is built on: what a deep-search agent did, step by step.

A field that a log does not hold is ``None``, never zero or an empty text: *null is not zero*.
Sequences are tuples, so that records are immutable, comparable and hashable by content.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, get_args

StepKind = Literal["search", "open", "answer", "other"]
EndedBy = Literal["answer", "budget", "error", "unknown"]

STEP_KINDS: tuple[str, ...] = get_args(StepKind)
ENDED_BY: tuple[str, ...] = get_args(EndedBy)

LOG_QUESTION_ID = "log_question_id"  # key of `Trajectory.meta`: the log's own question id, where another took its place


class Action(IntEnum):
    """What a controller tells the agent after a search step; the order is that of ``ReplayEnv``'s ``Discrete(3)``."""

    CONTINUE = 0  # go on as you were
    INTERVENE = 1  # change course: a rethinker's turn is injected
    STOP = 2  # answer now from what you have


@dataclass(frozen=True, slots=True)
class Document:
    """One retrieved document or passage."""

    id: str  # stable identifier; the log's own, else made from url, title or text (see importers.toolbox)
    text: str | None = None  # passage text; None where a log holds only ids
    title: str | None = None
    url: str | None = None
    score: float | None = None  # retrieval score, higher is better; scale is the retriever's
    rank: int | None = None  # position in its result list, 1 is the best


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Token uncertainty of one step's reasoning, ragged: one entry for each generated position.

    Exactly one of ``top`` and ``entropies`` is set.
    """

    top: tuple[tuple[float, ...], ...] | None = None  # per position: natural-log probabilities of its top-k tokens
    entropies: tuple[float, ...] | None = None  # per position: entropy in nats, already computed
    source: str = "logged"  # "logged", or "scored:<model>" when another model scored the logged text

    def __post_init__(self) -> None:
        if (self.top is None) == (self.entropies is None):
            raise ValueError("Logprobs needs either `top` or `entropies`, and not both")


@dataclass(frozen=True, slots=True)
class AnswerProbe:
    """The answer that the agent itself gave on a side branch after a step ([RAAC] 3.2); the run did not see it."""

    answer: str | None  # None means "no candidate"
    correct: bool | None = None  # judged against the reference; None when nobody judged it


@dataclass(frozen=True, slots=True)
class Criterion:
    """One piece of information that the question asks for ([RAAC] 4.1)."""

    text: str
    gold_ids: tuple[str, ...] | None = None  # documents that fully cover it; known in generated and composed data only


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the agent: a thought, then an action, then what came back."""

    kind: StepKind  # a "search" step is a decision point; other kinds add their documents and cost to the next one
    thought: str | None = None  # reasoning written *before* this step's queries
    queries: tuple[str, ...] = ()  # search queries of this turn, or what was opened, or the text of the answer
    documents: tuple[Document, ...] = ()  # what came back, in result order; empty when nothing or an error came back
    error: str | None = None  # tool error, "no results", refusal; such a step has no documents
    logprobs: Logprobs | None = None  # of the thought's tokens
    answer_probe: AnswerProbe | None = None
    logged_action: Action | None = None  # what a controller did after this step, if one was running
    propensity: float | None = None  # probability with which that controller chose it, in (0, 1]
    tokens_in: int | None = None  # prompt tokens of this turn
    tokens_out: int | None = None  # generated tokens of this turn
    seconds: float | None = None  # wall-clock time of this turn
    guidance: str | None = None  # with an intervention: what that controller suggested to the agent

    def __post_init__(self) -> None:
        if self.kind not in STEP_KINDS:
            raise ValueError(f"step kind {self.kind!r} is not one of {', '.join(STEP_KINDS)}")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run of one agent on one question."""

    id: str  # unique within a file
    question_id: str  # runs of one question share it; splits and intervals go by it
    question: str
    steps: tuple[Step, ...] = ()
    criteria: tuple[Criterion, ...] | None = None
    answer: str | None = None  # the agent's own final answer
    correct: bool | None = None  # judged; None when nobody judged it or the judge did not know
    gold_ids: tuple[str, ...] | None = None  # ids of the relevant documents; None when no gold is known
    agent: str | None = None
    dataset: str | None = None
    ended_by: EndedBy = "unknown"  # "answer": its own answer; "budget": cut or forced; "error": crashed
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)  # JSON values only; "reference_answer" if known

    def __post_init__(self) -> None:
        if self.ended_by not in ENDED_BY:
            raise ValueError(f"ended_by {self.ended_by!r} is not one of {', '.join(ENDED_BY)}")

    @property
    def search_steps(self) -> tuple[Step, ...]:
        """The decision points, in order."""
        return tuple(step for step in self.steps if step.kind == "search")

    @property
    def outcome(self) -> Literal["correct", "incorrect", "halted", "unknown"]:
        """How the run ended; *halted* means without an answer of its own, whatever ``correct`` says."""
        if self.ended_by in ("budget", "error"):
            return "halted"
        if self.correct is None:
            return "unknown"
        return "correct" if self.correct else "incorrect"
