"""Multinomial logistic regression over features, in plain arrays: the agent needs no scikit-learn to run it."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller, Distribution, Legal, Observation
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.signals.features import FeatureSpec


def design_matrix(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values and masks: (N, F) with NaN for null becomes (N, 2F), nulls as 0, then 1 where a value is there."""
    there = ~np.isnan(features)
    return np.concatenate([np.where(there, features, 0.0), there.astype(np.float64)], axis=1)


class Logistic(Controller):
    """Stop when its probability reaches a threshold that was chosen on validation questions.

    Between continue and intervene the more probable one is taken.
    """

    kind: ClassVar[str] = "logistic"

    def __init__(
        self,
        features: FeatureSpec,
        weights: Mapping[str, NDArray[np.float64]],
        threshold: float = 0.5,
    ) -> None:
        """Set up from fitted arrays.

        Args:
            features: which features it reads.
            weights: ``mean`` and ``scale`` (2F,) of the design matrix; ``coef`` (3, 2F) and ``intercept`` (3,) of the
                actions' logits, an intercept of -inf for an action that was never a target.
            threshold: probability of stop from which it stops.

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
        self.threshold = threshold

    def probabilities(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities (N, 3) before the masks, of features (N, F) with NaN for null."""
        arrays = self.weights
        standard = (design_matrix(features) - arrays["mean"]) / arrays["scale"]
        logits = standard @ arrays["coef"].T + arrays["intercept"]
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`."""
        assert observation.features is not None
        probabilities = self.probabilities(observation.features[None, :])[0]
        return probabilities, f"probability of stop {probabilities[Action.STOP]:.2f}, threshold {self.threshold:.2f}"

    def choose(self, probabilities: Distribution, legal: Legal) -> Action:
        """Stop from the threshold on, or where nothing else is legal."""
        if legal[Action.STOP] and (probabilities[Action.STOP] >= self.threshold or legal.sum() == 1):
            return Action.STOP
        return Action(int(np.where(legal, probabilities, -1.0)[: Action.STOP].argmax()))

    @property
    def params(self) -> Mapping[str, Any]:
        """The threshold; features and weights are stored beside it."""
        return {"threshold": self.threshold}
