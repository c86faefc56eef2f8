"""Fitting boosted trees to targets: scikit-learn fits, plain arrays are handed over, and both are held equal."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.boosted import NODES, OTHERS, tree_scores
from stopwise.data.records import Action
from stopwise.train.fit import cost_sensitive
from stopwise.train.regression import one_thread_if_small

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

BINS = 63  # cuts tried in a column; at scikit-learn's 255, finding them takes ten times as long as growing the trees


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """How trees are grown; the number of rounds is chosen afterwards, from one fit."""

    leaves: int = 8  # of each tree
    rate: float = 0.05  # shrinkage of each tree
    min_leaf: int = 50  # fewest rows in a leaf


def fit_trees(columns: Floats, values: Floats, rounds: int, options: TreeOptions, seed: int) -> Arrays:
    """Classify the best action, each row weighing what a wrong choice would cost: see `cost_sensitive`.

    Args:
        columns: shape (N, F), NaN for null.
        values: value of each action at each row, shape (N, 3); NaN for an action that is not available.
        rounds: boosting rounds; one tree a round, or three where all three actions beat another somewhere.
        options: size and shrinkage of the trees.
        seed: of scikit-learn.

    Returns:
        The arrays of `stopwise.controllers.boosted`, trees in the order of their rounds.

    Raises:
        DataError: no row has an advantage.
        RuntimeError: the arrays do not say what scikit-learn's model says; its insides have changed.
    """
    rows, label, weight = cost_sensitive(values)
    columns = np.asarray(columns[rows], dtype=np.float64)
    actions = np.unique(label)
    if len(actions) == 1:  # one action is always best: no tree is needed to say so
        base = np.full(len(Action), -np.inf)
        base[actions] = 0.0
        return {name: np.zeros(0, dtype=dtype) for name, dtype in (NODES | OTHERS).items()} | {"base": base}
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=rounds,
        learning_rate=options.rate,
        max_leaf_nodes=options.leaves,
        min_samples_leaf=options.min_leaf,
        max_bins=BINS,
        early_stopping=False,  # pyright: ignore[reportArgumentType]
        random_state=seed,
    )
    columns[:, np.isnan(columns).all(axis=0)] = 0.0  # never there: no split is on it, and scikit-learn cannot bin it
    with one_thread_if_small(len(columns)):
        model.fit(columns, label, sample_weight=weight)
        arrays = _arrays(model, actions)
        _check_equal(model, arrays, columns, actions)
    return arrays


def first_rounds(arrays: Arrays, rounds: int) -> Arrays:
    """The arrays of the first rounds alone, as if no more had been grown."""
    per_round = max(1, len(np.unique(arrays["action"])))
    trees = min(rounds * per_round, len(arrays["root"]))
    stop = int(arrays["root"][trees]) if trees < len(arrays["root"]) else len(arrays["value"])
    cut = {name: arrays[name][:stop] for name in NODES}
    return cut | {"root": arrays["root"][:trees], "action": arrays["action"][:trees], "base": arrays["base"]}


def _arrays(model: Any, actions: NDArray[np.int64]) -> Arrays:
    """Read scikit-learn's trees; its `nodes` hold children by their index within the tree."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in NODES}
    roots, owners, start = [], [], 0
    for trees in model._predictors:
        # two classes have one tree a round, for the log-odds of the second
        for action, tree in zip(actions[1:] if len(trees) == 1 else actions, trees, strict=True):
            nodes = tree.nodes
            index = np.arange(len(nodes))
            leaf = nodes["is_leaf"] == 1
            parts["feature"].append(np.where(leaf, 0, nodes["feature_idx"]))
            parts["cut"].append(np.where(leaf, 0.0, nodes["num_threshold"]))
            parts["left"].append(start + np.where(leaf, index, nodes["left"]))
            parts["right"].append(start + np.where(leaf, index, nodes["right"]))
            parts["null_left"].append(np.where(leaf, 0, nodes["missing_go_to_left"]))
            parts["value"].append(np.where(leaf, nodes["value"], 0.0))
            roots.append(start)
            owners.append(action)
            start += len(nodes)
    base = np.full(len(Action), -np.inf)
    baseline = np.ravel(model._baseline_prediction)
    base[actions] = [0.0, *baseline] if len(actions) == 2 else baseline
    arrays: Arrays = {name: np.concatenate(part).astype(NODES[name]) for name, part in parts.items()}
    return arrays | {
        "root": np.array(roots, dtype=OTHERS["root"]),
        "action": np.array(owners, dtype=OTHERS["action"]),
        "base": base,
    }


def _check_equal(model: Any, arrays: Arrays, columns: Floats, actions: NDArray[np.int64]) -> None:
    """The trees are read from private fields of scikit-learn: hold them to what it predicts itself."""
    expected = np.asarray(model.decision_function(columns))
    found = tree_scores(arrays, columns)[:, actions]
    found = found[:, 1] - found[:, 0] if expected.ndim == 1 else found
    if not np.allclose(found, expected, rtol=0, atol=1e-9):
        raise RuntimeError("trees read from this version of scikit-learn differ from its own predictions")
