"""SE and RE of DS-MCM 3.2 (arXiv 2601.23188), against values computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.records import Logprobs
from stopwise.signals.entropy import position_entropy, reasoning_entropy, searching_entropy


@pytest.mark.parametrize("count", range(1, 21))
def test_one_meaning_has_no_entropy_and_k_meanings_have_log_k(count):
    assert searching_entropy(np.zeros(count, dtype=np.int64)) == 0.0
    assert searching_entropy(np.arange(count)) == pytest.approx(np.log(count), abs=1e-12)


def test_entropy_of_a_mixed_step():
    # shares 1/2, 1/4, 1/4: 0.5 log 2 + 2 * 0.25 log 4
    assert searching_entropy(np.array([0, 1, 0, 2])) == pytest.approx(1.5 * np.log(2))


def test_scores_weigh_documents_by_softmax():
    # softmax of log 6, log 3, log 1 is 0.6, 0.3, 0.1; clusters {0, 2} and {1} hold 0.7 and 0.3
    found = searching_entropy(np.array([0, 1, 0]), np.log([6.0, 3.0, 1.0]))
    assert found == pytest.approx(-(0.7 * np.log(0.7) + 0.3 * np.log(0.3)))


def test_scores_of_any_scale_neither_overflow_nor_move_the_entropy():
    labels, scores = np.array([0, 1, 2]), np.array([1.0, 2.0, 3.0])
    assert searching_entropy(labels, scores + 1e4) == pytest.approx(searching_entropy(labels, scores))
    assert searching_entropy(labels, scores * 1e4) == 0.0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_entropy_is_within_its_bounds(labels, data):
    scores = data.draw(st.none() | st.lists(st.floats(-50, 50), min_size=len(labels), max_size=len(labels)))
    found = searching_entropy(np.array(labels), None if scores is None else np.array(scores))
    assert 0.0 <= found <= np.log(len(set(labels))) + 1e-9


def _entropy(probabilities, **options):
    return position_entropy([float(np.log(p)) for p in probabilities], **options)


def test_position_entropy_by_hand():
    assert _entropy([0.5, 0.25, 0.25]) == pytest.approx(1.5 * np.log(2))
    # the top two of 0.4, 0.4, 0.1 are renormalised to a half each
    assert _entropy([0.4, 0.1, 0.4], top_k=2) == pytest.approx(np.log(2))
    # probabilities that do not sum to one are those of a cut list: 0.3, 0.1 are 3/4 and 1/4
    assert _entropy([0.3, 0.1]) == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))


def test_a_candidate_of_no_probability_counts_as_nothing():
    assert position_entropy([np.log(0.5), -np.inf, np.log(0.5)]) == pytest.approx(np.log(2))
    assert position_entropy([0.0, -np.inf]) == 0.0
    assert position_entropy([-800.0, -1600.0]) == 0.0  # underflows to nothing, and to no NaN


def test_at_most_twenty_candidates_count():
    assert position_entropy([-3.0] * 50) == pytest.approx(np.log(20))


def test_reasoning_entropy_is_the_mean_over_positions_ragged_or_not():
    certain, even, thirds = (0.0, -np.inf), (-1.0, -1.0), (-2.0, -2.0, -2.0)
    value, reason = reasoning_entropy(Logprobs(top=(certain, even, thirds)))
    assert value == pytest.approx((0 + np.log(2) + np.log(3)) / 3)
    assert reason is None


def test_positions_with_only_the_chosen_token_are_left_out():
    assert reasoning_entropy(Logprobs(top=((-0.1,), (-1.0, -1.0), ())))[0] == pytest.approx(np.log(2))
    assert reasoning_entropy(Logprobs(top=((-0.1,), (-0.3,)))) == (None, "chosen token only")


def test_positions_without_any_probability_are_left_out():
    nothing = (-np.inf, -np.inf)
    assert reasoning_entropy(Logprobs(top=(nothing, (-1.0, -1.0))))[0] == pytest.approx(np.log(2))
    assert reasoning_entropy(Logprobs(top=(nothing,))) == (None, "no logprobs")


def test_given_entropies_are_averaged():
    assert reasoning_entropy(Logprobs(entropies=(0.5, 1.0))) == (0.75, None)


@pytest.mark.parametrize(
    "logprobs",
    [None, Logprobs(top=()), Logprobs(top=((), ())), Logprobs(entropies=()), Logprobs(entropies=(0.1, np.inf))],
)
def test_without_positions_it_is_null(logprobs):
    assert reasoning_entropy(logprobs) == (None, "no logprobs")
