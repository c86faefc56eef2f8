"""The Fast Consistency Monitor of [DS-MCM] as a controller (3.2.3, eq. 8)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from stopwise.controllers.base import Controller, Distribution, Observation, certain, check_number
from stopwise.data.errors import UsageError
from stopwise.data.records import Action

OnFlag = Literal["stop", "intervene"]


class DsMcm(Controller):
    """Flag a step whose residual lies more than k sigma from zero, on either side; then stop or intervene.

    Without reasoning entropy there is no residual: the controller is then not applicable.
    """

    kind: ClassVar[str] = "ds_mcm"
    needs = ("residual_z",)

    def __init__(self, k: float = 2.0, on_flag: OnFlag = "intervene") -> None:
        """Set the threshold.

        Args:
            k: sigmas, above 0; the paper's best is 2.
            on_flag: what to do; the paper intervenes through its slow monitor.

        Raises:
            UsageError: a value is not allowed.
        """
        check_number("ds_mcm: k", k, low=0)
        if k == 0:
            raise UsageError("ds_mcm: k 0; expected a number above 0: every step would be flagged")
        if on_flag not in get_args(OnFlag):
            raise UsageError(f"ds_mcm: on_flag {on_flag!r}; expected one of {', '.join(get_args(OnFlag))}")
        self.k = k
        self.on_flag: OnFlag = on_flag

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`; a step without a residual is not flagged."""
        deviation = observation.row.values.get("residual_z")
        if deviation is None or abs(deviation) <= self.k:
            return certain(Action.CONTINUE), None
        how = "less certain than the evidence warrants" if deviation > 0 else "more certain than the evidence warrants"
        action = Action.STOP if self.on_flag == "stop" else Action.INTERVENE
        return certain(action), f"reasoning is {how} ({deviation:+.1f} sigma)"

    @property
    def params(self) -> Mapping[str, Any]:
        """K and what follows a flag."""
        return {"k": self.k, "on_flag": self.on_flag}
