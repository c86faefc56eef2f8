"""The two thresholds of a network's policy, chosen by the exact expected return on validation runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.data.records import Action
from stopwise.envs.lattice import by_thresholds, mean_expected, question_weights
from stopwise.train.lm.episodes import LmEpisode
from stopwise.train.tune import Objective

Floats = NDArray[np.float64]

STOPS, NUDGES = 60, 8  # candidates of each threshold
NEVER = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What was chosen, and what it gives on the runs it was chosen on, each question counting once."""

    threshold: float
    intervene_threshold: float
    value: float  # expected return
    recall: float
    searches: float
    interventions: float


def choose_thresholds(
    episodes: Sequence[LmEpisode], policies: Sequence[Floats], full_recall: float, objective: Objective
) -> Thresholds:
    """The pair of thresholds that is best over the episodes.

    Args:
        episodes: validation runs.
        policies: for each (T, M + 1, C + 1, 3) after the masks.
        full_recall: of the runs as they are.
        objective: what is best.

    Raises:
        UsageError: no pair keeps the recall that the objective asks for.
    """
    codes = {question: number for number, question in enumerate(dict.fromkeys(e.question for e in episodes))}
    weights = question_weights(np.array([codes[episode.question] for episode in episodes]))
    rows = np.concatenate([policy.reshape(-1, 3) for policy in policies])
    legal = np.concatenate([episode.lattice.legal.reshape(-1, 3) for episode in episodes])
    stops = _candidates(rows[legal[:, Action.STOP], Action.STOP], STOPS)
    may_nudge = rows[legal[:, Action.INTERVENE]]
    going_on = may_nudge[:, Action.CONTINUE] + may_nudge[:, Action.INTERVENE]
    shares = may_nudge[going_on > 0, Action.INTERVENE] / going_on[going_on > 0]
    nudges = _candidates(shares, NUDGES)
    # the mildest first: of equals the first is taken
    pairs = np.array([(stop, nudge) for stop in stops for nudge in nudges])
    made = [
        by_thresholds(p, e.lattice.legal, pairs[:, 0], pairs[:, 1]) for p, e in zip(policies, episodes, strict=True)
    ]
    found = mean_expected([episode.lattice for episode in episodes], made, weights)
    best = objective.best(found.value, found.recall, found.searches, full_recall)
    stop, nudge = (float(value) for value in pairs[best])
    figures = (found.value, found.recall, found.searches, found.interventions)
    return Thresholds(stop, nudge, *(float(figure[best]) for figure in figures))


def _candidates(values: Floats, count: int) -> list[float]:
    """Never first, then thresholds halfway between values that occur, falling, spread over their quantiles."""
    levels = np.unique(np.round(values, 9))
    if not len(levels):
        return [NEVER]
    between = np.concatenate([[0.0], (levels[:-1] + levels[1:]) / 2])
    if len(between) > count:
        spread = np.quantile(np.round(values, 9), np.linspace(0, 1, count))
        between = np.unique(between[np.minimum(np.searchsorted(between, spread), len(between) - 1)])
    return [NEVER, *[float(value) for value in between][::-1]]
