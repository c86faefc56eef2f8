"""What evaluation and training may know and a controller never sees: recall, new-item recall, document types."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from stopwise.data.records import Document, Step, Trajectory


@dataclass(frozen=True, slots=True)
class StepLabels:
    """Labels of one search step; NaN where the gold or the probe is unknown."""

    recall: float  # R_t: share of the gold documents seen up to and with this step ([RAAC] 3.2)
    nir: float  # NiR_t = |(D_t and G) not in D_1:t-1| / |G| ([RAAC] 4.3)
    relevant_new: float  # documents of this step by type ([RAAC] 3.2), counts; NaN without gold
    relevant_seen: float
    irrelevant_new: float
    irrelevant_seen: float
    documents_seen: float  # N so far, opened pages included
    probe_correct: float  # 1 or 0: the agent's own answer on a branch after this step; NaN where not probed or judged
    answer_visible: float  # 1 or 0: the reference answer stands in a text seen so far; NaN without either
    pages_opened: float  # other steps since the last search step; their cost belongs to this interval
    tokens: float  # in and out, since the last search step and with this one; NaN where a part is unknown
    seconds: float  # likewise
    logged_action: float  # 0 continue, 1 intervene, 2 stop: what a controller did after this step; NaN without one
    propensity: float  # probability with which it did; NaN where unknown


LABELS: tuple[str, ...] = tuple(field.name for field in fields(StepLabels))


@dataclass(frozen=True, slots=True)
class FinalLabels:
    """Where the logged run ended: what pages opened after the last search step brought is in here."""

    recall: float  # NaN without gold
    documents_seen: float
    relevant_seen: float  # gold documents seen; NaN without gold
    answer_visible: float


class LabelTracker:
    """Follows one logged run beside the signal tracker, with the gold in hand."""

    def __init__(self, gold_ids: Iterable[str] | None, reference_answer: str | None = None) -> None:
        """Start a run; without gold (None or empty) every recall is NaN."""
        self._gold = frozenset(gold_ids or ())
        self._answer = _plain(reference_answer or "")
        self._seen: set[str] = set()
        self._found = False  # the answer, in a text
        self._texts = False  # some document seen had a text
        self._opened: list[Document] = []
        self._others: list[Step] = []

    def observe(self, step: Step) -> StepLabels | None:
        """Take in the next step; returns labels if it is a search step, else None."""
        if step.kind != "search":
            self._others.append(step)
            self._opened.extend(step.documents)
            return None
        interval, self._others = [*self._others, step], []
        self._take_in(self._opened)
        self._opened = []
        found = {document.id for document in step.documents}
        new = found - self._seen
        self._take_in(step.documents)
        gold = self._gold
        known = bool(gold)
        return StepLabels(
            recall=self._recall(),
            nir=len(new & gold) / len(gold) if known else math.nan,
            relevant_new=float(len(new & gold)) if known else math.nan,
            relevant_seen=float(len((found - new) & gold)) if known else math.nan,
            irrelevant_new=float(len(new - gold)) if known else math.nan,
            irrelevant_seen=float(len(found - new - gold)) if known else math.nan,
            documents_seen=float(len(self._seen)),
            probe_correct=_probe(step),
            answer_visible=self._visible(),
            pages_opened=float(len(interval) - 1),
            tokens=_total([count for s in interval for count in (s.tokens_in, s.tokens_out)]),
            seconds=_total([s.seconds for s in interval]),
            logged_action=math.nan if step.logged_action is None else float(step.logged_action),
            propensity=math.nan if step.propensity is None else step.propensity,
        )

    def finish(self) -> FinalLabels:
        """The state after the run's last step."""
        self._take_in(self._opened)
        self._opened = []
        relevant = float(len(self._seen & self._gold)) if self._gold else math.nan
        return FinalLabels(self._recall(), float(len(self._seen)), relevant, self._visible())

    def _take_in(self, documents: Iterable[Document]) -> None:
        for document in documents:
            self._seen.add(document.id)
            if self._answer and not self._found:
                text = _plain(f"{document.title or ''} {document.text or ''}")
                self._texts = self._texts or bool(text)
                self._found = self._answer in text

    def _visible(self) -> float:
        if not self._answer or (self._seen and not self._texts):
            return math.nan
        return float(self._found)

    def _recall(self) -> float:
        return len(self._seen & self._gold) / len(self._gold) if self._gold else math.nan


def label_tracker(trajectory: Trajectory) -> LabelTracker:
    """A tracker with the trajectory's own gold and reference answer."""
    reference = trajectory.meta.get("reference_answer")
    return LabelTracker(trajectory.gold_ids, reference if isinstance(reference, str) else None)


def _probe(step: Step) -> float:
    probe = step.answer_probe
    if probe is None:
        return math.nan
    if probe.answer is None:  # "no candidate" is a wrong answer if the run had to stop here
        return 0.0
    return math.nan if probe.correct is None else float(probe.correct)


def _total(parts: list[float | None] | list[int | None]) -> float:
    return math.nan if any(part is None for part in parts) else float(sum(part for part in parts if part is not None))


def _plain(text: str) -> str:
    """Lower-case words between single spaces, one at either end; empty without a word."""
    words = "".join(c if c.isalnum() else " " for c in text.casefold()).split()
    return f" {' '.join(words)} " if words else ""
