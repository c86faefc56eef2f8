"""Gradient-boosted trees as plain arrays: the agent needs numpy alone to run what scikit-learn has fitted."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Distribution, Observation, softmax
from stopwise.controllers.thresholded import Thresholded
from stopwise.data.errors import DataError
from stopwise.signals.features import FeatureSpec

Floats = NDArray[np.float64]

# nodes of all trees, one after the other: shape (M,) each, and how safetensors holds them
NODES = {
    "feature": np.int32,  # column that a node looks at; 0 at a leaf
    "cut": np.float64,  # values up to it go left
    "left": np.int32,  # node to go to; a leaf goes to itself
    "right": np.int32,
    "null_left": np.uint8,  # 1 where a missing value goes left
    "value": np.float64,  # what a leaf adds to its action's score
}
# (T,) first node of each tree; (T,) action whose score it adds to; (3,) scores before any tree, -inf without support
OTHERS = {"root": np.int32, "action": np.int32, "base": np.float64}


class Boosted(Thresholded):
    """A softmax over sums of regression trees on the raw features, nulls included; thresholds as in `Thresholded`.

    Equal to scikit-learn's histogram gradient boosting (LightGBM's algorithm) up to rounding; the arrays are made by
    `stopwise.train.trees`.
    """

    kind: ClassVar[str] = "boosted"
    hidden: ClassVar[int] = 0  # columns after the features

    def __init__(
        self,
        features: FeatureSpec,
        weights: Mapping[str, NDArray[Any]],
        threshold: float = 0.5,
        intervene_threshold: float | None = None,
    ) -> None:
        """Set up from arrays.

        Args:
            features: which features it reads.
            weights: the arrays named in `NODES` and `OTHERS`.
            threshold: probability of stop from which it stops.
            intervene_threshold: probability of intervening, given that it does not stop, from which it intervenes.

        Raises:
            DataError: an array is missing, or they are no trees over these features.
        """
        missing = [name for name in (*NODES, *OTHERS) if name not in weights]
        if missing:
            raise DataError(f"{self.kind}: weights {missing[0]} are missing; export the policy again")
        self.features = features
        self.weights = {
            name: np.ascontiguousarray(weights[name], dtype=dtype) for name, dtype in (NODES | OTHERS).items()
        }
        self.threshold, self.intervene_threshold = threshold, intervene_threshold
        self._check(len(features) + self.hidden)

    def _check(self, columns: int) -> None:
        """Refuse arrays that would lead astray, or round in circles."""
        arrays = self.weights
        count, root = arrays["value"].size, arrays["root"]
        left, right = arrays["left"], arrays["right"]
        shapes = {name: (count,) for name in NODES} | {"root": (root.size,), "action": (root.size,), "base": (3,)}
        sound = (
            all(arrays[name].shape == shape for name, shape in shapes.items())
            and _within(root, count)
            and _within(arrays["action"], 3)
            and _within(arrays["feature"], columns)
            and _within(left, count)
            and _within(right, count)
            and _downwards(left, right)
            and bool((arrays["base"] > -np.inf).any())
        )
        if not sound:
            raise DataError(f"{self.kind}: weights are no trees over {columns} columns; export the policy again")

    def probabilities(self, features: Floats) -> Floats:
        """See `Thresholded.probabilities`."""
        return softmax(tree_scores(self.weights, features))


class Privileged(Boosted):
    """The same learner, told the hidden state: the recall so far and the gold documents left. For replay only.

    It knows what is left but not what the run will find, so it is the honest ceiling: what a learner could do if it
    saw the state that the signals stand for. The oracle above it has seen the future.
    """

    kind: ClassVar[str] = "privileged"
    privileged = True
    hidden: ClassVar[int] = 2  # `Hindsight.recall` and `Hindsight.gold_left`

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`.

        Raises:
            ValueError: there is no hindsight, as in a live agent.
        """
        known = observation.hindsight
        if known is None:
            raise ValueError("privileged: needs hindsight, which only a replayed log has")
        assert observation.features is not None
        columns = np.concatenate([observation.features, [known.recall, known.gold_left]])
        return self._explained(self.probabilities(columns[None, :])[0])


def tree_scores(arrays: Mapping[str, NDArray[Any]], columns: Floats) -> Floats:
    """Score of each action, shape (N, 3), of columns (N, F) with NaN for null; all rows and trees walk down at once."""
    node = np.broadcast_to(arrays["root"], (len(columns), len(arrays["root"])))
    row = np.arange(len(columns))[:, None]
    while True:
        value = columns[row, arrays["feature"][node]]
        goes_left = np.where(np.isnan(value), arrays["null_left"][node] == 1, value <= arrays["cut"][node])
        below = np.where(goes_left, arrays["left"][node], arrays["right"][node])
        if np.array_equal(below, node):  # every leaf goes to itself
            break
        node = below
    added = arrays["value"][node]
    sums = [added[:, arrays["action"] == action].sum(axis=1) for action in range(len(arrays["base"]))]
    return arrays["base"] + np.column_stack(sums)


def _downwards(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether every node is a leaf, which goes to itself, or goes on to later nodes: no walk is endless."""
    index = np.arange(len(left))
    return bool((((left == index) & (right == index)) | ((left > index) & (right > index))).all())


def _within(indices: NDArray[Any], count: int) -> bool:
    """Whether all are positions in an array of that length."""
    return bool((np.asarray(indices) >= 0).all() and (np.asarray(indices) < count).all())
