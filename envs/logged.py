"""Intervention model `logged`: what interventions really brought, at the states where a log has branches."""

from collections import defaultdict
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.envs.arena.branching import BranchOutcome
from stopwise.envs.interventions import Effect, End, Place


class Logged:
    """At a branched state an intervention ends the run with the mean of its rollouts; elsewhere it is masked.

    After the intervention the agent went on by itself to its own end: what a controller would have done there is not
    in the branches.
    """

    name: ClassVar[str] = "logged"
    available: ClassVar[bool] = True

    def __init__(self, outcomes: Iterable[BranchOutcome]) -> None:
        """Take branch outcomes; those of other actions are passed over.

        Raises:
            DataError: no outcome is of an intervention.
        """
        rollouts: dict[tuple[str, int], list[BranchOutcome]] = defaultdict(list)
        for outcome in outcomes:
            if outcome.action is Action.INTERVENE:
                rollouts[outcome.trajectory_id, outcome.t].append(outcome)
        if not rollouts:
            raise DataError("intervention logged: there is no branch with an intervention; collect with --branch")
        self._ends = {state: _mean(branches) for state, branches in rollouts.items()}

    def allows(self, place: Place) -> bool:
        """Where the state has branches."""
        return _state(place) in self._ends

    def intervene(self, place: Place, generator: np.random.Generator) -> Effect | None:
        """End the run as its branches ended."""
        return Effect(place.row, end=self._ends[_state(place)])


def _state(place: Place) -> tuple[str, int]:
    return place.table.episodes[place.episode].id, int(place.table.turns[place.row])


def _mean(branches: list[BranchOutcome]) -> End:
    correct = [float("nan") if branch.correct is None else float(branch.correct) for branch in branches]
    return End(
        recall_gain=float(np.mean([branch.recall_gain for branch in branches])),
        searches=float(np.mean([branch.searches for branch in branches])),
        correct=float(np.mean(correct)),
    )
