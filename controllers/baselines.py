"""What every learned controller must beat: going on, a fixed number of searches, and chance."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from stopwise.controllers.base import Controller, Distribution, Legal, Observation, certain, check_number
from stopwise.data.errors import UsageError
from stopwise.data.records import Action


class NeverStop(Controller):
    """Always continue: the agent as it is."""

    kind: ClassVar[str] = "never_stop"

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`."""
        return certain(Action.CONTINUE), None

    @property
    def params(self) -> Mapping[str, Any]:
        """No parameters."""
        return {}


class FixedBudget(Controller):
    """Stop after a fixed number of search steps."""

    kind: ClassVar[str] = "fixed_budget"

    def __init__(self, budget: int = 10) -> None:
        """Choose the budget, in search steps.

        Raises:
            UsageError: `budget` is below 1.
        """
        check_number("fixed_budget: budget", budget, low=1, whole=True)
        self.budget = budget

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`."""
        if observation.row.t >= self.budget:
            return certain(Action.STOP), f"the budget of {self.budget} searches is used"
        return certain(Action.CONTINUE), None

    @property
    def params(self) -> Mapping[str, Any]:
        """The budget."""
        return {"budget": self.budget}


class Random(Controller):
    """Stop and intervene by chance, at rates that a benchmark matches to another controller's."""

    kind: ClassVar[str] = "random"

    def __init__(self, stop: float = 0.05, intervene: float = 0.0) -> None:
        """Choose the probabilities a step.

        Raises:
            UsageError: they are no probabilities.
        """
        check_number("random: stop", stop, low=0, high=1)
        check_number("random: intervene", intervene, low=0, high=1)
        if stop + intervene > 1:
            raise UsageError(f"random: stop {stop} and intervene {intervene}; expected a sum up to 1")
        self.stop = stop
        self.intervene = intervene
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """See `Controller.reset`."""
        super().reset(seed)
        self._generator = np.random.default_rng(seed)

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`."""
        return np.array([1.0 - self.stop - self.intervene, self.intervene, self.stop]), None

    def choose(self, probabilities: Distribution, legal: Legal) -> Action:
        """Draw from the distribution: one uniform number a step, so that runs share random numbers."""
        cumulative = np.cumsum(probabilities)
        position = self._generator.random() * cumulative[-1]  # a sum just below 1 must not end in an illegal action
        return Action(int(np.searchsorted(cumulative, position, side="right")))

    @property
    def params(self) -> Mapping[str, Any]:
        """The two rates."""
        return {"stop": self.stop, "intervene": self.intervene}
