"""What continuing is worth at each decision point, as far as the past can tell: the training target.

The best that hindsight finds in a logged run (`stopwise.envs.hindsight`) is not what a policy can expect: the mean of
maxima is above the maximum of means. Targets must not see the future of the run they judge, so they are fitted:
Longstaff and Schwartz, *Valuing American Options by Simulation: A Simple Least-Squares Approach*, Review of Financial
Studies 14 (2001), section 1, here cross-fitted by question.

Arrays are flat over the decision points of E runs one after the other (N rows; run e has rows offsets[e] ..
offsets[e + 1] - 1). At a row the run either stops, worth `stop_value`, or continues, which brings
`recall_weight * gain_next`, and costs `search_cost` when a further decision point follows; past the last row it brings
`end_value` instead. The third action, intervene, is in `stopwise.train.action_targets`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import check_number
from stopwise.data.errors import DataError
from stopwise.envs.hindsight import Runs, lay_out, rows_by_turn
from stopwise.train.regression import Fit, RegressorName, regressor

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

MAX_TAIL_ROUNDS = 20  # policy iterations in the tail block; 2 to 5 are usual, but near-equal policies may take turns


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """How targets are fitted: see `fitted_targets`."""

    folds: int = 5
    min_rows: int = 200
    regressor: RegressorName = "ridge"
    ridge: float = 10.0

    def __post_init__(self) -> None:
        check_number("targets.folds", self.folds, low=3, whole=True)
        check_number("targets.min_rows", self.min_rows, low=1, whole=True)
        check_number("targets.ridge", self.ridge, low=1e-9)


@dataclass(frozen=True, slots=True)
class FittedTargets:
    """Values of both actions at each row, from regressions that never saw a run of the row's question."""

    q_continue: Floats  # (N,) regressed value of continuing, then following the fitted policy
    q_stop: Floats  # (N,) regressed value of stopping: what can be told about `stop_value` from the features
    return_continue: Floats  # (N,) realised return of continuing, then following the fitted policy; one noisy draw
    return_stop: Floats  # (N,) realised return of stopping: `stop_value`
    q_intervene: Floats  # (N,) regressed value of intervening, then following the fitted policy; NaN without a model
    return_intervene: Floats  # (N,) its realised return; NaN without a model
    stop: Bools  # (N,) the fitted policy: q_stop >= q_continue
    row_value: Floats  # (N,) realised return of the fitted policy from each row on
    value: Floats  # (E,) the same from the first row; end_value for a run without rows
    fold: Ints  # (E,) the fold that the run was held out in; -1 for a run without rows
    tail_turn: Ints  # (K,) first turn of the pooled tail block, by held-out fold
    tail_rounds: Ints  # (K,) policy iterations in it; MAX_TAIL_ROUNDS when it never settled


def question_folds(questions: Ints, folds: int, seed: int) -> Ints:
    """A fold for each entry, shape as given: questions are shuffled and dealt out, each into one fold.

    Raises:
        DataError: fewer questions than folds.
    """
    names, code = np.unique(questions, return_inverse=True)
    if len(names) < folds:
        raise DataError(f"fitted targets need at least {folds} questions to cross-fit, found {len(names)}")
    fold = np.empty(len(names), dtype=np.int64)
    fold[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names)) % folds
    return fold[code]


def fitted_targets(
    features: Floats,
    offsets: Ints,
    gain_next: Floats,
    stop_value: Floats,
    end_value: Floats,
    questions: Ints,
    *,
    search_cost: float,
    recall_weight: float = 1.0,
    folds: int = 5,
    min_rows: int = 200,
    regressor_name: RegressorName = "ridge",
    ridge: float = 10.0,
    seed: int = 0,
    intervening: Callable[[Floats], Floats] | None = None,
) -> FittedTargets:
    """Values of continuing and stopping by fitted backward induction over turns, cross-fitted by question.

    From the last turn to the first, the realised returns of continuing (under the policy fitted for later turns) and
    of stopping are regressed on the features, and the policy stops where the second prediction is not below the first.
    As in Longstaff and Schwartz, the regression only decides: what is carried backward is the realised return. Stopping
    is regressed as well, since a policy does not know whether the answer at hand is correct.

    Two layers of folds keep the future out. Everything about a held-out fold comes from regressions on the other
    folds. Among those, each run's stops are decided by regressions without that run's fold: deciding in sample would
    pick up noise at every turn, and the returns would drift towards the clairvoyant ones.

    Few runs reach the late turns. From the first turn at which a regression would have under `min_rows` rows, all
    later turns form one block with one regression over all its rows; the features are expected to hold the turn. There
    the policy is iterated: start from never stopping, compute returns backward, regress, decide, until no decision
    changes, or MAX_TAIL_ROUNDS. With few runs the block may be everything.

    The default regressor is ridge: a turn has few rows against some dozens of correlated features, and it has a closed
    form. `boosted` is sklearn's histogram gradient boosting, for many runs and for minutes rather than seconds.

    Args:
        features: what a controller would see at each row, shape (N, F), no NaN.
        offsets: rows of each run, shape (E + 1,).
        gain_next: new recall that continuing brings, shape (N,); at a last row, what page opens after it bring.
        stop_value: value of stopping, shape (N,): the answer's weight times its correctness there, or 0.
        end_value: value when the agent's own answer ends the run, shape (E,).
        questions: question codes, shape (E,).
        search_cost: charged when continuing leads to a further decision point.
        recall_weight: value of one unit of recall.
        folds: number of folds of questions, at least 3.
        min_rows: the fewest rows for a regression of one turn.
        regressor_name: `ridge` or `boosted`.
        ridge: strength of ridge, in rows (see `fit_ridge`).
        seed: shuffles the questions and seeds `boosted`.
        intervening: the realised returns of intervening, shape (N,), given those of following the fitted policy from
            each row on, shape (N,). It is called for each fold, and what it returns is regressed like the other two
            actions: on the same rows, and for a held-out fold from the other folds' runs and decisions only.

    Raises:
        DataError: fewer questions than folds.
        ValueError: shapes that do not fit, values that are not finite, or fewer than 3 folds.
    """
    runs = lay_out(offsets, gain_next, stop_value, end_value, search_cost, recall_weight)
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or len(features) != len(runs.turn) or questions.shape != runs.end_value.shape:
        raise ValueError(
            f"{len(runs.end_value)} runs with {len(runs.turn)} rows need as many questions and feature rows, "
            f"got shapes {questions.shape} and {features.shape}"
        )
    if not np.isfinite(features).all():
        raise ValueError("features have values that are not finite: fill nulls and give a mask column instead")
    if folds < 3 or min_rows < 1:
        raise ValueError(f"needs at least 3 folds (two layers of them) and 1 row, got {folds} and {min_rows}")
    fit = regressor(regressor_name, ridge, seed)
    fold = np.full(len(questions), -1)  # runs without rows teach nothing, and must not leave a fold empty
    fold[~runs.empty] = question_folds(questions[~runs.empty], folds, seed)
    row_fold = fold[runs.episode]
    n = len(runs.turn)
    targets = FittedTargets(
        q_continue=np.zeros(n),
        q_stop=np.zeros(n),
        return_continue=np.zeros(n),
        return_stop=runs.stop_value,
        q_intervene=np.full(n, np.nan),
        return_intervene=np.full(n, np.nan),
        stop=np.zeros(n, dtype=bool),
        row_value=np.zeros(n),
        value=np.zeros(len(fold)),
        fold=fold,
        tail_turn=np.zeros(folds, dtype=np.int64),
        tail_rounds=np.zeros(folds, dtype=np.int64),
    )
    for held_out in range(folds):
        induction = _Induction(runs, features, row_fold, held_out, folds, fit, min_rows)
        induction.run()
        held = row_fold == held_out
        targets.q_continue[held], targets.q_stop[held] = induction.predicted[held].T
        targets.return_continue[held] = induction.continuing[held]
        targets.stop[held] = induction.stop[held]
        targets.row_value[held] = induction.value[:-1][held]
        if intervening is not None:
            returns = intervening(induction.value[:-1])
            targets.return_intervene[held] = returns[held]
            targets.q_intervene[held] = induction.regress(returns)[held]
        targets.tail_turn[held_out] = induction.tail_turn
        targets.tail_rounds[held_out] = induction.tail_rounds
    return replace(targets, value=runs.from_start(targets.row_value))


class _Induction:
    """Backward induction for one held-out fold; arrays over all N rows, of which only its own are ever written."""

    def __init__(
        self, runs: Runs, features: Floats, row_fold: Ints, held_out: int, folds: int, fit: Fit, min_rows: int
    ) -> None:
        self.runs, self.features, self.row_fold, self.fit = runs, features, row_fold, fit
        self.inner = [fold for fold in range(folds) if fold != held_out]
        self.train_turns = rows_by_turn(runs.turn, row_fold != held_out)
        self.held_turns = rows_by_turn(runs.turn, row_fold == held_out)
        self.continuing = np.zeros(len(runs.turn))  # realised return of continuing, then following `stop`
        self.value = np.zeros(len(runs.turn) + 1)  # realised return of following `stop`; the extra one pads
        self.stop = np.zeros(len(runs.turn), dtype=bool)
        self.predicted = np.zeros((len(runs.turn), 2))  # regressed continue and stop values
        self.tail_turn = self._tail_turn(min_rows)
        self.tail_rounds = 0

    def _tail_turn(self, min_rows: int) -> int:
        """First turn of the tail block: the smallest regression at an earlier turn, and over the block, has min_rows.

        The smallest regression is the one without the inner fold that is most frequent there.
        """
        counts = np.array(
            [np.bincount(self.row_fold[rows], minlength=max(self.inner) + 1) for rows in self.train_turns]
        )
        smallest = counts.sum(axis=1) - counts.max(axis=1)
        block = counts[::-1].cumsum(axis=0)[::-1]
        large_block = np.flatnonzero(block.sum(axis=1) - block.max(axis=1) >= min_rows)
        small_turn = np.flatnonzero(smallest < min_rows)
        first_small = int(small_turn[0]) if small_turn.size else len(smallest) - 1
        return min(first_small, int(large_block[-1]) if large_block.size else 0)

    def run(self) -> None:
        """Work backward over the tail block, then over single turns."""
        self.tail_rounds = self._block(self.train_turns[self.tail_turn :], self.held_turns[self.tail_turn :])
        for turn in reversed(range(self.tail_turn)):
            self._block([self.train_turns[turn]], [self.held_turns[turn]])

    def regress(self, returns: Floats) -> Floats:
        """Predictions (N,) of returns (N,) at the held-out rows, fitted like the decisions: block by block."""
        predicted = np.full(len(returns), np.nan)
        blocks = [(self.train_turns[turn], self.held_turns[turn]) for turn in range(self.tail_turn)]
        tail = slice(self.tail_turn, None)
        for train, held in [*blocks, (np.concatenate(self.train_turns[tail]), np.concatenate(self.held_turns[tail]))]:
            if held.size:
                predicted[held] = self.fit(self.features[train], returns[train, None])(self.features[held])[:, 0]
        return predicted

    def _block(self, train_turns: list[Ints], held_turns: list[Ints]) -> int:
        """Fit and decide for a block of turns, later turns being done; returns the number of rounds."""
        train, held = np.concatenate(train_turns), np.concatenate(held_turns)
        fold = self.row_fold[train]
        most, rounds, settled = MAX_TAIL_ROUNDS if len(train_turns) > 1 else 1, 0, False
        while rounds < most and not settled:
            rounds += 1
            self._follow(train_turns)
            before = self.stop[train]
            for inner in self.inner:
                self._decide(train[fold != inner], train[fold == inner])
            settled = np.array_equal(before, self.stop[train])
        self._follow(train_turns)
        self._decide(train, held)
        self._follow(held_turns)
        return rounds

    def _decide(self, fitted_on: Ints, rows: Ints) -> None:
        """Regress both realised returns on the first rows; predict and decide for the second."""
        if not rows.size:
            return
        returns = np.column_stack([self.continuing[fitted_on], self.runs.stop_value[fitted_on]])
        self.predicted[rows] = self.fit(self.features[fitted_on], returns)(self.features[rows])
        self.stop[rows] = self.predicted[rows, 1] >= self.predicted[rows, 0]

    def _follow(self, turns: list[Ints]) -> None:
        """Realised returns under the present decisions, backward over these turns."""
        for rows in reversed(turns):
            ahead = np.where(self.runs.last[rows], 0.0, self.value[rows + 1])
            self.continuing[rows] = self.runs.reward[rows] + ahead
            self.value[rows] = np.where(self.stop[rows], self.runs.stop_value[rows], self.continuing[rows])
