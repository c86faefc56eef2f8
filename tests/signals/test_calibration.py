"""The fast monitor's line and spread: DS-MCM eq. 6 to 8."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from stopwise.signals.calibration import MIN_STEPS, Calibration, fit_calibration

_N = 40


def _noisy(slope, seed=0):
    generator = np.random.default_rng(seed)
    searching = generator.uniform(0, 2, _N)
    return searching, slope * searching + 0.7 + 0.2 * generator.normal(size=_N)


def test_a_rising_line_is_that_of_least_squares():
    searching, reasoning = _noisy(0.4)
    line = fit_calibration(searching, reasoning)
    assert line is not None
    slope, intercept = np.polyfit(searching, reasoning, 1)
    assert line.slope == pytest.approx(slope)
    assert line.intercept == pytest.approx(intercept)
    assert line.sigma == pytest.approx(np.std(reasoning - (slope * searching + intercept)))
    assert line.steps == _N


def test_a_falling_line_is_held_flat_at_the_mean():
    searching, reasoning = _noisy(-0.4)
    line = fit_calibration(searching, reasoning)
    assert line is not None
    assert line.slope == 0.0
    assert line.intercept == pytest.approx(reasoning.mean())
    assert line.sigma == pytest.approx(reasoning.std())


@given(st.floats(-2, 2), st.integers(0, 1000))
def test_it_is_the_constrained_optimum(slope, seed):
    searching, reasoning = _noisy(slope, seed)
    line = fit_calibration(searching, reasoning)
    assert line is not None
    # a at least 0 and b free: nonnegative least squares with b as the difference of two nonnegative numbers
    design = np.stack([searching, np.ones(_N), -np.ones(_N)], axis=1)
    expected, _ = nnls(design, reasoning)
    assert line.slope == pytest.approx(expected[0], abs=1e-8)
    assert line.intercept == pytest.approx(expected[1] - expected[2], abs=1e-8)


@given(st.floats(0, 5), st.integers(MIN_STEPS, 200), st.integers(0, 100))
def test_one_value_of_se_shows_no_slope(value, count, seed):
    reasoning = np.random.default_rng(seed).uniform(0, 3, count)
    line = fit_calibration(np.full(count, value), reasoning)
    assert line is not None
    assert line.slope == 0.0
    assert line.intercept == pytest.approx(reasoning.mean())


def test_few_steps_make_no_line():
    searching, reasoning = _noisy(0.4)
    assert fit_calibration(searching[: MIN_STEPS - 1], reasoning[: MIN_STEPS - 1]) is None
    assert fit_calibration(searching[:MIN_STEPS], reasoning[:MIN_STEPS]) is not None
    assert fit_calibration(np.zeros(0), np.zeros(0)) is None


def test_residual_by_hand():
    line = Calibration(slope=0.5, intercept=0.2, sigma=0.1, steps=20)
    assert line.residual(searching_entropy=1.0, reasoning_entropy=0.9) == pytest.approx(0.2)
