"""Agreement against figures by hand and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from stopwise.evaluation.agreement import Weights, agreement, confusions, disagreement, weighted_kappa


def _of(first, second, answers, weights: Weights = "none", questions=None, **options):
    codes = np.arange(len(first)) if questions is None else np.array(questions)
    return agreement(np.array(first), np.array(second), codes, answers, weights, **options)


def test_the_textbook_example():
    # 50 cases: both yes 20, both no 15, 5 and 10 apart; by chance .5 x .6 + .5 x .4 = .5, found .7
    first = [1] * 20 + [1] * 5 + [0] * 10 + [0] * 15
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    found = _of(first, second, [0, 1])
    assert found["agreement"]["value"] == pytest.approx(0.7)
    assert found["kappa"]["value"] == pytest.approx(0.4)
    assert found["confusion"] == [[15, 10], [5, 20]]
    # the large-sample standard error of Cohen (1960): sqrt(.7 x .3 / (50 x .25)) = .1296
    low, high = found["kappa"]["ci"]
    assert low == pytest.approx(0.4 - 1.96 * 0.1296, abs=0.06)
    assert high == pytest.approx(0.4 + 1.96 * 0.1296, abs=0.06)


def test_on_a_scale_a_near_miss_weighs_less():
    # one of four is off by one place of four: .25 x .25; by chance (1, 5 equally likely each): .5 and a bit
    near, far = _of([1, 1, 5, 5], [1, 2, 5, 5], range(1, 6), "linear"), _of([1, 1, 5, 5], [1, 5, 5, 5], range(1, 6))
    by_chance = (0.5 * (0.25 * 0 + 0.25 * 0.25 + 0.5 * 1)) + (0.5 * (0.25 * 1 + 0.25 * 0.75))
    assert near["kappa"]["value"] == pytest.approx(1 - 0.0625 / by_chance)
    assert near["kappa"]["value"] > far["kappa"]["value"] == pytest.approx(0.5)


@settings(deadline=None, max_examples=60)
@given(pairs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=30), ordered=st.booleans())
def test_it_is_scikit_learns(pairs, ordered):
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    weights: Weights = "linear" if ordered else "none"
    tables = confusions(first - 1, second - 1, np.zeros(len(first), dtype=int), 5)
    ours = weighted_kappa(tables[0], disagreement(5, weights))
    if np.isnan(ours):
        assert len(set(first) | set(second)) == 1
        return
    kind = "linear" if ordered else None
    assert ours == pytest.approx(cohen_kappa_score(first, second, labels=[1, 2, 3, 4, 5], weights=kind), abs=1e-9)


def test_no_kappa_where_nothing_could_differ():
    found = _of([1, 1, 1], [1, 1, 1], [0, 1])
    assert found["agreement"] == {"value": 1.0, "ci": [1.0, 1.0]}
    assert found["kappa"]["value"] is found["kappa"]["ci"] is None
    assert found["kappa"]["reason"] == "both gave one and the same answer everywhere"


def test_undefined_resamples_are_left_out_and_counted():
    found = _of([1, 1, 0], [1, 1, 0], [0, 1], resamples=200)["kappa"]
    assert found["value"] == 1
    assert found["ci"] == [1, 1]
    assert 0 < found["undefined_resamples"] < 200


def test_questions_are_what_is_resampled():
    answers = np.random.default_rng(0).integers(0, 2, (2, 60))
    single = _of(answers[0], answers[1], [0, 1])["agreement"]["ci"]
    grouped = _of(answers[0], answers[1], [0, 1], questions=np.arange(60) // 20)["agreement"]
    assert grouped["value"] == pytest.approx((answers[0] == answers[1]).mean())
    assert grouped["ci"] != single
    assert _of([0, 1], [0, 0], [0, 1], questions=[0, 0])["agreement"]["ci"] is None


def test_nothing_and_nonsense():
    found = _of(np.zeros(0, int), np.zeros(0, int), [0, 1])
    assert found["kappa"] == {"value": None, "ci": None, "reason": "no item was judged by both"}
    with pytest.raises(ValueError, match="none of"):
        _of([2], [1], [0, 1])
    with pytest.raises(ValueError, match="one length"):
        _of([0, 1], [1], [0, 1])
