import numpy as np
import pytest

from stopwise.controllers.base import Hindsight, Observation
from stopwise.controllers.boosted import Boosted, Privileged, tree_scores
from stopwise.controllers.guards import Guards
from stopwise.controllers.package import PolicyPackage
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.runtime.policy import Policy
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig, SignalRow

CLOCK = FeatureSpec(())  # two columns: t and log t
NAN = float("nan")


def stump(column=0, cut=2.5, null_left=0, left=-1.0, right=1.0, action=Action.STOP):
    """One tree of one question: stop gets `left` up to the cut, and `right` above it."""
    return {
        "feature": np.array([column, 0, 0]),
        "cut": np.array([cut, 0, 0]),
        "left": np.array([1, 1, 2]),
        "right": np.array([2, 1, 2]),
        "null_left": np.array([null_left, 0, 0]),
        "value": np.array([0, left, right]),
        "root": np.array([0]),
        "action": np.array([int(action)]),
        "base": np.array([0.0, -np.inf, 0.5]),
    }


@pytest.mark.parametrize(("null_left", "of_null"), [(0, 1.0), (1, -1.0)])
def test_one_question_by_hand(null_left, of_null):
    columns = np.array([[2.5, 0.0], [2.6, 0.0], [NAN, 0.0], [np.inf, 0.0]])
    scores = tree_scores(stump(null_left=null_left), columns)
    assert scores[:, Action.STOP].tolist() == [-0.5, 1.5, 0.5 + of_null, 1.5]  # a value at the cut goes left
    assert scores[:, Action.CONTINUE].tolist() == [0, 0, 0, 0]
    found = Boosted(CLOCK, stump(null_left=null_left)).probabilities(columns)
    assert found[0] == pytest.approx([1 / (1 + np.exp(-0.5)), 0, 1 / (1 + np.exp(0.5))])


def test_missing_against_present_is_a_question_too():
    scores = tree_scores(stump(cut=np.inf), np.array([[1e300, 0.0], [NAN, 0.0]]))
    assert scores[:, Action.STOP].tolist() == [-0.5, 1.5]


def test_without_trees_the_base_decides():
    none = {name: array[:0] for name, array in stump().items() if name != "base"}
    found = Boosted(CLOCK, none | {"base": np.array([-np.inf, -np.inf, 0.0])}).probabilities(np.zeros((2, 2)))
    assert found.tolist() == [[0, 0, 1], [0, 0, 1]]


def decide(controller, t, **options):
    features = np.array([float(t), np.log(t)])
    return controller.decide(Observation(SignalRow(t, {}, {}), features, np.ones(3, dtype=bool), **options)).action


def test_it_stops_by_its_threshold():
    controller = Boosted(CLOCK, stump(), threshold=0.6)
    assert [decide(controller, t).name for t in (1, 2, 3)] == ["CONTINUE", "CONTINUE", "STOP"]
    assert controller.params == {"threshold": 0.6}


def test_it_intervenes_by_its_second_threshold():
    arrays = stump(action=Action.INTERVENE) | {"base": np.array([0.0, 0.0, -1.0])}
    controller = Boosted(CLOCK, arrays, threshold=0.9, intervene_threshold=0.7)  # 1 / (1 + 1/e) = .73 above the cut
    assert [decide(controller, t).name for t in (1, 2, 3)] == ["CONTINUE", "CONTINUE", "INTERVENE"]
    assert controller.params == {"threshold": 0.9, "intervene_threshold": 0.7}


@pytest.mark.parametrize(
    "change",
    [
        {"left": np.array([0, 1, 2])},  # round and round
        {"left": np.array([1, 0, 2])},  # back up
        {"right": np.array([3, 1, 2])},
        {"left": np.array([-1, 1, 2])},
        {"feature": np.array([2, 0, 0])},
        {"root": np.array([3])},
        {"action": np.array([3])},
        {"action": np.array([0, 1])},
        {"base": np.zeros(2)},
        {"base": np.full(3, -np.inf)},
        {"value": np.zeros(2)},
    ],
)
def test_arrays_that_are_no_trees_are_refused(change):
    with pytest.raises(DataError, match="boosted: weights are no trees over 2 columns"):
        Boosted(CLOCK, stump() | change)


def test_missing_arrays_are_named():
    with pytest.raises(DataError, match="boosted: weights cut are missing"):
        Boosted(CLOCK, {name: array for name, array in stump().items() if name != "cut"})


class TestPrivileged:
    def test_it_is_told_what_is_left(self):
        controller = Privileged(CLOCK, stump(column=3, cut=0.5, left=1.0, right=-1.0), threshold=0.6)
        assert decide(controller, 1, hindsight=Hindsight(0.0, 0.0, 1.0, 0.0)) is Action.STOP
        assert decide(controller, 9, hindsight=Hindsight(0.0, 0.0, 0.5, 2.0)) is Action.CONTINUE
        assert decide(controller, 9, hindsight=Hindsight(0.0, 0.0)) is Action.CONTINUE  # unknown: as if some were left

    def test_it_needs_a_log(self):
        with pytest.raises(ValueError, match="privileged: needs hindsight"):
            decide(Privileged(CLOCK, stump()), 1)

    def test_a_live_agent_refuses_it(self):
        info = SignalInfo(SignalConfig(signals=("Nov",)), None, (), None)
        package = PolicyPackage("ceiling", Privileged(CLOCK, stump()), Guards(), info)
        with pytest.raises(UsageError, match="policy ceiling: needs hindsight, which a live agent does not have"):
            Policy(package)
