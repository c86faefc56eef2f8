"""Choosing by validation: a stop threshold, or the parameters of a rule."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import make_rule
from stopwise.data.errors import UsageError
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward, run_values
from stopwise.evaluation.benchmark import summarise
from stopwise.evaluation.rollout import rollout
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Objective:
    """What "best on validation" means: the highest return, or the fewest searches at a bounded loss of recall."""

    max_recall_loss: float | None = None  # None: the return decides

    def best(self, returns: Floats, recalls: Floats, searches: Floats, full_recall: float) -> int:
        """Index of the best candidate; of equals the first, so list the mildest first."""
        if self.max_recall_loss is None:
            return int(np.argmax(np.round(returns, 12)))
        allowed = recalls >= full_recall - self.max_recall_loss - 1e-12
        if not allowed.any():
            raise UsageError(
                f"objective.max_recall_loss {self.max_recall_loss}: no candidate keeps that; allow more, or add "
                "a candidate that never stops"
            )
        return int(np.argmin(np.where(allowed, searches, np.inf)))


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """A stop threshold and what it gives on the runs it was chosen on (plain means over runs)."""

    threshold: float
    value: float  # return
    recall: float
    searches: float


def stop_rows(stop_probability: Floats, table: SignalTable, threshold: float, min_steps: int) -> NDArray[np.int64]:
    """The row at which each run is stopped, shape (E,): the first at or above the threshold; -1 for never."""
    hits = (stop_probability >= threshold) & (table.turns >= min_steps)
    rows = np.flatnonzero(hits)
    first = np.full(len(table), -1)
    episodes = table.episode_of_row[rows][::-1]
    first[episodes] = rows[::-1]  # written backward, the earliest row of a run stays
    return first


def stopping_figures(table: SignalTable, rows: NDArray[np.int64], reward: Reward) -> tuple[Floats, Floats, Floats]:
    """Return, recall and searches of each run, shape (E,) each, when stopped at `rows` (-1: at its own end)."""
    values = run_values(table, reward)
    recall = np.nan_to_num(table.episode_values("final_recall"))
    worth = values.end_value.copy()
    searches = table.lengths.astype(np.float64)
    stopped = rows >= 0
    recall[stopped] = np.nan_to_num(table.label("recall"))[rows[stopped]]
    worth[stopped] = values.stop_value[rows[stopped]]
    searches[stopped] = table.turns[rows[stopped]]
    paid = np.maximum(searches - 1, 0) * reward.search + searches * reward.controller
    return reward.recall * recall + worth - paid, recall, searches


def choose_threshold(
    stop_probability: Floats, table: SignalTable, reward: Reward, guards: Guards, objective: Objective
) -> ThresholdChoice:
    """The stop threshold that is best on a table's runs.

    Args:
        stop_probability: of each row, shape (N,).
        table: validation runs.
        reward: prices.
        guards: min_steps is respected.
        objective: what is best.
    """
    quantiles = np.unique(np.quantile(stop_probability, np.linspace(0, 1, 201))) if len(stop_probability) else []
    candidates = [1.0 + 1e-9, *[float(value) for value in quantiles][::-1]]  # the mildest first: never stop
    figures = []
    for threshold in candidates:
        rows = stop_rows(stop_probability, table, threshold, guards.min_steps)
        figures.append([array.mean() for array in stopping_figures(table, rows, reward)])
    returns, recalls, searches = np.array(figures).T
    best = objective.best(returns, recalls, searches, recalls[0])
    return ThresholdChoice(candidates[best], float(returns[best]), float(recalls[best]), float(searches[best]))


def tune_rule(
    kind: str,
    params: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    env: ReplayEnv,
    guards: Guards,
    objective: Objective,
    seed: int,
) -> tuple[Controller, list[dict[str, Any]]]:
    """The rule whose parameters are best on an environment's runs, and what each combination gave."""
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    full = np.nan_to_num(env.table.episode_values("final_recall")).mean() if len(env.table) else 0.0
    tried = []
    for combination in combinations:
        controller = make_rule(kind, {**params, **combination})
        figures = summarise(env, rollout(env, controller, guards, seed=seed))
        tried.append({"params": combination} | {key: figures[key] for key in ("return", "recall", "searches")})
    returns, recalls, searches = (
        np.array([row[key] if row[key] is not None else 0.0 for row in tried])
        for key in ("return", "recall", "searches")
    )
    best = objective.best(returns, recalls, searches, float(full)) if tried else 0
    return make_rule(kind, {**params, **combinations[best]}), tried
