"""Values of all three actions at each decision point: continue and stop from the log, intervene by a named model.

A plain log has no outcome of an intervention. The models here are those of `stopwise.envs` whose outcome is known at
every row: `forbidden` (none), `noop` and `uplift`. Where runs were branched, `branch_targets` has what the three
actions really brought.

Values follow `stopwise.train.targets`: from a row on, the recall already seen and the price of the decision at the row
itself left out. Prices: c_s a search, c_i an intervention, c_c a decision; w_r is the worth of recall.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.arena.branching import BranchOutcome, action_values
from stopwise.envs.interventions import Forbidden, Noop
from stopwise.envs.rewards import Reward, run_values
from stopwise.envs.uplift import Jumps, Uplift, jumps
from stopwise.signals.table import SignalTable
from stopwise.train.targets import FittedTargets, TargetOptions, fitted_targets

Floats = NDArray[np.float64]
Model = Forbidden | Noop | Uplift


@dataclass(frozen=True, slots=True)
class ActionTargets:
    """Values of the actions at the N rows of a table, columns as in `Action`: continue, intervene, stop."""

    q: Floats  # (N, 3) regressed, from regressions that never saw a run of the row's question; NaN: no outcome
    returns: Floats  # (N, 3) realised, one noisy draw each; NaN where the action has no outcome
    fitted: FittedTargets  # the policy that is followed afterwards (it continues or stops), folds, diagnostics


def action_targets(
    table: SignalTable,
    design: Floats,
    reward: Reward,
    options: TargetOptions,
    *,
    intervention: Model,
    seed: int,
) -> ActionTargets:
    """Non-anticipative values of continue, intervene and stop, cross-fitted by question.

    With v(t) the realised return of following the fitted policy from row t on (`FittedTargets.row_value`), the realised
    returns are

    - continue: w_r gain_{t+1} - c_s - c_c + v(t+1), past the last row w_r gain and the worth of the agent's own answer;
    - stop: the worth of an answer at t;
    - intervene under ``noop``: continue - c_i;
    - intervene under ``uplift``: -c_s - c_i - c_c + u(x_t) [w_r gain_{t->t'} + v(t')] + (1 - u(x_t)) v(t), with t' the
      run's next productive row. Without one it stays for certain. The chance of the jump is averaged, not drawn;
    - intervene under ``forbidden``: NaN.

    Each is regressed on the same rows, turn by turn (see `fitted_targets`); ``noop`` needs no regression of its own.
    The policy that follows neither intervenes nor knows of a cool-down: q is the value of one intervention, after
    which the run is left to continue and stop.

    Args:
        table: runs with gold; N rows.
        design: what a controller would see at each row, shape (N, F), no NaN.
        reward: weights and prices.
        options: folds and regressor.
        intervention: the model of intervening.
        seed: deals questions into folds.

    Raises:
        DataError: fewer questions than folds, or the table lacks a signal of the uplift's features.
        UsageError: the model has no outcome at every row (`logged`, `retrieve`).
    """
    if not isinstance(intervention, Model):
        raise UsageError(
            f"targets: intervention {getattr(intervention, 'name', intervention)!r} has no outcome at every step; "
            "expected forbidden, noop or uplift"
        )
    found = jumps(table, intervention.fit) if isinstance(intervention, Uplift) else None
    values = run_values(table, reward)
    fitted = fitted_targets(
        design,
        table.offsets,
        values.gain_next,
        values.stop_value,
        values.end_value,
        table.question_codes,
        search_cost=reward.search + reward.controller,
        recall_weight=reward.recall,
        folds=options.folds,
        min_rows=options.min_rows,
        regressor_name=options.regressor,
        ridge=options.ridge,
        seed=seed,
        intervening=None if found is None else lambda value: uplift_returns(found, value, reward),
    )
    q_intervene, return_intervene = fitted.q_intervene, fitted.return_intervene
    if isinstance(intervention, Noop):
        q_intervene = fitted.q_continue - reward.intervention
        return_intervene = fitted.return_continue - reward.intervention
    return ActionTargets(
        q=_columns(fitted.q_continue, q_intervene, fitted.q_stop),
        returns=_columns(fitted.return_continue, return_intervene, fitted.return_stop),
        fitted=fitted,
    )


def uplift_returns(found: Jumps, value: Floats, reward: Reward) -> Floats:
    """Return of intervening under ``uplift`` at each row, shape (N,); the formula is in `action_targets`.

    Args:
        found: the model's outcomes at each row.
        value: return from each row on of what is done afterwards, shape (N,).
        reward: weights and prices.
    """
    jumped = reward.recall * found.gain + value[found.target]
    paid = reward.search + reward.intervention + reward.controller
    return found.probability * jumped + (1.0 - found.probability) * value - paid


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """What the three actions brought at branched states, columns as in `Action`."""

    rows: NDArray[np.int64]  # (R,) rows of the table, rising
    q: Floats  # (R, 3) mean over the rollouts of a state
    error: Floats  # (R, 3) its standard error; 0 for stop, NaN for a single rollout


def branch_targets(outcomes: Iterable[BranchOutcome], table: SignalTable, reward: Reward) -> BranchTargets:
    """Values at branched states, joined to a signal table of the branched runs by trajectory id and t.

    Q(a) = mean over rollouts of w_r (recall gained) - (c_s + c_c) (further searches) - c_i [a = intervene] + w_a
    [answer correct]. After the action the agent went on by itself to its own end, so Q(continue) and Q(intervene) are
    those of never stopping afterwards: below what a policy that stops can have. States of runs that are not in the
    table are passed over, so that a split can be given; those without gold too.

    Args:
        outcomes: of any number of states, all rollouts of each (`read_branches`).
        table: signals of the runs that were branched.
        reward: weights and prices.

    Raises:
        DataError: no state is in the table, or a state does not fit the run of its id: the table is of other runs.
    """
    known = [outcome for outcome in outcomes if not math.isnan(outcome.recall_gain)]
    values = action_values(
        known,
        recall=reward.recall,
        search=reward.search + reward.controller,
        correct=reward.correct,
        intervention=reward.intervention,
    )
    before = {(outcome.trajectory_id, outcome.t): outcome.recall_before for outcome in known}
    episode = {run.id: number for number, run in enumerate(table.episodes)}
    recall = table.label("recall")
    rows, used = [], []
    for index, (trajectory, t) in enumerate(values.states):
        if trajectory not in episode:
            continue
        number = episode[trajectory]
        row = int(table.offsets[number]) + t - 1
        if t > table.lengths[number] or not np.isclose(recall[row], before[trajectory, t]):
            raise DataError(
                f"branches: run {trajectory!r} had recall {before[trajectory, t]:g} after search {t}, which is not so "
                "in the signal table; compute the signals of the runs that were branched"
            )
        rows.append(row)
        used.append(index)
    if not rows:
        raise DataError(
            f"branches: none of {len(values.states)} branched states is in the signal table; compute the signals of "
            "the runs that were branched (trajectories.parquet beside branches.parquet)"
        )
    order = np.argsort(rows)
    chosen = np.array(used)[order]
    return BranchTargets(np.array(rows, dtype=np.int64)[order], values.mean[chosen], values.error[chosen])


def _columns(continuing: Floats, intervening: Floats, stopping: Floats) -> Floats:
    columns: dict[Action, Floats] = {
        Action.CONTINUE: continuing,
        Action.INTERVENE: intervening,
        Action.STOP: stopping,
    }
    return np.column_stack([columns[action] for action in Action])
