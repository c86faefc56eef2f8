"""Choosing by validation: a stop threshold, or the parameters of a rule."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import connect, make_rule
from stopwise.controllers.thresholded import intervene_share
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import InterventionModel
from stopwise.envs.lattice import Lattice, by_thresholds, expected, lattices, masked, question_weights
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward, run_values
from stopwise.evaluation.benchmark import summarise
from stopwise.evaluation.rollout import rollout
from stopwise.evaluation.statistics import question_means
from stopwise.models.chat_client import ChatClient
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]

STOPS, NUDGES = 60, 12  # candidates of each threshold where a pair is chosen


@dataclass(frozen=True, slots=True)
class Objective:
    """What "best on validation" means: the highest return, or the fewest searches at a bounded loss of recall."""

    max_recall_loss: float | None = None  # None: the return decides

    def __post_init__(self) -> None:
        if self.max_recall_loss is not None and not 0 <= self.max_recall_loss <= 1:
            raise UsageError(
                f"objective.max_recall_loss: {self.max_recall_loss}; expected a number from 0 to 1, or null"
            )

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
    """A stop threshold and what it gives on the runs it was chosen on, each question counting once."""

    threshold: float
    value: float  # return
    recall: float
    searches: float


def stop_rows(stop_probability: Floats, table: SignalTable, threshold: float, guards: Guards) -> NDArray[np.int64]:
    """The row at which each run is stopped, shape (E,): the first at or above the threshold; -1 for never.

    The guards' `min_steps` and `max_steps` are respected.
    """
    hits = (stop_probability >= threshold) & (table.turns >= guards.min_steps) | (table.turns >= guards.max_steps)
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


def full_recall(table: SignalTable) -> float:
    """Recall of the logs as they are, each question counting once; runs without gold count as 0."""
    if not len(table):
        return 0.0
    recall = np.nan_to_num(table.episode_values("final_recall"))
    return float(question_means(recall, table.question_codes)[1].mean())


def thresholds(stop_probability: Floats, most: int = 200) -> list[float]:
    """At most some `most` candidates, from never stopping to always stopping.

    Each lies halfway between two probabilities that occur: one on a probability would let rounding decide, and
    probabilities computed row by row, or on another machine, differ in their last digits.
    """
    levels = np.unique(np.round(stop_probability, 9))
    if not len(levels):
        return [1.0 + 1e-9]
    lower = np.concatenate([[0.0], (levels[:-1] + levels[1:]) / 2])[: len(levels)]
    if len(lower) > most:
        lower = lower[np.linspace(0, len(lower) - 1, most).round().astype(int)]
    return [1.0 + 1e-9, *[float(value) for value in lower][::-1]]


def choose_threshold(
    stop_probability: Floats, table: SignalTable, reward: Reward, guards: Guards, objective: Objective
) -> ThresholdChoice:
    """The stop threshold that is best on a table's runs.

    Args:
        stop_probability: of each row, shape (N,).
        table: validation runs.
        reward: prices.
        guards: min_steps and max_steps are respected.
        objective: what is best.

    Raises:
        UsageError: no threshold keeps the recall that the objective asks for.
    """
    candidates = thresholds(stop_probability)  # the mildest first
    figures = []
    for threshold in candidates:
        rows = stop_rows(stop_probability, table, threshold, guards)
        arrays = stopping_figures(table, rows, reward)
        figures.append([question_means(array, table.question_codes)[1].mean() for array in arrays])
    returns, recalls, searches = np.array(figures).T
    best = objective.best(returns, recalls, searches, full_recall(table))
    return ThresholdChoice(candidates[best], float(returns[best]), float(recalls[best]), float(searches[best]))


@dataclass(frozen=True, slots=True)
class ThresholdPair:
    """A stop and an intervene threshold, and what they give in expectation, each question counting once."""

    threshold: float
    intervene_threshold: float
    value: float  # return
    recall: float | None  # None where it was chosen by the values of single actions
    searches: float | None
    interventions: float | None


def choose_threshold_pair(
    probabilities: Floats,
    table: SignalTable,
    reward: Reward,
    guards: Guards,
    intervention: InterventionModel,
    objective: Objective,
) -> ThresholdPair:
    """The pair of thresholds of a `Thresholded` controller that is best on a table's runs, in exact expectation.

    Args:
        probabilities: of the actions at each row, before the masks, shape (N, 3).
        table: validation runs.
        reward: prices.
        guards: all are respected.
        intervention: what intervening does: `Noop` or `Uplift`, whose outcomes are known at every state.
        objective: what is best.

    Raises:
        UsageError: the model has no outcome at every state, or no pair keeps the recall that the objective asks for.
    """
    weights = question_weights(table.question_codes)
    end_value = run_values(table, reward).end_value
    final = np.nan_to_num(table.episode_values("final_recall"))
    runs, policies, own = [], [], []
    rest = np.zeros(4)  # of runs without a decision: their own end
    for index, run in enumerate(lattices(table, reward, guards, intervention)):
        if run is None:
            rest += weights[index] * np.array([end_value[index] + reward.recall * final[index], final[index], 0.0, 0.0])
            continue
        rows = slice(table.offsets[index], table.offsets[index + 1])
        spread = np.broadcast_to(probabilities[rows, None, :], (*run.legal.shape[:2], len(Action)))
        runs.append(run)
        policies.append(masked(spread, run.legal))
        own.append(weights[index])
    return pair_on_lattices(runs, policies, np.array(own), full_recall(table), objective, rest)


def pair_on_lattices(
    runs: Sequence[Lattice],
    policies: Sequence[Floats],
    weights: Floats,
    whole_recall: float,
    objective: Objective,
    rest: Floats | None = None,
) -> ThresholdPair:
    """The pair of thresholds that is best over lattices, in exact expectation.

    Args:
        runs: E lattices.
        policies: for each, probabilities (T, M + 1, C + 1, 3) after the masks.
        weights: (E,) of the runs; see `question_weights`.
        whole_recall: of the runs as they are.
        objective: what is best.
        rest: (4,) return, recall, searches and interventions of runs without a decision, weighed already.

    Raises:
        UsageError: no pair keeps the recall that the objective asks for.
    """
    states = np.concatenate([policy.reshape(-1, len(Action)) for policy in policies])
    legal = np.concatenate([run.legal.reshape(-1, len(Action)) for run in runs])
    stops = thresholds(states[legal[:, Action.STOP], Action.STOP], STOPS)
    nudges = thresholds(intervene_share(states[legal[:, Action.INTERVENE]]), NUDGES)
    # the mildest first: of equals the first is taken
    pairs = np.array(list(itertools.product(stops, nudges)))
    totals = np.zeros((4, len(pairs))) if rest is None else np.repeat(rest[:, None], len(pairs), axis=1)
    for run, policy, weight in zip(runs, policies, weights, strict=True):  # all at once would be gigabytes
        found = expected(run, by_thresholds(policy, run.legal, pairs[:, 0], pairs[:, 1]))
        totals += weight * np.stack([found.value, found.recall, found.searches, found.interventions])
    best = objective.best(totals[0], totals[1], totals[2], whole_recall)
    return ThresholdPair(*(float(number) for number in (*pairs[best], *totals[:, best])))


def choose_pair_by_values(probabilities: Floats, q: Floats, questions: NDArray[np.int64]) -> ThresholdPair:
    """The pair of thresholds whose actions are worth most on average at branched states.

    An action counts with what really came of it, each question once. What whole runs would come to is not in branches.

    Args:
        probabilities: of the actions at each state, shape (R, 3).
        q: values of the actions there, shape (R, 3).
        questions: codes, shape (R,).
    """
    share = intervene_share(probabilities)
    pairs = list(itertools.product(thresholds(probabilities[:, Action.STOP]), thresholds(share)))
    weights = question_weights(questions)
    totals = []
    for stop, nudge in pairs:
        other = np.where(share >= nudge, q[:, Action.INTERVENE], q[:, Action.CONTINUE])
        totals.append(float(weights @ np.where(probabilities[:, Action.STOP] >= stop, q[:, Action.STOP], other)))
    best = int(np.argmax(np.round(totals, 12)))
    return ThresholdPair(*pairs[best], totals[best], None, None, None)


def tune_rule(
    kind: str,
    params: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    env: ReplayEnv,
    guards: Guards,
    objective: Objective,
    seed: int,
    client: ChatClient | None = None,
) -> tuple[Controller, list[dict[str, Any]]]:
    """The rule whose parameters are best on an environment's runs, and what each combination gave.

    A rule that asks a language model asks `client`.

    Raises:
        UsageError: a parameter is unknown, a value is not allowed or a list of candidates is empty; or no combination
            keeps the recall that the objective asks for.
    """
    empty = [name for name, values in grid.items() if not len(values)]
    if empty:
        raise UsageError(f"grid.{empty[0]}: is empty; expected at least one candidate")
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    tried = []
    for combination in combinations:
        controller = make_rule(kind, {**params, **combination})
        connect(controller, client)
        figures = summarise(rollout(env, controller, guards, seed=seed), env.table.question_codes)
        tried.append({"params": combination} | {key: figures[key] for key in ("return", "recall", "searches")})
    returns, recalls, searches = (
        np.array([row[key] if row[key] is not None else 0.0 for row in tried])
        for key in ("return", "recall", "searches")
    )
    best = objective.best(returns, recalls, searches, full_recall(env.table))
    chosen = make_rule(kind, {**params, **combinations[best]})
    connect(chosen, client)
    return chosen, tried
