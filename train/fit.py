"""Fitting a controller to targets: cost-sensitive multinomial logistic regression, handed over as plain numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import softmax
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.train.regression import standardisation

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogisticFit:
    """A softmax over actions of `coef @ (features - mean) / scale + intercept`; needs numpy only."""

    mean: Floats  # (F,) of the features on the training rows
    scale: Floats  # (F,) their standard deviation; 1 where constant
    coef: Floats  # (A, F) zero for actions without support
    intercept: Floats  # (A,) zero for actions without support
    support: Bools  # (A,) actions that beat another at some training row; the others get probability 0
    rows: int  # training rows with an advantage
    C: float  # inverse strength of the L2 penalty, as in sklearn

    def probabilities(self, features: Floats) -> Floats:
        """Probability of each action, shape (N, A), for features of shape (N, F)."""
        scores = ((features - self.mean) / self.scale) @ self.coef.T + self.intercept
        scores = np.where(self.support, scores, -np.inf)
        return softmax(scores)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; arrays become nested lists."""
        arrays = {name: getattr(self, name).tolist() for name in ("mean", "scale", "coef", "intercept", "support")}
        return arrays | {"rows": self.rows, "C": self.C}


def action_values(continuing: Floats, stopping: Floats, intervening: Floats | None = None) -> Floats:
    """Values by action in the order of `Action`, shape (N, 3), from arrays of shape (N,).

    An action that is not available is NaN: all of `intervene` when None is given.
    """
    values = np.full((len(continuing), len(Action)), np.nan)
    values[:, Action.CONTINUE] = continuing
    values[:, Action.STOP] = stopping
    if intervening is not None:
        values[:, Action.INTERVENE] = intervening
    return values


def cost_sensitive(values: Floats) -> tuple[Ints, Ints, Floats]:
    """The classification problem behind values of actions: examples of a row, a label and a weight.

    A row is an example of every available action, weighted by how much better that is than the row's worst. Trained on
    *realised* returns (`ActionTargets.returns`), a classifier's probability of action a approaches a share of E[Q(a) -
    worst]: the worst is the same for all actions, so the most probable action is the best on average, though single
    best actions are noise. Of two actions only the better one is an example, weighted by its advantage, and the
    weighted errors estimate the return given up without bias. Rows whose actions are all equal, or that have only one,
    say nothing. Weights are scaled to mean 1, so that penalties do not depend on the unit of value.

    Args:
        values: value of each action at each row, shape (N, A); NaN for an action that is not available.

    Returns:
        Row, label and weight of each example, shape (K,) each, ordered by row, then action.

    Raises:
        DataError: no row has an advantage.
        ValueError: values that are infinite.
    """
    if np.isinf(values).any():
        raise ValueError("values must be finite, or NaN for an action that is not available")
    worst = np.where(np.isnan(values), np.inf, values).min(axis=1, keepdims=True)
    excess = np.nan_to_num(values - worst)
    row, label = np.nonzero(excess > 0)
    if not len(row):
        raise DataError(f"none of {len(values)} rows has one action better than another: there is nothing to learn")
    weight = excess[row, label]
    return row, label, weight / weight.mean()


def fit_logistic(features: Floats, values: Floats, *, C: float = 1.0) -> LogisticFit:
    """Classify the best action, each row weighing what a wrong choice would cost there: see `cost_sensitive`.

    Args:
        features: shape (N, F), no NaN.
        values: value of each action at each row, shape (N, A); NaN for an action that is not available.
        C: inverse strength of the L2 penalty on standardised features, as in sklearn.

    Returns:
        The fit. If one of two actions is best at every row, it always gets probability 1.

    Raises:
        DataError: no row has an advantage.
        ValueError: shapes that do not fit, features that are not finite, or values that are infinite.
    """
    if features.ndim != 2 or values.ndim != 2 or len(features) != len(values):
        raise ValueError(f"features (N, F) and values (N, A) need equal rows, got {features.shape}, {values.shape}")
    if not np.isfinite(features).all():
        raise ValueError("features must be finite: fill nulls and give a mask column instead")
    rows, label, weight = cost_sensitive(values)
    features = np.asarray(features[rows], dtype=np.float64)
    mean, scale = standardisation(features)
    coef, intercept = np.zeros((values.shape[1], features.shape[1])), np.zeros(values.shape[1])
    support = np.zeros(values.shape[1], dtype=bool)
    actions = np.unique(label)
    support[actions] = True
    if len(actions) > 1:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=C, max_iter=5000).fit((features - mean) / scale, label, sample_weight=weight)
        if len(actions) == 2:  # sklearn keeps one row of log-odds for the second; softmax needs a row for each
            coef[actions[1]], intercept[actions[1]] = model.coef_[0], model.intercept_[0]
        else:
            coef[actions], intercept[actions] = model.coef_, model.intercept_
    return LogisticFit(mean, scale, coef, intercept, support, rows=len(np.unique(rows)), C=C)
