import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.train.fit import action_values, fit_logistic


def rows(actions, n=300, seed=0):
    """Features with a constant column, and values in which each of `actions` is best somewhere."""
    rng = np.random.default_rng(seed)
    features = np.column_stack([rng.normal(size=(n, 3)) * [1, 10, 0.1] + [0, 5, 1], np.full(n, 0.1)])
    values = np.full((n, 3), np.nan)
    values[:, actions] = features[:, :1] * np.arange(len(actions)) + rng.normal(size=(n, len(actions)))
    return features, values


@pytest.mark.parametrize("actions", [[0, 1, 2], [0, 2], [1, 2]])
def test_plain_numbers_give_sklearns_probabilities(actions):
    features, values = rows(actions)
    fit = fit_logistic(features, values, C=0.5)
    # every row once for each action, weighted by how much better it is than the row's worst
    excess = (values - np.nanmin(values, axis=1, keepdims=True))[:, actions]
    row, position = np.nonzero(excess)
    weight, label = excess[row, position], np.array(actions)[position]
    standard = (features[row] - fit.mean) / fit.scale
    model = LogisticRegression(C=0.5, max_iter=5000).fit(standard, label, sample_weight=weight / weight.mean())
    other, _ = rows(actions, seed=1)
    probabilities = fit.probabilities(other)
    assert probabilities[:, actions] == pytest.approx(model.predict_proba((other - fit.mean) / fit.scale))
    assert (probabilities[:, [a for a in range(3) if a not in actions]] == 0).all()
    assert fit.support.tolist() == [a in actions for a in range(3)]
    assert fit.scale[3] == 1


def test_an_expensive_mistake_outweighs_many_cheap_ones():
    features = np.zeros((10, 1))
    stopping = np.zeros(10)
    continuing = np.array([5.0] + [-0.1] * 9)  # continuing pays on average, but is seldom the better label
    fit = fit_logistic(features, action_values(continuing, stopping))
    assert fit.probabilities(features)[0, Action.CONTINUE] == pytest.approx(5 / 5.9, abs=1e-4)


def test_rows_without_an_advantage_say_nothing():
    features, values = rows([0, 2])
    tied = np.tile([1.0, np.nan, 1.0], (50, 1))
    single = np.tile([np.nan, np.nan, 9.0], (50, 1))
    more = fit_logistic(np.concatenate([features, np.full((100, 4), 7.0)]), np.concatenate([values, tied, single]))
    alone = fit_logistic(features, values)
    assert more.rows == alone.rows == 300
    assert np.array_equal(more.coef, alone.coef)


def test_one_action_always_best_is_always_taken():
    fit = fit_logistic(np.ones((5, 2)), action_values(np.zeros(5), np.ones(5)))
    assert fit.probabilities(np.zeros((2, 2))).tolist() == [[0, 0, 1], [0, 0, 1]]


def test_action_values_follow_the_order_of_actions():
    values = action_values(np.array([1.0]), np.array([3.0]), np.array([2.0]))
    assert values.tolist() == [[1, 2, 3]]
    assert np.isnan(action_values(np.array([1.0]), np.array([3.0]))[0, Action.INTERVENE])


def test_the_unit_of_value_does_not_matter():
    features, values = rows([0, 1, 2])
    assert fit_logistic(features, 1000 * values).coef == pytest.approx(fit_logistic(features, values).coef, abs=1e-4)


def test_json_holds_plain_numbers():
    fit = fit_logistic(*rows([0, 2]))
    read = json.loads(json.dumps(fit.to_json(), allow_nan=False))
    assert np.array(read["coef"]).shape == (3, 4)
    assert read["support"] == [True, False, True]


def test_bad_input_is_refused():
    features, values = rows([0, 2])
    with pytest.raises(DataError, match="nothing to learn"):
        fit_logistic(features, np.ones((300, 3)))
    with pytest.raises(ValueError, match="equal rows"):
        fit_logistic(features[:-1], values)
    with pytest.raises(ValueError, match="must be finite"):
        fit_logistic(np.full((300, 4), np.nan), values)
