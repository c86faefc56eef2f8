"""RAAC's priorities as code, without a model ([RAAC] 4.2): Nov first, then Div and Cov, Sim as the guardrail."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from stopwise.controllers.base import Controller, Distribution, Observation, certain, check_number
from stopwise.data.records import Action
from stopwise.signals.tracker import SignalRow


@dataclass(frozen=True, slots=True)
class HeuristicParams:
    """Thresholds of the rules; tune them on validation questions (`stopwise train`)."""

    window: int = 3  # search steps that are looked at together
    nov_low: float = 0.45  # mean Nov over the window at or below which the run is stagnant
    div_low: float = 0.15  # mean Div over the window at or below which the agent circles
    sim_low: float = 0.15  # Sim below this for a whole window: the run has drifted off the question
    cov_done: float = 1.0  # Cov from which a stagnant run has all it looked for
    patience: int = 2  # interventions on stagnation before it stops

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            whole = name in ("window", "patience")
            low = {"window": 1, "patience": 0}.get(name, -np.inf)
            check_number(f"heuristic: {name}", value, low=low, whole=whole)


class Heuristic(Controller):
    """Patience rules.

    A run is *stagnant* when few documents of the window were new, or its queries hardly moved, and Cov did not rise in
    it. A stagnant run is nudged, as long as it has patience left; then, or once it is covered, or where interventions
    are impossible, it is stopped. For a window after a nudge it is let alone. A run that has drifted is nudged.
    """

    kind: ClassVar[str] = "heuristic"
    needs = ("Nov",)
    optional = ("Cov", "coverage_gain", "Div", "Sim")

    def __init__(self, **params: Any) -> None:
        """Set `HeuristicParams` by name.

        Raises:
            UsageError: a value is not allowed.
        """
        self._params = HeuristicParams(**params)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """See `Controller.reset`."""
        super().reset(seed)
        self._rows: list[SignalRow] = []

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`."""
        params = self._params
        self._rows.append(observation.row)
        recent = self._rows[-params.window :]
        if len(recent) < params.window:
            return certain(Action.CONTINUE), None
        can_nudge = bool(observation.legal[Action.INTERVENE])
        # a step that found nothing at all brought nothing new: here, and only here, a null counts as zero
        new = [0.0 if row.nulls.get("Nov") == "no documents" else row.values.get("Nov") for row in recent]
        known = [share for share in new if share is not None]
        if len(known) < len(new):  # as when the signals failed: no reason to stop an agent
            return certain(Action.CONTINUE), None
        novelty = float(np.mean(known))
        gains = [row.values["coverage_gain"] for row in recent if "coverage_gain" in row.values]
        circles = self._mean(recent, "Div", missing=np.inf) <= params.div_low
        if (novelty <= params.nov_low or circles) and sum(gains) <= 0:
            covered = observation.row.values.get("Cov", 0.0) >= params.cov_done
            if not covered and observation.interventions < params.patience:
                if can_nudge:
                    return certain(Action.INTERVENE), f"stagnant: Nov {novelty:.2f} over {params.window} searches"
                since = observation.since_intervention
                if since is not None and since <= params.window:
                    return certain(Action.CONTINUE), "the last intervention needs its time"
            return certain(Action.STOP), f"exhausted: Nov {novelty:.2f} over {params.window} searches"
        if can_nudge and max(row.values.get("Sim", 1.0) for row in recent) < params.sim_low:
            return certain(Action.INTERVENE), "the queries have drifted off the question"
        return certain(Action.CONTINUE), None

    @staticmethod
    def _mean(rows: list[SignalRow], name: str, missing: float) -> float:
        values = [row.values[name] for row in rows if name in row.values]
        return float(np.mean(values)) if values else missing

    @property
    def params(self) -> Mapping[str, Any]:
        """All thresholds."""
        return asdict(self._params)
