"""Fitting a controller to targets: cost-sensitive multinomial logistic regression, handed over as plain numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.train.regression import standardisation

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LogisticFit:
    """A softmax over actions of `coef @ (features - mean) / scale + intercept`; needs numpy only."""

    mean: Floats  # (F,) of the features on the training rows
    scale: Floats  # (F,) their standard deviation; 1 where constant
    coef: Floats  # (A, F) zero for actions without support
    intercept: Floats  # (A,) zero for actions without support
    support: Bools  # (A,) actions that were best at some training row; the others get probability 0
    rows: int  # training rows with an advantage
    C: float  # inverse strength of the L2 penalty, as in sklearn

    def probabilities(self, features: Floats) -> Floats:
        """Probability of each action, shape (N, A), for features of shape (N, F)."""
        scores = ((features - self.mean) / self.scale) @ self.coef.T + self.intercept
        scores = np.where(self.support, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

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


def fit_logistic(features: Floats, values: Floats, *, C: float = 1.0) -> LogisticFit:
    """Classify the best action, each row weighing what a wrong choice would cost there.

    The label of a row is its best available action and its weight the advantage over the second best. With *realised*
    returns as values (`return_continue`, `return_stop`), the weighted errors are an unbiased estimate of the return
    that a policy gives up, whereas single labels are noise. Rows without an advantage (ties, a single action) say
    nothing and are left out. Weights are scaled to mean 1, so that C does not depend on the unit of value.

    Args:
        features: shape (N, F), no NaN.
        values: value of each action at each row, shape (N, A); NaN for an action that is not available.
        C: inverse strength of the L2 penalty on standardised features, as in sklearn.

    Returns:
        The fit. If one action is best at every row, it always gets probability 1.

    Raises:
        DataError: no row has an advantage.
        ValueError: shapes that do not fit, features that are not finite, or values that are infinite.
    """
    if features.ndim != 2 or values.ndim != 2 or len(features) != len(values):
        raise ValueError(f"features (N, F) and values (N, A) need equal rows, got {features.shape}, {values.shape}")
    if not np.isfinite(features).all() or np.isinf(values).any():
        raise ValueError("features must be finite, and values finite or NaN for an action that is not available")
    ranked = np.sort(np.where(np.isnan(values), -np.inf, values), axis=1)
    comparable = np.isfinite(ranked[:, -2])
    advantage = np.zeros(len(values))
    advantage[comparable] = ranked[comparable, -1] - ranked[comparable, -2]
    used = advantage > 0
    if not used.any():
        raise DataError(f"none of {len(values)} rows has one action better than another: there is nothing to learn")
    features, weight = np.asarray(features[used], dtype=np.float64), advantage[used] / advantage[used].mean()
    label = np.nanargmax(values[used], axis=1)
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
    return LogisticFit(mean, scale, coef, intercept, support, rows=int(used.sum()), C=C)
