"""How uncertain reasoning usually is, given how scattered the evidence was ([DS-MCM] eq. 6 to 8)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_STEPS = 20  # below this a line and a spread are not worth their names
SAME = 1e-9  # SE values closer than this are one value, nats


@dataclass(frozen=True, slots=True)
class Calibration:
    """RE = slope * SE + intercept for one agent and one source of RE, and the spread around it."""

    slope: float  # a in eq. 6, at least 0
    intercept: float  # b in eq. 6, nats
    sigma: float  # standard deviation of the residuals it was fitted on, nats
    steps: int  # number of steps it was fitted on
    re_mean: float | None = None  # of RE on these steps, nats: what the ablation without SE compares with
    re_sigma: float | None = None  # standard deviation of RE on these steps, nats

    def residual(self, searching_entropy: float, reasoning_entropy: float) -> float:
        """Eq. 7: RE - (a SE + b), in nats."""
        return reasoning_entropy - (self.slope * searching_entropy + self.intercept)


# keyed by agent ("" for an unnamed one) and source of RE ("logged" or "scored:<model>"), which never mix
Calibrations = Mapping[tuple[str, str], Calibration]


def fit_calibration(searching: NDArray[np.float64], reasoning: NDArray[np.float64]) -> Calibration | None:
    """Least squares with a slope of at least 0, on steps of successful training trajectories.

    Args:
        searching: SE of the documents that each thought had read, shape (n,).
        reasoning: RE of that thought, shape (n,).

    Returns:
        The calibration, or None with fewer than `MIN_STEPS` steps.
    """
    if len(searching) < MIN_STEPS:
        return None
    spread = searching - searching.mean()
    variance = float((spread * spread).sum())
    varies = float(np.ptp(searching)) > SAME  # a constant SE less its rounded mean is noise, and would get a slope
    # with a negative best slope, the constrained optimum is the flat line through the mean
    slope = max(0.0, float((spread * (reasoning - reasoning.mean())).sum()) / variance) if varies else 0.0
    intercept = float(reasoning.mean() - slope * searching.mean())
    residuals = reasoning - (slope * searching + intercept)
    return Calibration(
        slope, intercept, float(residuals.std()), len(searching), float(reasoning.mean()), float(reasoning.std())
    )
