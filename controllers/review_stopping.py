"""Stopping rules of technology-assisted review, on what a search agent knows: knee, target, chao1.

A review ranks a collection, and people judge its documents, so the rules count *relevant* ones. A search agent gets no
judgments, and gold is not for its eyes. What takes their place here:

- `knee` and `chao1`: a document that the run had not seen before. It is all that is certain about a result while the
  agent runs. These rules therefore tell when the agent's queries have exhausted what *they* reach, not when the
  question is answered: an agent that drifts off finds new documents for ever, and is never stopped.
- `target`: a criterion of the question. The target set of a review is relevant documents that were found independently
  of the ranking; the criteria are known before the first search, independently of it. Whether one is covered is the
  judgment of Cov, which is not that of a person, and a handful of criteria carries none of the guarantee that ten
  randomly drawn documents do.

Sources: Cormack and Grossman, *Engineering Quality and Reliability in Technology-Assisted Review*, SIGIR 2016, for the
knee and the target method; Satopaa et al., *Finding a "Kneedle" in a Haystack*, ICDCS workshops 2011, for the knee;
Chao, *Nonparametric Estimation of the Number of Classes in a Population*, Scandinavian Journal of Statistics 11
(1984), and, for its use as a stopping rule, Bron et al., *Using Chao's Estimator as a Stopping Criterion for
Technology-Assisted Review*, arXiv 2404.01176.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stopwise.controllers.base import Controller, Distribution, Observation, certain, check_number
from stopwise.data.records import Action, Step


def knee(gains: Sequence[float]) -> int:
    """The knee of a gain curve: where it lies farthest above the line from its origin to its end.

    Args:
        gains: what had been found after each batch, not falling, the curve beginning at 0; at least one.

    Returns:
        The number of batches up to the knee, from 1; the first of equals.
    """
    last = len(gains)
    # the perpendicular distance to the line is the vertical one times a constant
    above = [gain - gains[-1] * batch / last for batch, gain in enumerate(gains, start=1)]
    return 1 + max(range(last), key=lambda position: (round(above[position], 9), -position))


def slope_ratio(gains: Sequence[float], batch_size: float) -> float:
    """The slope of a gain curve before its knee over that behind it (Cormack and Grossman 2016, the knee method).

    With s documents reviewed, i of them up to the knee: (found(i) / i) / ((1 + found(s) - found(i)) / (s - i)); the 1
    keeps it finite. 0 when the curve ends at its knee.

    Args:
        gains: documents found after each batch, at least one.
        batch_size: documents of a batch.
    """
    at = knee(gains)
    behind = len(gains) - at
    if behind == 0:
        return 0.0
    before = gains[at - 1] / (at * batch_size)
    return before / ((1 + gains[-1] - gains[at - 1]) / (behind * batch_size))


def chao1(counts: Sequence[int]) -> float:
    """Estimate, from below, of how many classes there are in all (Chao 1984; the bias-corrected form).

    D + f1 (f1 - 1) / (2 (f2 + 1)), with f1 classes seen once and f2 seen twice. Its first form, D + f1^2 / (2 f2), has
    no value where nothing was seen twice.

    Args:
        counts: how often each of the D classes was seen, at least once each.
    """
    once, twice = sum(count == 1 for count in counts), sum(count == 2 for count in counts)
    return len(counts) + once * (once - 1) / (2 * (twice + 1))


class Knee(Controller):
    """Stop when the curve of new documents over results bends: its slope ratio reaches a bound."""

    kind: ClassVar[str] = "knee"
    needs = ("Nov",)

    def __init__(self, bound: float = 6.0, list_size: int = 5, min_searches: int = 4) -> None:
        """Set the rule.

        Args:
            bound: slope ratio from which it stops. The paper's is 6 where 150 or more are found, and
                156 - found below that, which no run of some tens of documents reaches: tune it on validation questions.
            list_size: documents of a result list: signals hold the share of new ones.
            min_searches: no stop before: the paper does not look at a curve of fewer than 1,000 documents either.

        Raises:
            UsageError: a value is not allowed.
        """
        check_number("knee: bound", bound, low=0)
        check_number("knee: list_size", list_size, low=1, whole=True)
        check_number("knee: min_searches", min_searches, low=1, whole=True)
        self.bound, self.list_size, self.min_searches = bound, list_size, min_searches
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """See `Controller.reset`."""
        super().reset(seed)
        self._gains: list[float] = []

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`; after a step of which nothing is known it goes on."""
        row = observation.row
        empty = row.nulls.get("Nov") == "no documents"  # a search that found nothing found nothing new
        share = 0.0 if empty else row.values.get("Nov")
        before = self._gains[-1] if self._gains else 0.0
        self._gains.append(before + self.list_size * (share or 0.0))
        if share is None or len(self._gains) < self.min_searches:
            return certain(Action.CONTINUE), None
        ratio = slope_ratio(self._gains, self.list_size)
        if ratio < self.bound:
            return certain(Action.CONTINUE), None
        at = knee(self._gains)
        return certain(Action.STOP), f"knee after {at} searches: new documents come {ratio:.1f} times as slowly since"

    @property
    def params(self) -> Mapping[str, Any]:
        """The bound, the list size and the first search at which it may stop."""
        return {"bound": self.bound, "list_size": self.list_size, "min_searches": self.min_searches}


class Target(Controller):
    """Stop when a share of the targets, which are the question's criteria, is covered."""

    kind: ClassVar[str] = "target"
    needs = ("Cov",)

    def __init__(self, share: float = 1.0) -> None:
        """Set the rule.

        Args:
            share: Cov from which it stops. The paper waits for all targets; a judge that is never sure of one needs
                less: tune it on validation questions.

        Raises:
            UsageError: it is no share above 0.
        """
        check_number("target: share", share, low=1e-9, high=1)
        self.share = share

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`; without a judgment it goes on."""
        covered = observation.row.values.get("Cov")
        if covered is None or covered < self.share - 1e-9:
            return certain(Action.CONTINUE), None
        return certain(Action.STOP), f"{covered:.0%} of the criteria are covered"

    @property
    def params(self) -> Mapping[str, Any]:
        """The share."""
        return {"share": self.share}


class Chao1(Controller):
    """Stop when the documents seen are most of those that the agent's queries seem to reach.

    Each result is a draw, each document a class. A document counts once a search. It reads the documents' ids, which
    signal tables do not hold.
    """

    kind: ClassVar[str] = "chao1"
    reads_text = True

    def __init__(self, share: float = 0.9, min_searches: int = 4) -> None:
        """Set the rule.

        Args:
            share: documents seen over the estimated number, from which it stops.
            min_searches: no stop before: the estimate needs repetitions.

        Raises:
            UsageError: a value is not allowed.
        """
        check_number("chao1: share", share, low=0, high=1)
        check_number("chao1: min_searches", min_searches, low=1, whole=True)
        self.share, self.min_searches = share, min_searches

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`; without the run's documents it goes on."""
        if observation.run is None or observation.row.t < self.min_searches:
            return certain(Action.CONTINUE), None
        counts = times_seen(observation.run.steps)
        if not counts:
            return certain(Action.CONTINUE), None
        estimate = chao1(counts)
        if len(counts) < self.share * estimate - 1e-9:
            return certain(Action.CONTINUE), None
        return certain(Action.STOP), f"{len(counts)} documents seen of an estimated {estimate:.0f} within reach"

    @property
    def params(self) -> Mapping[str, Any]:
        """The share and the first search at which it may stop."""
        return {"share": self.share, "min_searches": self.min_searches}


def times_seen(steps: Sequence[Step]) -> list[int]:
    """In how many searches each document of a run came up."""
    seen: Counter[str] = Counter()
    for step in steps:
        if step.kind == "search":
            seen.update({document.id for document in step.documents})
    return list(seen.values())
