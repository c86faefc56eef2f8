"""Features: what a learned controller sees after step t, computed from the signals of steps 1 to t only."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError
from stopwise.signals.definitions import BY_NAME, SIGNALS
from stopwise.signals.table import SignalTable
from stopwise.signals.tracker import SignalConfig, SignalRow

VERSION = 1
RECENT = 3  # steps in the recent mean

# of each signal: its value, its change since the last step, its mean over the last three steps and over the run,
# its largest value so far, and the steps since that was last raised
TRANSFORMS = ("value", "change", "recent", "mean", "best", "streak")
TIME = ("t", "log_t")


@dataclass(frozen=True)
class FeatureSpec:
    """Names and order of the features; versioned, stored in every policy package.

    The run's length, how it ended, the budget left and the gold are never features.
    """

    signals: tuple[str, ...]
    version: int = VERSION

    def __post_init__(self) -> None:
        unknown = [name for name in self.signals if name not in BY_NAME]
        if unknown:
            raise UsageError(f"features: unknown signal {unknown[0]!r}; expected some of {', '.join(SIGNALS)}")
        twice = [name for index, name in enumerate(self.signals) if name in self.signals[:index]]
        if twice:
            raise UsageError(f"features: {twice[0]!r} is named twice")
        if self.version != VERSION:
            raise UsageError(f"features: version {self.version}; this stopwise computes version {VERSION}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The F feature names, in order."""
        return TIME + tuple(f"{signal}.{transform}" for signal in self.signals for transform in TRANSFORMS)

    def __len__(self) -> int:
        return len(self.names)


class FeatureBuilder:
    """Streaming features of one run; the batch version is this, in a loop."""

    def __init__(self, spec: FeatureSpec) -> None:
        """Start a run."""
        self._spec = spec
        count = len(spec.signals)
        self._history: list[NDArray[np.float64]] = []  # the last RECENT rows of values, each (S,)
        self._sum = np.zeros(count)
        self._present = np.zeros(count)
        self._best = np.full(count, -np.inf)
        self._streak = np.full(count, np.nan)

    def push(self, row: SignalRow) -> NDArray[np.float64]:
        """Take in the next row; returns the features, shape (F,), NaN where a value is null."""
        value = np.array([row.values.get(name, np.nan) for name in self._spec.signals], dtype=np.float64)
        there = ~np.isnan(value)
        change = value - self._history[-1] if self._history else np.full(len(value), np.nan)
        self._history = [*self._history[1 - RECENT :], value]
        filled = np.where(there, value, 0.0)
        self._sum += filled
        self._present += there
        raised = there & (value > self._best)
        self._streak = np.where(raised, 0.0, self._streak + 1.0)
        self._best = np.where(raised, value, self._best)
        recent = np.stack(self._history)
        counts = (~np.isnan(recent)).sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is the NaN that says "no value yet"
            recent_mean = np.nansum(recent, axis=0) / counts
            mean = self._sum / self._present
        best = np.where(self._present > 0, self._best, np.nan)
        per_signal = np.stack([value, change, recent_mean, mean, best, self._streak], axis=1)
        return np.concatenate([[row.t, np.log(row.t)], per_signal.ravel()])


def build_features(table: SignalTable, spec: FeatureSpec) -> NDArray[np.float64]:
    """Features of every decision point of a table, shape (N, F), NaN where a value is null.

    Raises:
        DataError: the table lacks a signal of the spec.
    """
    for name in spec.signals:
        table.column(name)
    features = np.empty((len(table.values), len(spec)))
    for start, stop in zip(table.offsets[:-1], table.offsets[1:], strict=True):
        builder = FeatureBuilder(spec)
        for index in range(start, stop):
            features[index] = builder.push(table.row(index))
    return features


def check_privilege(spec: FeatureSpec, config: SignalConfig, *, privileged: bool) -> None:
    """Refuse coverage by gold as a feature: it all but equals the label.

    Raises:
        UsageError: the spec uses coverage, the table's judge is ``gold``, and nobody asked for privilege.
    """
    if config.coverage_judge == "gold" and not privileged and {"Cov", "coverage_gain"} & set(spec.signals):
        raise UsageError(
            "features: Cov comes from the judge `gold`, which all but equals the label; compute the signals with the "
            "judge `encoder`, leave Cov out, or say `privileged: true` for an upper bound"
        )
