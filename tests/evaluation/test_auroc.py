import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from stopwise.evaluation.auroc import auroc_table, pooled, predictive_labels, turn_matched, within_question
from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval


def steps(seed=0, rows=400, questions=25, turns=8, levels=12, positive=0.3):
    """Rows with many ties, unequal classes and a signal that carries something."""
    rng = np.random.default_rng(seed)
    labels = rng.random(rows) < positive
    values = np.round(rng.normal(size=rows) + 0.6 * labels, 1) if levels is None else rng.integers(0, levels, rows) / 4
    return values + 0.5 * labels, labels, rng.integers(0, turns, rows), rng.integers(0, questions, rows)


def pair_loop(values, labels, strata, copies=None, weight=None, min_pairs=1):
    """The definition, pair by pair."""
    weight = np.ones(len(values)) if weight is None else weight
    won = total = 0.0
    for stratum in np.unique(strata):
        positive = np.flatnonzero((strata == stratum) & labels & ~np.isnan(values))
        negative = np.flatnonzero((strata == stratum) & ~labels & ~np.isnan(values))
        if len(positive) * len(negative) < min_pairs:
            continue
        for i in positive:
            for j in negative:
                pair = weight[i] * weight[j] if copies is None else copies[i]
                won += pair * ((values[i] > values[j]) + 0.5 * (values[i] == values[j]))
                total += pair
    return won / total


@pytest.mark.parametrize("positive", [0.1, 0.5, 0.9])
def test_pooled_is_sklearns_auroc(positive):
    values, labels, _, questions = steps(positive=positive)
    result = pooled(values, labels, questions)
    assert result.value == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    assert result.pairs == labels.sum() * (~labels).sum()
    assert (result.ci, result.reason, result.strata, result.strata_dropped) == (None, None, 1, 0)


@pytest.mark.parametrize("positive", [0.2, 0.8])
def test_pooled_interval_is_the_percentiles_of_sklearns_weighted_auroc(positive):
    values, labels, _, questions = steps(rows=150, questions=12, positive=positive)
    bootstrap = QuestionBootstrap(12, n_resamples=200, seed=5)
    expected = [roc_auc_score(labels, values, sample_weight=weight[questions]) for weight in bootstrap.weights]
    result = pooled(values, labels, questions, bootstrap)
    assert result.ci == pytest.approx(percentile_interval(np.array(expected)), abs=1e-12)
    assert result.resamples == 200


@pytest.mark.parametrize("positive", [0.2, 0.8])
def test_strata_equal_the_pair_loop(positive):
    values, labels, turns, questions = steps(rows=200, positive=positive)
    values[::7] = np.nan
    assert turn_matched(values, labels, turns, questions).value == pytest.approx(pair_loop(values, labels, turns))
    assert within_question(values, labels, questions).value == pytest.approx(pair_loop(values, labels, questions))


@pytest.mark.parametrize("positive", [0.3, 0.7])
def test_stratified_intervals_equal_the_weighted_pair_loop(positive):
    values, labels, turns, questions = steps(rows=90, questions=10, turns=4, positive=positive)
    bootstrap = QuestionBootstrap(10, n_resamples=40, seed=2)
    by_turn = [pair_loop(values, labels, turns, weight=w[questions], min_pairs=10) for w in bootstrap.weights]
    by_question = [pair_loop(values, labels, questions, copies=w[questions]) for w in bootstrap.weights]
    assert turn_matched(values, labels, turns, questions, bootstrap).ci == pytest.approx(
        percentile_interval(np.array(by_turn))
    )
    assert within_question(values, labels, questions, bootstrap).ci == pytest.approx(
        percentile_interval(np.array(by_question))
    )


def test_blocks_of_resamples_change_nothing(monkeypatch):
    values, labels, turns, questions = steps()
    bootstrap = QuestionBootstrap(25, n_resamples=101)
    whole = turn_matched(values, labels, turns, questions, bootstrap)
    monkeypatch.setattr("stopwise.evaluation.auroc.BLOCK_CELLS", 1000)
    assert turn_matched(values, labels, turns, questions, bootstrap) == whole


def test_turns_under_ten_pairs_are_dropped_and_counted():
    labels = np.array([True] * 3 + [False] * 4 + [True] + [False] * 9 + [False] * 5)
    values = np.where(labels, 1.0, 0.0)
    values[7:17] = np.where(labels[7:17], 0.0, 1.0)  # the dropped turn would lose every pair
    turns = np.array([0] * 7 + [1] * 10 + [2] * 5)
    result = turn_matched(values, labels, turns, np.zeros(22, dtype=int))
    assert (result.value, result.pairs, result.strata) == (1.0, 12, 1)
    assert (result.strata_dropped, result.pairs_dropped) == (2, 9)
    assert turn_matched(values, labels, turns, np.zeros(22, dtype=int), min_pairs=9).value == 12 / 21


def test_questions_with_few_pairs_are_kept():
    values, labels = np.array([1.0, 0.0, 3.0, 4.0, 5.0]), np.array([True, False, True, False, True])
    result = within_question(values, labels, np.array([0, 0, 1, 1, 2]))
    assert (result.value, result.pairs, result.strata, result.strata_dropped) == (0.5, 2, 2, 1)


def test_the_clock_alone_looks_good_pooled_and_is_unmasked_by_matching_turns():
    rng = np.random.default_rng(0)
    turns = np.tile(np.arange(20), 100)
    questions = np.repeat(np.arange(100), 20)
    labels = rng.random(2000) < np.where(turns < 3, 0.97, 0.004)
    values = -turns + 0.1 * rng.normal(size=2000)  # falls with the turn, knows nothing else
    bootstrap = QuestionBootstrap(100, 200)
    assert pooled(values, labels, questions, bootstrap).value == pytest.approx(0.99, abs=0.01)
    matched = turn_matched(values, labels, turns, questions, bootstrap)
    assert matched.value == pytest.approx(0.5, abs=0.05)
    assert matched.ci is not None
    assert matched.ci[0] < 0.5 < matched.ci[1]


def test_missing_answers_come_with_the_reason():
    nothing, some = np.full(3, np.nan), np.array([0.1, 0.2, 0.3])
    questions, both = np.array([0, 1, 1]), np.array([True, False, False])
    assert pooled(nothing, both, questions).reason == "no values"
    assert pooled(nothing, both, questions).nulls == 3
    assert pooled(some, np.zeros(3, dtype=bool), questions).reason == "one class only: every label is false"
    assert pooled(some, np.ones(3, dtype=bool), questions).reason == "one class only: every label is true"
    assert turn_matched(some, both, np.zeros(3, dtype=int), questions).reason == "no stratum has 10 pairs"
    apart = within_question(some, both, questions)
    assert (apart.value, apart.reason) == (None, "no stratum has 1 pairs")
    single = pooled(some, both, np.zeros(3, dtype=int), QuestionBootstrap(1))
    assert (single.value, single.ci, single.reason) == (0.0, None, "no interval: every pair is of one question")
    empty = pooled(np.zeros(0), np.zeros(0, dtype=bool), np.zeros(0, dtype=int), QuestionBootstrap(1))
    assert (empty.value, empty.reason, empty.rows) == (None, "no values", 0)


def test_resamples_without_a_pair_are_left_out_and_counted():
    result = pooled(
        np.array([1.0, 0.0]), np.array([True, False]), np.array([0, 1]), QuestionBootstrap(2, n_resamples=100)
    )
    assert result.ci == (1.0, 1.0)
    assert 30 < result.resamples < 70  # half of the draws of two questions take one of them twice


def test_wrong_arrays_are_refused():
    values, labels, _, questions = steps(rows=10)
    with pytest.raises(ValueError, match="one length"):
        pooled(values, labels[:-1], questions)
    with pytest.raises(ValueError, match="boolean"):
        pooled(values, labels.astype(int), questions)
    with pytest.raises(ValueError, match="bootstrap was made for"):
        pooled(values, labels, questions + 100, QuestionBootstrap(25))


def test_table_holds_every_kind_and_is_json():
    values, labels, turns, questions = steps()
    table = auroc_table(
        {"Nov": values, "RE": np.full(400, np.nan)}, labels, turns, questions, QuestionBootstrap(25, 50)
    )
    assert list(table["Nov"]) == ["pooled", "turn_matched", "within_question"]
    row = json.loads(json.dumps(table["Nov"]["pooled"].to_json()))
    assert len(row["ci"]) == 2
    assert table["RE"]["turn_matched"].to_json()["reason"] == "no values"


rows_of_steps = st.lists(
    st.tuples(st.integers(-6, 6), st.booleans(), st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=40
)


@given(rows_of_steps, st.sampled_from([np.exp, np.arctan, lambda x: 3 * x - 7, lambda x: x**3]))
def test_a_monotone_transform_changes_nothing(rows, transform):
    values, labels, turns, questions = (np.array(column) for column in zip(*rows, strict=True))
    values, bootstrap = values.astype(float), QuestionBootstrap(4, n_resamples=20)
    before = auroc_table({"s": values}, labels, turns, questions, bootstrap)
    assert auroc_table({"s": transform(values)}, labels, turns, questions, bootstrap) == before


@given(rows_of_steps)
def test_turning_the_signal_round_turns_the_auroc_round(rows):
    values, labels, turns, questions = (np.array(column) for column in zip(*rows, strict=True))
    forward = auroc_table({"s": values.astype(float)}, labels, turns, questions)["s"]
    backward = auroc_table({"s": -values.astype(float)}, labels, turns, questions)["s"]
    for kind, result in forward.items():
        if result.value is None:
            assert backward[kind].value is None
        else:
            assert backward[kind].value == pytest.approx(1 - result.value)


def test_predictive_labels_look_ahead_within_the_run():
    gain = np.array([0.5, 0, 0, 0, 0.5, 0, 1.0, 1.0])
    labels, kept = predictive_labels(gain, np.array([0, 6, 6, 7, 8]), horizon=3)
    assert labels.tolist() == [False, True, True, True, False, False, False, False]
    assert kept.tolist() == [True, True, True, True, True, False, False, False]
    _, whole = predictive_labels(gain, np.array([0, 6, 6, 7, 8]), horizon=3, whole=True)
    assert whole.tolist() == [True, True, True, False, False, False, False, False]


def test_predictive_labels_refuse_what_they_cannot_judge():
    with pytest.raises(ValueError, match="without gold"):
        predictive_labels(np.array([np.nan]), np.array([0, 1]))
    with pytest.raises(ValueError, match="offsets"):
        predictive_labels(np.array([0.0, 1.0]), np.array([0, 1]))
    with pytest.raises(ValueError, match="horizon"):
        predictive_labels(np.array([0.0]), np.array([0, 1]), horizon=0)
