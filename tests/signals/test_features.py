import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.data.errors import DataError, UsageError
from stopwise.signals.compute import compute_table
from stopwise.signals.features import TIME, TRANSFORMS, FeatureBuilder, FeatureSpec, build_features, check_privilege
from stopwise.signals.tracker import SignalConfig, SignalRow

NAN = math.nan


def _features(values, signal="Nov"):
    """The features of a run whose signal takes these values, None for null: one dictionary a step."""
    builder = FeatureBuilder(FeatureSpec((signal,)))
    names = FeatureSpec((signal,)).names
    rows = []
    for t, value in enumerate(values, start=1):
        row = SignalRow(t, {} if value is None else {signal: value}, {signal: "no documents"} if value is None else {})
        rows.append(dict(zip(names, builder.push(row), strict=True)))
    return rows


def _is(found, expected):
    return found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_names():
    spec = FeatureSpec(("Nov", "SE"))
    assert spec.names[:3] == ("t", "log_t", "Nov.value")
    assert len(spec) == len(spec.names) == len(TIME) + 2 * len(TRANSFORMS)
    assert len(set(spec.names)) == len(spec)
    assert FeatureSpec(()).names == TIME


def test_every_transform_by_hand():
    rows = _features([0.5, 1.0, None, 0.25, 1.0, 2.0])

    def column(transform):
        return [row[f"Nov.{transform}"] for row in rows]

    assert _is([row["t"] for row in rows], [1, 2, 3, 4, 5, 6])
    assert _is([row["log_t"] for row in rows], [math.log(t) for t in range(1, 7)])
    assert _is(column("value"), [0.5, 1.0, NAN, 0.25, 1.0, 2.0])
    assert _is(column("change"), [NAN, 0.5, NAN, NAN, 0.75, 1.0])
    assert _is(column("recent"), [0.5, 0.75, 0.75, 0.625, 0.625, 3.25 / 3])
    assert _is(column("mean"), [0.5, 0.75, 0.75, 1.75 / 3, 2.75 / 4, 4.75 / 5])
    assert _is(column("best"), [0.5, 1.0, 1.0, 1.0, 1.0, 2.0])
    assert _is(column("streak"), [0, 0, 1, 2, 3, 0])  # an equal value raises nothing


def test_before_the_first_value_every_feature_of_a_signal_is_nan():
    rows = _features([None, None, -1.0, None])
    for transform in TRANSFORMS:
        assert math.isnan(rows[0][f"Nov.{transform}"])
        assert math.isnan(rows[1][f"Nov.{transform}"])
    assert rows[2]["Nov.best"] == rows[3]["Nov.best"] == -1.0
    assert rows[3]["Nov.streak"] == 1.0
    assert math.isnan(rows[2]["Nov.change"])


def test_unknown_signals_and_versions_are_refused():
    with pytest.raises(UsageError, match=r"unknown signal 'gold'; expected some of SE"):
        FeatureSpec(("Nov", "gold"))
    with pytest.raises(UsageError, match="version 99; this stopwise computes version 1"):
        FeatureSpec(("Nov",), version=99)
    with pytest.raises(UsageError, match="'Nov' is named twice"):
        FeatureSpec(("Nov", "SE", "Nov"))


@pytest.mark.parametrize("forbidden", ["length", "ended_by", "recall", "nir", "final_recall", "correct", "gold"])
def test_what_the_live_agent_cannot_know_is_no_feature(forbidden):
    with pytest.raises(UsageError):
        FeatureSpec((forbidden,))


@pytest.mark.parametrize("signal", ["Cov", "coverage_gain"])
def test_coverage_by_gold_needs_privilege(signal):
    spec = FeatureSpec(("Nov", signal))
    gold = SignalConfig(coverage_judge="gold")
    with pytest.raises(UsageError, match="judge `gold`"):
        check_privilege(spec, gold, privileged=False)
    check_privilege(spec, gold, privileged=True)
    check_privilege(spec, SignalConfig(), privileged=False)
    check_privilege(FeatureSpec(("Nov",)), gold, privileged=False)


def test_a_table_without_the_signal_says_so(uncertain_runs):
    table = compute_table(lambda: [uncertain_runs(0)], SignalConfig(signals=("Nov",)), None)
    with pytest.raises(DataError, match="no column 'SE'; found Nov"):
        build_features(table, FeatureSpec(("Nov", "SE")))


_VALUES = st.lists(st.none() | st.floats(-5, 5), min_size=1, max_size=8)


@given(_VALUES, _VALUES, st.data())
def test_features_at_t_depend_on_the_rows_up_to_t_only(values, others, data):
    kept = data.draw(st.integers(1, len(values)))
    found = _features(values[:kept] + others)[:kept]
    np.testing.assert_equal(found, _features(values)[:kept])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_batch_is_the_stream(trajectories, encoder, data):
    runs = data.draw(st.lists(trajectories, max_size=4))
    table = compute_table(lambda: runs, SignalConfig(), encoder, fit_se_cut=False, fit_coverage=False)
    spec = FeatureSpec(("SE", "RE", "Nov", "Cov"))
    features = build_features(table, spec)
    assert features.shape == (len(table.values), len(spec))
    index = 0
    for length in table.lengths:
        builder = FeatureBuilder(spec)
        for _ in range(length):
            np.testing.assert_array_equal(features[index], builder.push(table.row(index)))
            index += 1
    assert index == len(features)
