"""Multinomial logistic regression over features, in plain arrays: the agent needs no scikit-learn to run it."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import softmax
from stopwise.controllers.thresholded import Thresholded
from stopwise.data.errors import DataError
from stopwise.signals.features import FeatureSpec


def design_matrix(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values and masks: (N, F) with NaN for null becomes (N, 2F), nulls as 0, then 1 where a value is there."""
    there = ~np.isnan(features)
    return np.concatenate([np.where(there, features, 0.0), there.astype(np.float64)], axis=1)


class Logistic(Thresholded):
    """A softmax over actions, linear in the features and their masks; thresholds as in `Thresholded`."""

    kind: ClassVar[str] = "logistic"

    def __init__(
        self,
        features: FeatureSpec,
        weights: Mapping[str, NDArray[np.float64]],
        threshold: float = 0.5,
        intervene_threshold: float | None = None,
    ) -> None:
        """Set up from fitted arrays.

        Args:
            features: which features it reads.
            weights: ``mean`` and ``scale`` (2F,) of the design matrix; ``coef`` (3, 2F) and ``intercept`` (3,) of the
                actions' logits, an intercept of -inf for an action that was never a target.
            threshold: probability of stop from which it stops.
            intervene_threshold: probability of intervening, given that it does not stop, from which it intervenes.

        Raises:
            DataError: an array is missing or has another shape.
        """
        columns = 2 * len(features)
        shapes = {"mean": (columns,), "scale": (columns,), "coef": (3, columns), "intercept": (3,)}
        for name, shape in shapes.items():
            found = weights[name].shape if name in weights else "nothing"
            if found != shape:
                raise DataError(
                    f"logistic: weights {name} are {found}; expected shape {shape}; export the policy again"
                )
        self.features = features
        # safetensors writes the buffer as it lies, so another memory order would come back transposed
        self.weights = {name: np.ascontiguousarray(weights[name], dtype=np.float64) for name in shapes}
        self.threshold, self.intervene_threshold = threshold, intervene_threshold

    def probabilities(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities (N, 3) before the masks, of features (N, F) with NaN for null."""
        arrays = self.weights
        standard = (design_matrix(features) - arrays["mean"]) / arrays["scale"]
        logits = standard @ arrays["coef"].T + arrays["intercept"]
        return softmax(logits)
