"""Intervention model `uplift`: a fitted probability of jumping to the run's next productive step.

With probability u(x) an intervention brings, for one search, what the log's next productive step brings, and the run
goes on from there; otherwise nothing changes but that a search is spent. A run can never gain more than its own log
held, so the model cannot show that interventions find what the agent alone would not: it is a training aid.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError
from stopwise.data.files import read_json, write_json
from stopwise.envs.interventions import Effect, Place
from stopwise.signals.features import FeatureSpec, build_features
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]


KIND = "stopwise.uplift"


@dataclass(frozen=True)
class UpliftFit:
    """Logistic regression of "the injected search or the next one is productive" on features, in plain arrays."""

    features: FeatureSpec
    mean: Floats  # (2F,) of the design matrix: values, then masks
    scale: Floats  # (2F,)
    coef: Floats  # (2F,)
    intercept: float
    interventions: int  # that it was fitted on
    productive: int  # of those
    horizon: int  # searches after an intervention that count for it

    def probability(self, features: Floats) -> Floats:
        """u(x), shape (N,), for features (N, F) with NaN for null."""
        there = ~np.isnan(features)
        design = np.concatenate([np.where(there, features, 0.0), there], axis=1)
        score = ((design - self.mean) / self.scale) @ self.coef + self.intercept
        return 1.0 / (1.0 + np.exp(-score))


def write_fit(path: Path, fit: UpliftFit) -> None:
    """Write a fit as JSON, atomically."""
    arrays = {name: getattr(fit, name).tolist() for name in ("mean", "scale", "coef")}
    write_json(path, {"kind": KIND, **asdict(fit), **arrays})


def read_fit(path: Path) -> UpliftFit:
    """Read a fit.

    Raises:
        DataError: the file is missing or is no fit.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("kind", None) != KIND:
        raise DataError(f"{path}: is no uplift fit; make one with `stopwise train configs/uplift.yaml`")
    try:
        spec = FeatureSpec(tuple(value.pop("features")["signals"]))
        arrays = {name: np.asarray(value.pop(name), dtype=np.float64) for name in ("mean", "scale", "coef")}
        fit = UpliftFit(features=spec, **arrays, **value)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: is inconsistent ({error}); train it again") from error
    if any(array.shape != (2 * len(spec),) for array in arrays.values()):
        raise DataError(f"{path}: its arrays do not fit its {len(spec)} features; train it again")
    return fit


class Uplift:
    """See the module's docstring. The environment must use the fit's features."""

    name: ClassVar[str] = "uplift"
    available: ClassVar[bool] = True

    def __init__(self, fit: UpliftFit) -> None:
        """Take a fit made by `stopwise.train.uplift`."""
        self.fit = fit

    def allows(self, place: Place) -> bool:
        """Always."""
        return True

    def intervene(self, place: Place, generator: np.random.Generator) -> Effect | None:
        """Jump to the next productive step with probability u(x), or stay."""
        drawn = generator.random()
        ahead = next_productive(place)
        if ahead is not None and drawn < float(self.fit.probability(place.features[None, :])[0]):
            return Effect(ahead)
        return Effect(place.row)


def next_productive(place: Place) -> int | None:
    """The first later row of the run at which recall is higher than here; None if there is none."""
    stop = int(place.table.offsets[place.episode + 1])
    recall = place.table.label("recall")[place.row : stop]
    higher = np.flatnonzero(recall > recall[0])
    return place.row + int(higher[0]) if len(higher) else None


@dataclass(frozen=True, slots=True)
class Jumps:
    """What intervening does at every row of a table, as the model draws it."""

    probability: Floats  # (N,) of jumping: u(x), or 0 where no later step is productive
    target: NDArray[np.int64]  # (N,) row jumped to: the run's next productive one, or the row itself
    gain: Floats  # (N,) new recall at the target; 0 without gold


def jumps(table: SignalTable, fit: UpliftFit) -> Jumps:
    """The model's outcomes at all rows at once; equal to `Uplift.intervene` at each.

    Raises:
        DataError: the table lacks a signal of the fit's features.
    """
    recall = table.label("recall")
    rows, episode = np.arange(len(recall)), table.episode_of_row
    # recall never falls within a run, so the next higher one is at the next rise
    rises = np.flatnonzero((recall[1:] > recall[:-1]) & (episode[1:] == episode[:-1])) + 1
    following = np.append(rises, len(recall))[np.searchsorted(rises, rows, side="right")]
    ahead = following < table.offsets[1:][episode]
    target = np.where(ahead, following, rows)
    known = np.nan_to_num(recall)
    probability = np.where(ahead, fit.probability(build_features(table, fit.features)), 0.0)
    return Jumps(probability, target, known[target] - known)
