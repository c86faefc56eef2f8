"""The clairvoyant best stop: an upper bound that no policy can reach, since it has seen the future."""

from collections.abc import Mapping
from typing import Any, ClassVar

from stopwise.controllers.base import Controller, Distribution, Observation, certain
from stopwise.data.records import Action


class Oracle(Controller):
    """Stop as soon as nothing that really came later was worth its price; go on where that is unknown.

    Privileged, for replay only.
    """

    kind: ClassVar[str] = "oracle"
    privileged = True

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`.

        Raises:
            ValueError: there is no hindsight, as in a live agent.
        """
        if observation.hindsight is None:
            raise ValueError("oracle: needs hindsight, which only a replayed log has")
        known = observation.hindsight
        # unknown values are NaN, and no comparison with NaN holds: a run without gold is left to go on
        return certain(Action.STOP if known.stop_value >= known.continue_value else Action.CONTINUE), None

    @property
    def params(self) -> Mapping[str, Any]:
        """No parameters."""
        return {}
