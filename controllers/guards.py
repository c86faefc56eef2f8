"""Guards outside the model: rules that hold whatever a controller would like to do."""

from dataclasses import dataclass

import numpy as np

from stopwise.controllers.base import Legal
from stopwise.data.errors import UsageError
from stopwise.data.records import Action


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits, applied as an action mask inside the controller's distribution."""

    min_steps: int = 1  # no stop before this search step
    max_steps: int = 100  # from this search step on, stop ([RAAC] runs at most 100 iterations)
    cooldown: int = 3  # search steps after an intervention without another one
    max_interventions: int = 4  # in one run

    def __post_init__(self) -> None:
        if not 1 <= self.min_steps <= self.max_steps:
            raise UsageError(
                f"guards: min_steps {self.min_steps} and max_steps {self.max_steps}; "
                "expected 1 <= min_steps <= max_steps"
            )
        if self.cooldown < 0 or self.max_interventions < 0:
            raise UsageError("guards: cooldown and max_interventions must be 0 or more")

    def legal(self, t: int, interventions: int, since_intervention: int | None, *, can_intervene: bool) -> Legal:
        """The actions allowed after search step `t`, shape (3,).

        Args:
            t: number of the search step, from 1.
            interventions: used so far.
            since_intervention: search steps since the last one, None before the first.
            can_intervene: whether an intervention has any outcome where the controller runs.
        """
        legal = np.ones(3, dtype=bool)
        legal[Action.STOP] = t >= self.min_steps
        rested = since_intervention is None or since_intervention > self.cooldown
        legal[Action.INTERVENE] = can_intervene and rested and interventions < self.max_interventions
        if t >= self.max_steps:
            legal[:] = (False, False, True)
        return legal
