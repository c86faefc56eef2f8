"""RE by itself, for the ablation without SE ([DS-MCM] 4.3, table 2)."""

from dataclasses import replace

import numpy as np
import pytest

from stopwise.data.errors import DataError
from stopwise.signals.calibration import Calibration, fit_calibration
from stopwise.signals.definitions import SIGNALS
from stopwise.signals.re_only import add_re_z

LINE = Calibration(slope=0.5, intercept=0.0, sigma=1.0, steps=30)


def test_the_mean_and_spread_are_those_of_re():
    reasoning = np.arange(20.0)
    line = fit_calibration(np.ones(20), reasoning)
    assert line is not None
    assert line.re_mean == pytest.approx(9.5)
    assert line.re_sigma == pytest.approx(np.std(reasoning))


@pytest.fixture
def table(run_of, table_of, questions_of):
    train, val = questions_of("train", 2), questions_of("val", 1)
    # RE of fitted steps: 1, 3 (mean 2, standard deviation 1); the first step has no residual and does not count
    right = {"RE": [9, 1, 3], "residual": ["first step", 0, 0]}
    wrong = {"RE": [50, 50], "residual": ["first step", 0]}
    other = {"RE": [4, "no logprobs"], "residual": [0, "no logprobs"]}
    runs = [
        run_of([0, 0, 0], question=train[0], correct=1.0, agent="a", signals=right),
        run_of([0, 0], question=train[1], correct=0.0, agent="a", signals=wrong),
        run_of([0, 0], question=val[0], correct=1.0, agent="a", signals=other),
        run_of([0], question=val[0], correct=1.0, agent="b", signals={"RE": [1], "residual": ["not calibrated"]}),
    ]
    return table_of(runs, ("RE", "residual"), calibrations=(("a", "logged", LINE),), re_sources=("logged",))


def test_by_hand(table):
    added = add_re_z(table)
    assert added.names == ("RE", "residual", "RE_z")
    column = added.column("RE_z")
    np.testing.assert_array_equal(column, [7, -1, 1, 48, 48, 2, np.nan, np.nan])
    assert added.null_counts("RE_z") == {"no logprobs": 1, "not calibrated": 1}
    ((agent, source, line),) = added.info.calibrations
    assert (agent, source, line.re_mean, line.re_sigma) == ("a", "logged", 2.0, 1.0)
    assert (line.slope, line.sigma) == (LINE.slope, LINE.sigma)
    assert added.info.config.signals[-1] == "RE_z"


def test_a_known_mean_is_kept(table):
    known = replace(LINE, re_mean=1.0, re_sigma=2.0)
    with_known = replace(table, info=replace(table.info, calibrations=(("a", "logged", known),)))
    assert add_re_z(with_known).column("RE_z")[0] == 4.0


def test_what_cannot_be_told_apart_is_refused(table):
    mixed = replace(table, info=replace(table.info, re_sources=("logged", "scored:m")))
    with pytest.raises(DataError, match="RE_z of logged, scored:m: one source at a time"):
        add_re_z(mixed)
    with pytest.raises(DataError, match="RE_z needs residual"):
        add_re_z(replace(table, names=("RE", "other")))


def test_it_is_computed_only_where_it_is_asked_for():
    assert "RE_z" not in SIGNALS
