"""The regressors behind fitted targets: ridge in closed form, or boosted trees."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predict = Callable[[Floats], Floats]  # features (M, F) to values (M, Y)
Fit = Callable[[Floats, Floats], Predict]  # features (N, F) and values (N, Y) to a predictor
RegressorName = Literal["ridge", "boosted"]

THREADS_FROM_ROWS = 20_000  # boosted trees use several threads from here on


def standardisation(features: Floats) -> tuple[Floats, Floats]:
    """Mean and scale of each column, shapes (F,): standard deviation over rows, 1 where a column is constant."""
    mean = features.mean(axis=0)
    constant = features.max(axis=0) == features.min(axis=0)  # their computed deviation may be a tiny number, not 0
    return mean, np.where(constant, 1.0, features.std(axis=0))


def fit_ridge(features: Floats, values: Floats, strength: float) -> Predict:
    """Ridge regression on standardised features, the intercept free: min |y - b - Zw|^2 + strength |w|^2.

    Args:
        features: shape (N, F), N >= 1.
        values: shape (N, Y); the columns are fitted apart, with one factorisation.
        strength: above 0, in units of rows: the weight of that many rows against each standardised coefficient.
    """
    mean, scale = standardisation(features)
    standard = (features - mean) / scale
    level = values.mean(axis=0)
    gram = standard.T @ standard + strength * np.eye(features.shape[1])
    coefficients = np.linalg.solve(gram, standard.T @ (values - level))
    return lambda other: level + ((other - mean) / scale) @ coefficients


def fit_boosted(features: Floats, values: Floats, seed: int) -> Predict:
    """Histogram gradient-boosted trees (sklearn), one model for each column of `values`, shape (N, Y)."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def predict_by(model: HistGradientBoostingRegressor, other: Floats) -> Floats:
        with one_thread_if_small(len(other)):
            return model.predict(other)

    predictors: list[Predict] = []
    for column in values.T:
        if column.max() == column.min():  # nothing to learn, and a constant is exact
            predictors.append(lambda other, level=column[0]: np.full(len(other), level))
            continue
        # Small trees and few rounds: a turn has hundreds of rows, and what is left to gain is mostly noise.
        model = HistGradientBoostingRegressor(
            max_iter=60,
            learning_rate=0.08,
            max_leaf_nodes=8,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=seed,
        )
        with one_thread_if_small(len(column)):
            model.fit(features, column)
        predictors.append(partial(predict_by, model))
    return lambda other: np.column_stack([predict(other) for predict in predictors])


def one_thread_if_small(rows: int) -> AbstractContextManager[Any]:
    """Keep boosted trees to one thread on few rows: there threads wait for each other, on a busy machine for long."""
    from threadpoolctl import threadpool_limits  # comes with sklearn

    return threadpool_limits(1 if rows < THREADS_FROM_ROWS else None)


def regressor(name: RegressorName, ridge: float, seed: int) -> Fit:
    """The fitting function of that name; `ridge` is the strength of `ridge`, `seed` that of `boosted`.

    Raises:
        ValueError: an unknown name, or a ridge strength that is not above 0.
    """
    if name == "ridge":
        if not ridge > 0:
            raise ValueError(f"ridge strength must be above 0, got {ridge}")
        return lambda features, values: fit_ridge(features, values, ridge)
    if name == "boosted":
        return lambda features, values: fit_boosted(features, values, seed)
    raise ValueError(f"regressor {name!r} is not one of ridge, boosted")
