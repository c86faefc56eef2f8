"""What a run is worth: new recall and a correct answer, minus searches, interventions and the controller's calls."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError
from stopwise.signals.table import SignalTable


@dataclass(frozen=True, slots=True)
class Reward:
    """Weights and prices, in units of one run's full recall."""

    recall: float = 1.0  # w_r, for each unit of recall
    correct: float = 0.0  # w_a, for a correct answer at the end, where correctness is known
    search: float = 0.01  # c_s, for each search after the first
    intervention: float = 0.0  # c_i, for each intervention, beside the search that it causes
    controller: float = 0.0  # c_c, for each decision

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (np.isfinite(value) and value >= 0):
                raise UsageError(f"reward.{name}: {value}; expected a number of 0 or more")


@dataclass(frozen=True, slots=True)
class RunValues:
    """The rewards that lie in a table's logs, flat over its N rows and E runs; unknown outcomes count as 0."""

    gain_next: NDArray[np.float64]  # (N,) recall that continuing brings until the next decision point or the end
    stop_value: NDArray[np.float64]  # (N,) w_a * correctness of an answer at this prefix
    end_value: NDArray[np.float64]  # (E,) w_a * correctness of the agent's own answer


def run_values(table: SignalTable, reward: Reward) -> RunValues:
    """Lay out the rewards of every run; the recall weight is not yet applied to the gains.

    Without gold a run's recall is 0 throughout; a prefix that was not probed has no known answer and is worth 0.
    """
    recall = np.nan_to_num(table.label("recall"))
    following = np.append(recall[1:], 0.0)[: len(recall)]
    last = table.offsets[1:][table.lengths > 0] - 1
    following[last] = np.nan_to_num(table.episode_values("final_recall"))[table.lengths > 0]
    answered = np.array([episode.ended_by == "answer" for episode in table.episodes], dtype=bool)
    correct = np.nan_to_num(table.episode_values("correct")) * answered
    return RunValues(
        gain_next=following - recall,
        stop_value=reward.correct * np.nan_to_num(table.label("probe_correct")),
        end_value=reward.correct * correct,
    )
