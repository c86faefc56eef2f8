"""The best that each logged run allows in hindsight: the oracle's bound, which no policy reaches; never a target.

Arrays are flat over the decision points of E runs one after the other (N rows; run e has rows offsets[e] ..
offsets[e + 1] - 1). At a row the run either stops, worth `stop_value`, or continues, which brings
`recall_weight * gain_next`, and costs `search_cost` when a further decision point follows; past the last row it brings
`end_value` instead.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.envs.rewards import Reward, run_values
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ClairvoyantValues:
    """The optimum in hindsight: an upper bound that no policy reaches. Never train on it."""

    continue_value: Floats  # (N,) best return after continuing at this row
    best_stop: Ints  # (E,) row within the run at which to stop, the earliest of equals; the run's length: never
    value: Floats  # (E,) best return from the first row; end_value for a run without rows


@dataclass(frozen=True, slots=True)
class Runs:
    """Rewards along E runs, flat over their N rows; see the module's docstring."""

    reward: Floats  # (N,) what continuing brings at once, the end value at the last row included
    last: Bools  # (N,) last row of its run
    stop_value: Floats  # (N,)
    turn: Ints  # (N,) position in the run
    episode: Ints  # (N,)
    first: Ints  # (E,) first row; meaningless for runs without rows
    empty: Bools  # (E,) runs without rows
    end_value: Floats  # (E,)

    def from_start(self, row_values: Floats) -> Floats:
        """The value at each run's first row, shape (E,)."""
        value = self.end_value.copy()
        value[~self.empty] = row_values[self.first[~self.empty]]
        return value


def lay_out(
    offsets: Ints, gain_next: Floats, stop_value: Floats, end_value: Floats, search_cost: float, recall_weight: float
) -> Runs:
    """Check and lay out the rewards of runs; arguments as in `clairvoyant_values`.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """
    lengths = np.diff(offsets)
    rows = len(gain_next)
    if offsets[0] != 0 or offsets[-1] != rows or (lengths < 0).any():
        raise ValueError(f"offsets must rise from 0 to the number of rows, {rows}")
    if stop_value.shape != (rows,) or end_value.shape != lengths.shape:
        raise ValueError(
            f"{len(lengths)} runs with {rows} rows need as many end and stop values, "
            f"got shapes {end_value.shape} and {stop_value.shape}"
        )
    for name, array in (("gain_next", gain_next), ("stop_value", stop_value), ("end_value", end_value)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has values that are not finite: leave out runs whose outcome is unknown")
    episode = np.repeat(np.arange(len(lengths)), lengths)
    last = np.zeros(rows, dtype=bool)
    last[offsets[1:][lengths > 0] - 1] = True
    return Runs(
        reward=recall_weight * gain_next + np.where(last, end_value[episode], -search_cost),
        last=last,
        stop_value=stop_value.astype(np.float64),
        turn=np.arange(rows) - offsets[:-1][episode],
        episode=episode,
        first=offsets[:-1],
        empty=lengths == 0,
        end_value=end_value.astype(np.float64),
    )


def rows_by_turn(turn: Ints, chosen: Bools) -> list[Ints]:
    """The chosen rows at each turn, from turn 0 to the last turn of any row."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(turn[rows], kind="stable")]
    return np.split(rows, np.searchsorted(turn[rows], np.arange(1, turn.max(initial=0) + 1)))


def clairvoyant_values(
    offsets: Ints,
    gain_next: Floats,
    stop_value: Floats,
    end_value: Floats,
    *,
    search_cost: float,
    recall_weight: float = 1.0,
) -> ClairvoyantValues:
    """The best that each logged run allows in hindsight: the oracle, not a training target.

    Args:
        offsets: rows of each run, shape (E + 1,).
        gain_next: new recall that continuing brings, shape (N,); at a last row, what page opens after it bring.
        stop_value: value of stopping, shape (N,): the answer's weight times its correctness there, or 0.
        end_value: value when the agent's own answer ends the run, shape (E,).
        search_cost: charged when continuing leads to a further decision point.
        recall_weight: value of one unit of recall.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """
    runs = lay_out(offsets, gain_next, stop_value, end_value, search_cost, recall_weight)
    continuing, value = np.zeros(len(runs.turn)), np.zeros(len(runs.turn) + 1)
    best_stop = np.diff(offsets)
    for rows in reversed(rows_by_turn(runs.turn, np.ones(len(runs.turn), dtype=bool))):
        continuing[rows] = runs.reward[rows] + np.where(runs.last[rows], 0.0, value[rows + 1])
        stops = rows[runs.stop_value[rows] >= continuing[rows]]
        best_stop[runs.episode[stops]] = runs.turn[stops]  # walking backward, the earliest is written last
        value[rows] = np.maximum(runs.stop_value[rows], continuing[rows])
    return ClairvoyantValues(continuing, best_stop, runs.from_start(value[:-1]))


def hindsight_values(table: SignalTable, reward: Reward) -> tuple[Floats, Floats]:
    """What stopping and continuing bring at each row of a table, exactly as the environment pays them.

    Returns:
        stop and continue, then the best that really came: returns from that row on, shape (N,) each.
    """
    values = run_values(table, reward)
    found = clairvoyant_values(
        table.offsets,
        values.gain_next,
        values.stop_value,
        values.end_value,
        search_cost=reward.search + reward.controller,  # a further decision point is a further decision
        recall_weight=reward.recall,
    )
    # the decision at the row itself is paid either way
    return values.stop_value - reward.controller, found.continue_value - reward.controller


def hidden_state(table: SignalTable) -> Floats:
    """What a privileged learner may know at each row beside the features, shape (N, 2), NaN without gold.

    Columns as in `Hindsight`: the recall so far, and the number of gold documents not yet seen. Neither says what the
    run will still find.
    """
    recall = table.label("recall")
    gold = table.episode_values("gold")[table.episode_of_row]
    return np.column_stack([recall, gold * (1.0 - recall)])
