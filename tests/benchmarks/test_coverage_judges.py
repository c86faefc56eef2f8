"""The measures of benchmarks/coverage_judges.py against hand-made figures and scikit-learn."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from stopwise.data.records import Criterion, Document, Step, Trajectory
from stopwise.signals.coverage import GoldJudge

PATH = Path(__file__).parents[2] / "benchmarks" / "coverage_judges.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("coverage_judges", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _judged(script, question, status, gold):
    return script.Judged(np.array(question), np.array(status), np.array(gold), np.array(status))


def test_kappa_is_scikit_learns(script):
    chance = np.random.default_rng(0)
    gold, status = chance.integers(0, 3, 200) / 2, chance.integers(0, 3, 200) / 2
    status[:100] = gold[:100]
    found = script.agreement(_judged(script, chance.integers(0, 7, 200), status, gold))
    expected = cohen_kappa_score((2 * gold).astype(int), (2 * status).astype(int), weights="linear")
    assert found["kappa"]["value"] == pytest.approx(expected)
    assert found["agreement"]["value"] == pytest.approx((gold == status).mean())
    low, high = found["kappa"]["ci"]
    assert low < expected < high


def test_a_perfect_judge_and_one_that_sees_nothing(script):
    gold = [0.0, 0.5, 1.0, 0.0]
    perfect = script.agreement(_judged(script, [0, 0, 1, 1], gold, gold))
    assert (perfect["agreement"]["value"], perfect["kappa"]["value"], perfect["auroc"]["value"]) == (1, 1, 1)
    assert perfect["confusion"] == [[2, 0, 0], [0, 1, 0], [0, 0, 1]]
    blind = script.agreement(_judged(script, [0, 0, 1, 1], [0.0] * 4, gold))
    assert (blind["agreement"]["value"], blind["kappa"]["value"], blind["auroc"]["value"]) == (0.5, 0, 0.5)


def test_one_step_too_far_weighs_half(script):
    # disagreement 1/2 of weight in 1 of 4; by chance: uniform margins of gold (2,1,1)/4 and judge (1,2,1)/4
    found = script.agreement(_judged(script, [0, 0, 1, 1], [0.0, 0.5, 0.5, 1.0], [0.0, 0.0, 0.5, 1.0]))
    by_chance = 0.5 * (2 * 2 + 1 * 1 + 1 * 1 + 1 * 2) / 16 + (2 * 1 + 1 * 1) / 16
    assert found["kappa"]["value"] == pytest.approx(1 - (0.5 / 4) / by_chance)


def test_each_criterion_after_each_search_is_one_observation(script):
    run = Trajectory(
        "r",
        "q",
        "Which?",
        (Step("search", documents=(Document("a", "A."),)), Step("search", documents=(Document("b", "B."),))),
        criteria=(Criterion("one", ("a",)), Criterion("two", ("a", "b"))),
    )
    judged = script.judge_runs([run], lambda run: GoldJudge(run.criteria or ()))
    assert judged.gold.tolist() == judged.status.tolist() == [1.0, 0.5, 1.0, 1.0]
    assert script.judge_runs([run], script.Uncovered).status.tolist() == [0.0] * 4


def test_thresholds_of_the_highest_kappa(script):
    score = np.array([0.1, 0.2, 0.5, 0.6, 0.8, 0.9] * 5)
    gold = np.array([0.0, 0.0, 0.5, 0.5, 1.0, 1.0] * 5)
    judged = script.Judged(np.zeros(30, dtype=int), np.zeros(30), gold, score)
    found = script.highest_kappa(judged)
    assert (0.2 < found.partial <= 0.5, 0.6 < found.full <= 0.8) == (True, True)
    assert script.agreement(script.anew(judged, found))["kappa"]["value"] == 1
