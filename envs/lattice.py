"""One replayed run as a small Markov decision process that is solved exactly: its *lattice*.

A state is (t, m, c): the search step, the interventions used so far, and the search steps of rest that are left after
the last one. From it a policy continues, intervenes or stops; what comes of it is known from the log and, for
interventions, from a named model (`forbidden`, `noop`, `uplift`). So the value of every state and action under a
policy, and how often the policy gets there, can be computed instead of sampled. With `reach` these give the all-action
policy gradient (Sutton et al., *Policy Gradient Methods for Reinforcement Learning with Function Approximation*,
NeurIPS 1999, theorem 1, for episodes): sum over states of reach(s) sum over actions of grad pi(a|s) q(s, a).

Policies may be stacked along leading axes: arrays then begin with them, written ... below.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.guards import Guards
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import Forbidden, InterventionModel, Noop
from stopwise.envs.rewards import Reward, run_values
from stopwise.envs.uplift import Uplift, jumps
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_C, _I, _S = int(Action.CONTINUE), int(Action.INTERVENE), int(Action.STOP)


@dataclass(frozen=True)
class Lattice:
    """One run with T search steps, at most M interventions and C steps of rest after each; rows count from 0."""

    going_on: Floats  # (T,) reward of continuing: new recall, the next search, the decision; at the end the answer
    stopping: Floats  # (T,) reward of stopping
    missing: Floats  # (T,) reward of an intervention that fails
    miss: Ints  # (T,) row that it leads to; T: the run's own end
    hitting: Floats  # (T,) reward of an intervention that succeeds
    hit: Ints  # (T,) row that it leads to
    chance: Floats  # (T,) probability that it succeeds
    legal: Bools  # (T, M + 1, C + 1, 3) what guards and environment allow
    recall: Floats  # (T + 1,) recall at each row, and at the run's own end
    first: float = 0.0  # reward of the first search, which comes before the first decision

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, M + 1, C + 1)."""
        rows, used, rest, _ = self.legal.shape
        return rows, used, rest


@dataclass(frozen=True)
class Solution:
    """What a policy is worth on a lattice, and where it gets to; ... are the leading axes of the policy."""

    q: Floats  # (..., T, M + 1, C + 1, 3) value of each action, then following the policy; 0 where illegal
    reach: Floats  # (..., T, M + 1, C + 1) expected visits
    value: Floats  # (...,) of the start: the return after the first search


@dataclass(frozen=True)
class Expected:
    """What runs come to on average under a policy."""

    value: Floats  # (...,) return of the whole run, its first search included
    recall: Floats  # (...,)
    searches: Floats  # (...,)
    interventions: Floats  # (...,)
    actions: Floats  # (..., 3) decisions by action


def lattices(
    table: SignalTable, reward: Reward, guards: Guards, intervention: InterventionModel | None = None
) -> list[Lattice | None]:
    """The lattice of every run of a table, as `ReplayEnv` would pay it; None for a run without a search step.

    Args:
        table: runs with gold; without it a run brings nothing and only costs.
        reward: weights and prices.
        guards: limits that hold whatever a policy says.
        intervention: `Forbidden` (the default), `Noop` or `Uplift`.

    Raises:
        UsageError: another intervention model, whose outcomes are no function of the state.
        DataError: the table lacks a signal that `Uplift` reads.
    """
    model = intervention or Forbidden()
    if not isinstance(model, Forbidden | Noop | Uplift):
        raise UsageError(f"lattice: intervention {model.name!r}; expected forbidden, noop or uplift")
    values = run_values(table, reward)
    recall = np.nan_to_num(table.label("recall"))
    final = np.nan_to_num(table.episode_values("final_recall"))
    found = jumps(table, model.fit) if isinstance(model, Uplift) else None
    allowed = limits(int(table.lengths.max(initial=0)), guards, model.available)
    made: list[Lattice | None] = []
    for episode, (start, stop) in enumerate(zip(table.offsets[:-1], table.offsets[1:], strict=True)):
        count = int(stop - start)
        if count == 0:
            made.append(None)
            continue
        own = np.append(recall[start:stop], final[episode])
        going_on = reward.recall * values.gain_next[start:stop] - reward.controller
        going_on[:-1] -= reward.search
        going_on[-1] += values.end_value[episode]
        spent = np.full(count, -reward.search - reward.intervention - reward.controller)
        miss, hit, odds = np.arange(count), np.arange(count), np.zeros(count)
        missing = spent
        if isinstance(model, Noop):  # the log's next step comes as if the run had continued
            missing, miss = going_on - reward.intervention, np.arange(1, count + 1)
        elif found is not None:
            hit, odds = found.target[start:stop] - start, found.probability[start:stop]
        made.append(
            Lattice(
                going_on=going_on,
                stopping=values.stop_value[start:stop] - reward.controller,
                missing=missing,
                miss=miss,
                hitting=spent + reward.recall * (own[hit] - own[:-1]),
                hit=hit,
                chance=odds,
                legal=allowed[:count],
                recall=own,
                first=reward.recall * float(own[0]),
            )
        )
    return made


def limits(rows: int, guards: Guards, can_intervene: bool) -> Bools:
    """What the guards allow at each state, shape (rows, M + 1, C + 1, 3); M and C are 0 without interventions."""
    most, rest = (guards.max_interventions, guards.cooldown) if can_intervene else (0, 0)
    legal = np.zeros((rows, most + 1, rest + 1, 3), dtype=bool)
    for row, used, left in np.ndindex(rows, most + 1, rest + 1):
        since = None if left == 0 else rest + 1 - left
        legal[row, used, left] = guards.legal(row + 1, used, since, can_intervene=can_intervene)
    return legal


def masked(probabilities: Floats, legal: Bools) -> Floats:
    """A policy (..., T, M + 1, 3) that knows nothing of the rest, spread over c and masked as `base.mask` does.

    Returns:
        Shape (..., T, M + 1, C + 1, 3); what has no legal mass left falls to the mildest legal action.
    """
    spread = np.where(legal, probabilities[..., None, :], 0.0)
    total = spread.sum(axis=-1, keepdims=True)
    mildest = np.zeros(legal.shape)
    np.put_along_axis(mildest, legal.argmax(axis=-1)[..., None], 1.0, axis=-1)
    return np.where(total > 0, spread / np.where(total > 0, total, 1.0), mildest)


def solve(run: Lattice, policy: Floats) -> Solution:
    """Values backward and visits forward under a policy, shape (..., T, M + 1, C + 1, 3), masked.

    Values: q(continue) = r + V(t + 1, m, c - 1); q(intervene) = u (r_hit + V(hit, m + 1, C)) + (1 - u) (r_miss +
    V(miss, m + 1, C)); q(stop) = r; V = sum of pi q. Visits: the start has 1, and each transition carries on its share.
    """
    rows, used, rest = run.shape
    front = policy.shape[:-4]
    value = np.zeros((*front, rows + 1, used, rest))  # the row after the last is the run's own end, worth nothing more
    q = np.zeros(policy.shape)
    after = np.maximum(np.arange(rest) - 1, 0)  # rest that is left at the next decision
    most = rest - 1
    for row in reversed(range(rows)):
        odds, hit, miss = run.chance[row], run.hit[row], run.miss[row]
        for count in reversed(range(used)):  # an intervention that fails stays at this row with one more used
            q[..., row, count, :, _C] = run.going_on[row] + value[..., row + 1, count, after]
            q[..., row, count, :, _S] = run.stopping[row]
            if count + 1 < used:
                lost = run.missing[row] + value[..., miss, count + 1, most]
                won = run.hitting[row] + value[..., hit, count + 1, most]
                q[..., row, count, :, _I] = (odds * won + (1.0 - odds) * lost)[..., None]
            here = np.where(run.legal[row, count], q[..., row, count, :, :], 0.0)
            q[..., row, count, :, :] = here
            value[..., row, count, :] = (policy[..., row, count, :, :] * here).sum(axis=-1)
    return Solution(q, _visits(run, policy, after), value[..., 0, 0, 0])


def expected(run: Lattice, policy: Floats) -> Expected:
    """Averages over everything that may come of a policy, shape (..., T, M + 1, C + 1, 3), on one run.

    Searches at the end count as in `ReplayEnv`: the first, and one for each move to a further decision.
    """
    solution = solve(run, policy)
    flow = solution.reach[..., None] * policy  # (..., T, M + 1, C + 1, 3)
    by_row = flow.sum(axis=(-3, -2))  # (..., T, 3)
    further = np.ones(len(run.going_on))
    further[-1] = 0.0  # past the last search comes the run's own end
    fails = np.where(run.miss < len(run.miss), 1.0, 0.0)
    searches = 1.0 + by_row[..., _C] @ further + by_row[..., _I] @ (run.chance + (1 - run.chance) * fails)
    gain = by_row[..., _C] @ np.diff(run.recall)
    lost, won = run.recall[run.miss] - run.recall[:-1], run.recall[run.hit] - run.recall[:-1]
    gain = gain + by_row[..., _I] @ (run.chance * won + (1 - run.chance) * lost)
    return Expected(
        value=run.first + solution.value,
        recall=run.recall[0] + gain,
        searches=searches,
        interventions=by_row[..., _I].sum(axis=-1),
        actions=by_row.sum(axis=-2),
    )


def question_weights(questions: Ints) -> Floats:
    """Weights (E,) that sum to 1: every question counts once, its runs equally."""
    _, code, counts = np.unique(questions, return_inverse=True, return_counts=True)
    return 1.0 / (counts[code] * len(counts))


def _visits(run: Lattice, policy: Floats, after: Ints) -> Floats:
    rows, used, rest = run.shape
    reach = np.zeros((*policy.shape[:-4], rows + 1, used, rest))
    reach[..., 0, 0, 0] = 1.0
    for row in range(rows):
        odds = run.chance[row]
        for count in range(used):
            flow = reach[..., row, count, :, None] * policy[..., row, count, :, :]
            for left, target in enumerate(after):
                reach[..., row + 1, count, target] += flow[..., left, _C]
            if count + 1 < used:
                pushed = flow[..., _I].sum(axis=-1)
                reach[..., run.hit[row], count + 1, rest - 1] += odds * pushed
                reach[..., run.miss[row], count + 1, rest - 1] += (1.0 - odds) * pushed
    return reach[..., :rows, :, :]


def by_thresholds(policy: Floats, legal: Bools, stop: Floats, intervene: Floats) -> Floats:
    """The deterministic policies that `Thresholded.choose` makes of probabilities, one for each pair of thresholds.

    Args:
        policy: (T, M + 1, C + 1, 3) after the masks.
        legal: of the lattice, of the same shape.
        stop: (K,) probabilities of stop from which a run is stopped.
        intervene: (K,) shares of intervening among the rest from which it intervenes.

    Returns:
        Shape (K, T, M + 1, C + 1, 3), one for the chosen action.
    """
    rest = policy[..., _C] + policy[..., _I]
    share = np.divide(policy[..., _I], rest, out=np.zeros_like(rest), where=rest > 0)
    pick = (slice(None), *(None,) * rest.ndim)
    only = legal[..., _S] & (legal.sum(axis=-1) == 1)
    stops = legal[..., _S] & ((policy[..., _S] >= stop[pick]) | only)
    nudges = ~stops & legal[..., _I] & (share >= intervene[pick])
    return np.stack([~stops & ~nudges, nudges, stops], axis=-1).astype(np.float64)
