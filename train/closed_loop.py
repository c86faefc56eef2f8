"""Thresholds chosen where intervening is real: in the arena, on validation questions.

A replay knows interventions through a model that was fitted on logs, and where that model thinks little of them, the
thresholds that look best there leave them out. Here a trained policy keeps its weights, and its two thresholds are
tried in whole runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import SmallLM
from stopwise.controllers.session import ControlSession
from stopwise.controllers.thresholded import Thresholded, intervene_share
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]
Pair = tuple[float, float]  # thresholds of stop and of intervene


@dataclass(frozen=True, slots=True)
class Worth:
    """What whole runs came to at a pair of thresholds, each question counting once."""

    value: float  # return
    recall: float
    searches: float
    interventions: float


@dataclass(frozen=True, slots=True)
class Tried:
    """A pair and what it came to."""

    threshold: float
    intervene_threshold: float
    worth: Worth


def two_thresholds(controller: Controller) -> Pair:
    """The pair that a policy acts by.

    Raises:
        UsageError: it has none, or one alone, or sees what a live agent does not.
    """
    if not isinstance(controller, Thresholded | SmallLM) or controller.intervene_threshold is None:
        raise UsageError(
            f"policy: this {controller.kind} has no threshold of intervene to tune; train logistic, boosted or lm with "
            "`intervention: uplift` and `uplift: RUN`, a run of configs/uplift.yaml"
        )
    if controller.privileged:
        raise UsageError(f"policy: {controller.kind} needs hindsight, which only a replayed log has")
    return controller.threshold, controller.intervene_threshold


def with_thresholds(controller: Controller, pair: Pair) -> Controller:
    """The same policy with another pair."""
    other = controller.copy()
    assert isinstance(other, Thresholded | SmallLM)
    other.threshold, other.intervene_threshold = pair
    return other


def levels(
    controller: Controller, table: SignalTable, stop: Sequence[float], intervene: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Candidates of both thresholds: quantiles of what a policy says at the rows of logged runs that it only watches.

    Args:
        controller: with two thresholds.
        table: of validation runs.
        stop: quantiles of the probability of stop, from 0 to 1.
        intervene: quantiles of the share of intervene in what is not stopped.

    Returns:
        Rising candidates of stop, and of intervene, equal ones once.

    Raises:
        DataError: the table lacks a signal that the policy needs.
    """
    session = ControlSession(controller, Guards(max_interventions=1), mode="monitor")
    rows = []
    for start, end in zip(table.offsets[:-1], table.offsets[1:], strict=True):
        session.begin()
        session.foresee(table.row(number) for number in range(start, end))
        rows += [session.decide(table.row(number)).probabilities for number in range(start, end)]
    found = np.array(rows, dtype=np.float64)
    shares = intervene_share(found)

    def at(values: Floats, quantiles: Sequence[float]) -> list[float]:
        return [float(value) for value in np.unique(np.quantile(values, list(quantiles)))]

    return at(found[:, Action.STOP], stop), at(shares, intervene)


def search_pairs(
    start: Pair, stops: Sequence[float], nudges: Sequence[float], worth: Callable[[Pair], Worth]
) -> list[Tried]:
    """Try one threshold after the other until neither sweep finds a better pair; a pair is tried once.

    Args:
        start: the pair to begin with.
        stops: candidates of the first threshold.
        nudges: candidates of the second.
        worth: runs a pair.

    Returns:
        All pairs in the order of being tried; `best_of` takes one.
    """
    tried: list[Tried] = []

    def run(pair: Pair) -> None:
        if all((row.threshold, row.intervene_threshold) != pair for row in tried):
            tried.append(Tried(*pair, worth(pair)))

    run(start)
    while True:
        before = best_of(tried)
        stay = before.intervene_threshold
        for level in stops:
            run((level, stay))
        stay = best_of(tried).threshold
        for level in nudges:
            run((stay, level))
        if best_of(tried) is before:
            return tried


def best_of(tried: Sequence[Tried]) -> Tried:
    """The pair with the highest return; of equals the one that was tried first."""
    return max(tried, key=lambda row: round(row.worth.value, 12))
