import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from stopwise.controllers.base import Observation
from stopwise.controllers.logistic import Logistic, design_matrix
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalRow

SPEC = FeatureSpec(("Nov",))
WIDTH = len(SPEC)


def fitted(classes=3, seed=0):
    """sklearn's model and ours with its numbers, on features with gaps."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(200, WIDTH))
    features[rng.random(features.shape) < 0.2] = np.nan
    design = design_matrix(features)
    mean, scale = design.mean(axis=0), design.std(axis=0)
    model = LogisticRegression(max_iter=2000).fit((design - mean) / scale, rng.integers(0, classes, 200))
    weights = {"mean": mean, "scale": scale, "coef": model.coef_, "intercept": model.intercept_}
    return model, weights, features


def test_probabilities_are_sklearns():
    model, weights, features = fitted()
    standard = (design_matrix(features) - weights["mean"]) / weights["scale"]
    assert Logistic(SPEC, weights).probabilities(features) == pytest.approx(model.predict_proba(standard), abs=1e-12)


def test_an_action_without_support_has_probability_zero():
    _, weights, features = fitted()
    weights["intercept"] = np.array([0.0, -np.inf, 0.0])
    probabilities = Logistic(SPEC, weights).probabilities(features)
    assert (probabilities[:, Action.INTERVENE] == 0).all()
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(200))


def test_the_design_holds_values_then_masks():
    assert design_matrix(np.array([[1.5, np.nan]])).tolist() == [[1.5, 0, 1, 0]]


def decide(logits, threshold, legal=(True, True, True)):
    weights = {"mean": np.zeros(2 * WIDTH), "scale": np.ones(2 * WIDTH), "coef": np.zeros((3, 2 * WIDTH))}
    controller = Logistic(SPEC, weights | {"intercept": np.array(logits)}, threshold)
    return controller.decide(Observation(SignalRow(1, {}, {}), np.zeros(WIDTH), np.array(legal))).action.name


def test_it_stops_from_the_threshold_on():
    even = np.log([0.25, 0.25, 0.5])
    assert decide(even, 0.5) == "STOP"
    assert decide(even, 0.51) == "CONTINUE"
    assert decide(np.log([0.2, 0.3, 0.5]), 0.51) == "INTERVENE"
    assert decide(even, 0.6, legal=(True, False, True)) == "STOP"  # 2 to 1 when intervening is masked
    assert decide(even, 0.1, legal=(True, True, False)) == "CONTINUE"
    assert decide(even, 2.0, legal=(False, False, True)) == "STOP"


def test_weights_of_another_shape_are_refused():
    _, weights, _ = fitted()
    with pytest.raises(DataError, match=r"weights coef are \(3, 16\); expected shape \(3, 28\)"):
        Logistic(FeatureSpec(("Nov", "Sim")), weights | {"mean": np.zeros(28), "scale": np.ones(28)})
    with pytest.raises(DataError, match="weights scale are nothing"):
        Logistic(SPEC, {name: array for name, array in weights.items() if name != "scale"})
