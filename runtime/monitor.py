"""The live monitor: what the agent just did in, a decision out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from stopwise.controllers.base import Cost, RunSoFar
from stopwise.controllers.session import ControlSession, Counts
from stopwise.data.errors import UsageError
from stopwise.data.records import Action, Document, Logprobs, Step, StepKind
from stopwise.signals.tracker import SignalRow, SignalTracker

_DOCUMENT_KEYS = tuple(field.name for field in fields(Document))
_DOCUMENT_TYPES = (
    ("text", str, "a text"),
    ("title", str, "a text"),
    ("url", str, "a text"),
    ("score", int | float, "a number"),
    ("rank", int, "a whole number"),
)


@dataclass(frozen=True, slots=True)
class Advice:
    """A decision with the signals that it rests on."""

    action: Action  # to be carried out
    message: str | None  # the reason, for people or as guidance
    probabilities: tuple[float, float, float]  # of continue, intervene, stop
    signals: Mapping[str, float]  # what is there
    nulls: Mapping[str, str]  # signal -> reason for what is not
    proposed: Action  # in monitor mode: what would have been done
    t: int  # number of the search step, from 1
    cost: Cost


class Monitor:
    """Watches one run of an agent; made by `Policy.monitor`. Not for several threads at once."""

    def __init__(self, tracker: SignalTracker, session: ControlSession, *, fail_open: bool, question: str = "") -> None:
        """Put a tracker and a session together; `question` is for controllers that read texts."""
        self._tracker = tracker
        self._question = question
        self._steps: list[Step] = []  # kept for controllers that read texts
        self._session = session
        self._fail_open = fail_open
        self._t = 0
        self.failures: list[str] = []  # of the tracker; the controller's are in `counts`

    @property
    def counts(self) -> Counts:
        """Decisions, interventions, cost and failures so far."""
        return self._session.counts

    def observe(
        self,
        queries: Sequence[str] | str = (),
        documents: Sequence[Document | Mapping[str, Any] | str] = (),
        thought: str | None = None,
        logprobs: Logprobs | Sequence[Sequence[float]] | None = None,
        error: str | None = None,
    ) -> Advice:
        """Tell of a search step and get a decision.

        Args:
            queries: the turn's queries.
            documents: what came back, best first: records, mappings with their fields, or plain texts.
            thought: reasoning before the queries; kept for controllers that read text.
            logprobs: of the thought: for each position its top-k natural-log probabilities.
            error: what the search tool said instead of documents.

        Raises:
            UsageError: an argument is not what it should be.
        """
        words = (queries,) if isinstance(queries, str) else _sequence("queries", queries)
        for number, query in enumerate(words):
            if not isinstance(query, str):
                raise UsageError(f"queries[{number}]: {type(query).__name__}; expected a text")
        for name, text in (("thought", thought), ("error", error)):
            if text is not None and not isinstance(text, str):
                raise UsageError(f"{name}: {type(text).__name__}; expected a text")
        top = logprobs if isinstance(logprobs, Logprobs) or logprobs is None else _top(logprobs)
        step = Step("search", thought, words, as_documents(documents), error, top)
        advice = self.observe_step(step)
        assert advice is not None
        return advice

    def opened(self, documents: Sequence[Document | Mapping[str, Any] | str], kind: StepKind = "open") -> None:
        """Tell of pages that the agent opened: they count as seen from the next search step on.

        Raises:
            UsageError: an argument is not what it should be.
        """
        if kind == "search":
            raise UsageError("opened: kind 'search'; a search step brings a decision: call observe()")
        self.observe_step(Step(kind, documents=as_documents(documents)))

    def observe_step(self, step: Step) -> Advice | None:
        """Take in a recorded step; returns a decision if it is a search step, else None."""
        self._t += step.kind == "search"
        reads_text = self._session.controller.reads_text
        if reads_text:
            self._steps.append(step)
        try:
            row = self._tracker.observe(step)
        except Exception as failure:
            if not self._fail_open:
                raise
            # the agent must not break because a signal did: no values, the guards still hold
            self.failures.append(f"{type(failure).__name__}: {failure}")
            row = SignalRow(self._t, {}, {}) if step.kind == "search" else None
        if row is None:
            return None
        run = RunSoFar(self._question, tuple(self._steps)) if reads_text else None
        decision = self._session.decide(row, run=run)
        return Advice(
            action=decision.action,
            message=decision.message,
            probabilities=decision.probabilities,
            signals=row.values,
            nulls=row.nulls,
            proposed=decision.action if decision.proposed is None else decision.proposed,
            t=row.t,
            cost=decision.cost,
        )


def as_documents(documents: Sequence[Document | Mapping[str, Any] | str]) -> tuple[Document, ...]:
    """Documents of records, of mappings with a record's fields, or of plain texts.

    A text, or a mapping without ``id``, is named by its url, else its content.

    Raises:
        UsageError: a mapping has an unknown key, or something else was given.
    """
    from stopwise.data.importers.toolbox import document_id

    made = []
    for number, document in enumerate(_sequence("documents", documents)):
        if isinstance(document, Document):
            made.append(document)
            continue
        if isinstance(document, str):
            document = {"text": document}
        if not isinstance(document, Mapping):
            raise UsageError(
                f"documents[{number}]: {type(document).__name__}; expected a text, a mapping or a Document"
            )
        unknown = [key for key in document if key not in _DOCUMENT_KEYS]
        if unknown:
            raise UsageError(f"documents[{number}]: key {unknown[0]!r}; expected some of {', '.join(_DOCUMENT_KEYS)}")
        for key, kinds, expected in _DOCUMENT_TYPES:
            if document.get(key) is not None and not isinstance(document[key], kinds):
                found = type(document[key]).__name__
                raise UsageError(f"documents[{number}]: {key} is {found}; expected {expected}")
        known: dict[str, Any] = dict(document)
        name = document_id(known.pop("id", None), known.get("url"), known.get("title"), known.get("text"))
        if name is None:
            raise UsageError(f"documents[{number}]: has neither id, url, title nor text; expected one of them")
        made.append(Document(id=name, **known))
    return tuple(made)


def _sequence(name: str, value: Any) -> tuple[Any, ...]:
    """A list's items; a single text or mapping in its place would be taken apart into letters or keys."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{name}: {type(value).__name__}; expected a list")
    return tuple(value)


def _top(logprobs: Sequence[Sequence[float]]) -> Logprobs:
    try:
        return Logprobs(top=tuple(tuple(float(value) for value in position) for position in logprobs))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"logprobs: {error}; expected for each position a sequence of its top-k log-probabilities"
        ) from error
