import numpy as np
import pytest

from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval


def test_multiplicities_are_draws_with_replacement():
    weights = QuestionBootstrap(50, n_resamples=400, seed=3).weights
    assert weights.shape == (400, 50)
    assert (weights.sum(axis=1) == 50).all()
    assert weights.mean() == 1
    assert weights.var() == pytest.approx(1 - 1 / 50, rel=0.05)  # binomial(50, 1/50)


def test_the_seed_decides():
    one, same, other = (QuestionBootstrap(20, 30, seed).weights for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_percentile_interval_is_numpys():
    estimates = np.random.default_rng(0).normal(size=1000)
    assert percentile_interval(estimates, 0.9) == pytest.approx(tuple(np.percentile(estimates, [5, 95])))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="needs questions"):
        QuestionBootstrap(0)
    with pytest.raises(ValueError, match="from 0 to 5"):
        QuestionBootstrap(5).check(np.array([0, 5]))
    with pytest.raises(ValueError, match="none of them NaN"):
        percentile_interval(np.array([0.5, np.nan]))
