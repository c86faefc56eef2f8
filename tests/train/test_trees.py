import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from stopwise.controllers.boosted import Boosted, Privileged, tree_scores
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.signals.features import FeatureSpec
from stopwise.train.fit import cost_sensitive
from stopwise.train.trees import BINS, TreeOptions, first_rounds, fit_trees

OPTIONS = TreeOptions(leaves=6, rate=0.2, min_leaf=10)
SPEC = FeatureSpec(("Nov",))  # eight columns


def problem(actions, seed=0, rows=600):
    """Columns of which some have gaps, one of them in a telling way, and noisy values of some actions."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(rows, len(SPEC)))
    columns[rng.random(rows) < 0.4, 0] = np.nan
    columns[rng.random(rows) < 0.1, 1] = np.nan
    columns[:, 2] = np.round(columns[:, 2])  # ties
    values = np.full((rows, 3), np.nan)
    for number, action in enumerate(actions):
        signal = np.where(np.isnan(columns[:, 0]), 1.0, columns[:, number + 1])
        values[:, action] = np.nan_to_num(signal) + rng.normal(size=rows)
    return columns, values


def reference(columns, values, rounds):
    rows, label, weight = cost_sensitive(values)
    model = HistGradientBoostingClassifier(
        max_iter=rounds,
        learning_rate=OPTIONS.rate,
        max_leaf_nodes=OPTIONS.leaves,
        min_samples_leaf=OPTIONS.min_leaf,
        max_bins=BINS,
        early_stopping=False,  # pyright: ignore[reportArgumentType]
        random_state=0,
    )
    return model.fit(columns[rows], label, sample_weight=weight)


@pytest.mark.parametrize("actions", [[0, 1, 2], [0, 2], [1, 2]])
def test_plain_arrays_give_sklearns_probabilities(actions):
    columns, values = problem(actions)
    controller = Boosted(SPEC, fit_trees(columns, values, 30, OPTIONS, 0))
    other, _ = problem(actions, seed=1)
    other[:50, 5] = np.nan  # never missing in training: sklearn sends it where most rows went
    other[50:60] = np.nan
    found = controller.probabilities(other)
    expected = reference(columns, values, 30).predict_proba(other)
    assert found[:, actions] == pytest.approx(expected, abs=1e-9)
    assert (found[:, [action for action in range(3) if action not in actions]] == 0).all()


@pytest.mark.parametrize("actions", [[0, 1, 2], [0, 2]])
def test_the_beginning_of_a_fit_is_a_shorter_fit(actions):
    columns, values = problem(actions)
    arrays = fit_trees(columns, values, 20, OPTIONS, 0)
    short = fit_trees(columns, values, 7, OPTIONS, 0)
    cut = first_rounds(arrays, 7)
    assert cut.keys() == short.keys()
    assert all(np.array_equal(cut[name], short[name]) for name in short)
    assert all(np.array_equal(first_rounds(arrays, 99)[name], arrays[name]) for name in arrays)


def test_one_action_always_best_needs_no_tree():
    arrays = fit_trees(np.zeros((5, 2)), np.tile([0.0, np.nan, 1.0], (5, 1)), 10, OPTIONS, 0)
    assert len(first_rounds(arrays, 3)["root"]) == 0
    assert Boosted(FeatureSpec(()), arrays).probabilities(np.zeros((2, 2))).tolist() == [[0, 0, 1], [0, 0, 1]]


def test_the_best_action_on_average_is_found_though_single_values_are_noise():
    rng = np.random.default_rng(0)
    good = rng.random(4000) < 0.5
    values = rng.normal(size=(4000, 3)) * [1.0, 1.0, 0.0]  # stop is never noisy, and never the best of three by luck
    values[:, Action.STOP] += 0.2
    values[good, Action.INTERVENE] += 0.5
    found = tree_scores(fit_trees(good[:, None].astype(np.float64), values, 40, OPTIONS, 0), np.array([[0.0], [1.0]]))
    assert found.argmax(axis=1).tolist() == [Action.STOP, Action.INTERVENE]


def test_a_column_that_is_never_there_says_nothing():
    columns, values = problem([0, 2])
    columns[:, 3] = np.nan
    arrays = fit_trees(columns, values, 5, OPTIONS, 0)
    assert 3 not in arrays["feature"]


def test_nothing_to_learn_is_said():
    with pytest.raises(DataError, match="nothing to learn"):
        fit_trees(np.zeros((5, 2)), np.zeros((5, 3)), 10, OPTIONS, 0)


def test_hidden_columns_come_after_the_features():
    columns, values = problem([0, 2])
    arrays = fit_trees(columns, values, 5, OPTIONS, 0)
    with pytest.raises(DataError, match="no trees over 2 columns"):
        Boosted(FeatureSpec(()), arrays)
    assert Privileged(SPEC, arrays).hidden == 2
