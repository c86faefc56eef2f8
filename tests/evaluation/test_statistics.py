import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stopwise.evaluation.statistics import (
    compare,
    mcnemar,
    paired_t,
    power_of,
    question_means,
    questions_needed,
    sign_flip,
)


def arms(n=60, seed=0, shift=0.05):
    rng = np.random.default_rng(seed)
    baseline = rng.random(n)
    return baseline + shift + 0.1 * rng.normal(size=n), baseline, np.arange(n)


def test_one_run_a_question_gives_scipys_paired_t_test():
    treatment, baseline, questions = arms()
    result = compare(treatment, baseline, questions)
    reference = stats.ttest_rel(treatment, baseline)
    assert result.t_test.p == pytest.approx(reference.pvalue)
    assert result.t_test.statistic == pytest.approx(reference.statistic)
    assert result.difference == pytest.approx((treatment - baseline).mean())
    assert result.sd == pytest.approx((treatment - baseline).std(ddof=1))
    assert result.wins + result.losses == 60


def test_interval_covers_the_mean_as_a_normal_one_does():
    treatment, baseline, questions = arms(n=400)
    result = compare(treatment, baseline, questions, resamples=4000)
    half = 1.96 * (treatment - baseline).std() / 20
    assert result.ci == pytest.approx((result.difference - half, result.difference + half), abs=0.001)


def test_runs_are_averaged_within_their_question_first():
    # question 7 has three runs in one arm and one in the other; it still counts once
    result = compare(np.array([1.0, 0.0, 0.5, 0.2]), np.array([0.1, 0.4]), np.array([7, 7, 7, 3]), np.array([3, 7]))
    assert (result.questions, result.wins, result.ties, result.losses) == (2, 2, 0, 0)
    assert (result.treatment, result.baseline) == pytest.approx((0.35, 0.25))
    codes, means = question_means(np.array([1.0, 0.0, 0.5, 0.2]), np.array([7, 7, 7, 3]))
    assert codes.tolist() == [3, 7]
    assert means == pytest.approx([0.2, 0.5])


def test_doubling_every_run_changes_nothing():
    treatment, baseline, questions = arms()
    once = compare(treatment, baseline, questions)
    assert compare(np.tile(treatment, 2), np.tile(baseline, 2), np.tile(questions, 2)) == once


def test_rounding_is_a_tie():
    result = compare(np.array([0.1 + 0.2, 0.5]), np.array([0.3, 0.5]), np.arange(2))
    assert (result.wins, result.ties, result.losses) == (0, 2, 0)


def test_equal_differences_have_no_t_test_and_no_warning():
    baseline = np.linspace(0, 1, 30)
    result = compare(baseline + 0.1, baseline, np.arange(30))
    assert (result.t_test.p, result.t_test.reason) == (None, "all differences are equal")
    assert result.permutation.p is not None
    assert result.permutation.p < 0.001
    same = compare(baseline, baseline, np.arange(30))
    assert (same.difference, same.ci, same.permutation.p, same.mcnemar.p) == (
        0,
        (0, 0),
        1,
        1,
    )


def test_a_single_question_has_neither_interval_nor_t_test():
    result = compare(np.array([0.5]), np.array([0.2]), np.array([4]))
    assert (result.ci, result.sd, result.t_test.reason) == (None, None, "a t-test needs two questions")
    assert result.not_inferior(0.01) is None
    assert result.permutation.p == 1


def test_few_questions_are_permuted_exactly():
    differences = np.array([0.3, -0.1, 0.2, 0.2, 0.0, 0.4, -0.3])
    signs = np.array(list(itertools.product([1, -1], repeat=7)))
    expected = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert sign_flip(differences).p == pytest.approx(expected)
    assert sign_flip(differences).statistic == 2**6
    reference = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=10**6, alternative="two-sided"
    )
    assert sign_flip(differences).p == pytest.approx(reference.pvalue)


def test_many_questions_are_permuted_at_random_and_seeded():
    treatment, baseline, _ = arms(n=200, shift=0.012)
    test = sign_flip(treatment - baseline, seed=1)
    assert test == sign_flip(treatment - baseline, seed=1)
    assert test != sign_flip(treatment - baseline, seed=2)
    assert test.statistic == 10_000
    assert test.p == pytest.approx(stats.ttest_rel(treatment, baseline).pvalue, abs=0.02)
    assert sign_flip(np.full(50, 0.1)).p == 1 / 10_001


def test_blocks_of_flips_are_all_counted(monkeypatch):
    monkeypatch.setattr("stopwise.evaluation.statistics.BLOCK_CELLS", 777)
    treatment, baseline, _ = arms(shift=0.0)
    differences = treatment - baseline
    assert sign_flip(differences).p == pytest.approx(paired_t(differences).p, abs=0.03)


@pytest.mark.parametrize(("wins", "losses"), [(10, 3), (0, 6), (5, 5), (1, 0)])
def test_mcnemar_is_the_exact_binomial(wins, losses):
    n = wins + losses
    expected = min(1.0, 2 * stats.binom.cdf(min(wins, losses), n, 0.5))
    assert mcnemar(wins, losses).p == pytest.approx(expected)


def test_mcnemar_on_correctness():
    treatment, baseline = np.array([1, 1, 1, 0, 0, 1, 1, 1, 1]), np.array([1, 0, 0, 0, 1, 0, 0, 0, 0])
    result = compare(treatment, baseline, np.arange(9))
    assert (result.wins, result.losses, result.mcnemar.statistic) == (6, 1, 7)
    assert result.mcnemar.p == pytest.approx(2 * 8 / 2**7)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=30))
def test_swapping_the_arms_mirrors_the_result(steps):
    differences = np.array(steps) / 10
    questions = np.arange(len(differences))
    forward = compare(differences, 0 * differences, questions, resamples=50, trials=200)
    backward = compare(0 * differences, differences, questions, resamples=50, trials=200)
    assert backward.difference == pytest.approx(-forward.difference)
    assert (backward.wins, backward.losses) == (forward.losses, forward.wins)
    assert backward.mcnemar == forward.mcnemar
    assert backward.permutation.p == pytest.approx(forward.permutation.p)
    assert backward.ci == pytest.approx(tuple(-end for end in reversed(forward.ci or ())))


def test_non_inferiority_reads_the_lower_end():
    treatment, baseline, questions = arms(n=300, shift=0.0)
    result = compare(treatment, baseline, questions)
    assert result.not_inferior(0.05) is True
    assert result.not_inferior(0.0) is False
    with pytest.raises(ValueError, match="negative"):
        result.not_inferior(-0.1)


def test_power_figures_of_the_generated_world():
    assert questions_needed(0.137, margin=0.01) == pytest.approx(1470, abs=5)
    assert questions_needed(0.137, margin=0.02, difference=0.02) == pytest.approx(100, abs=10)
    assert questions_needed(0.137, difference=0.04) == questions_needed(0.137, margin=0.02, difference=0.02)


def test_power_is_the_converse_of_questions_needed():
    n = questions_needed(0.3, difference=0.05, power=0.9)
    assert power_of(n, 0.3, difference=0.05) >= 0.9 > power_of(n - 1, 0.3, difference=0.05)
    assert power_of(100, 1.0) == pytest.approx(0.025)


def test_power_is_what_simulated_comparisons_have():
    rng = np.random.default_rng(0)
    differences = 0.03 + 0.137 * rng.normal(size=(1000, 120))
    lower = differences.mean(axis=1) - 1.96 * differences.std(axis=1, ddof=1) / np.sqrt(120)
    assert (lower > -0.01).mean() == pytest.approx(power_of(120, 0.137, difference=0.03, margin=0.01), abs=0.03)


def test_result_is_json():
    read = json.loads(json.dumps(compare(*arms()).to_json(), allow_nan=False))
    assert len(read["ci"]) == 2
    assert read["t_test"]["p"] < 0.01


def test_bad_input_is_refused():
    one, two = np.array([0.5, 0.5]), np.array([0, 1])
    with pytest.raises(ValueError, match="2 questions are in one arm only"):
        compare(one, one, two, np.array([1, 2]))
    with pytest.raises(ValueError, match="one length"):
        compare(one, one[:1], two)
    with pytest.raises(ValueError, match="not all finite"):
        compare(np.array([np.nan, 1]), one, two)
    with pytest.raises(ValueError, match="no number of questions"):
        questions_needed(0.1, difference=-0.02, margin=0.01)
    with pytest.raises(ValueError, match="sd > 0"):
        questions_needed(0.0, difference=0.1)
    with pytest.raises(ValueError, match="power"):
        questions_needed(0.1, difference=0.1, power=1.0)
    with pytest.raises(ValueError, match="two questions"):
        power_of(1, 0.1)
    assert paired_t(np.array([0.1])).p is None
