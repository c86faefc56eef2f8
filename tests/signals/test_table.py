import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.data.errors import DataError
from stopwise.data.splits import SPLITS, split_of
from stopwise.signals.calibration import Calibration
from stopwise.signals.compute import compute_table
from stopwise.signals.definitions import REASONS, SIGNALS
from stopwise.signals.labels import LABELS
from stopwise.signals.table import info_from_json, read_table, with_info, write_table
from stopwise.signals.tracker import SignalConfig

# the fixtures are only read; whole runs take a while to make, and machines are busy
SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def _same(found, expected):
    assert found.names == expected.names
    for field in ("values", "reasons", "labels", "offsets"):
        one, other = getattr(found, field), getattr(expected, field)
        assert one.shape == other.shape, field
        assert one.dtype == other.dtype, field
        np.testing.assert_array_equal(one, other)
    assert repr(found.episodes) == repr(expected.episodes)  # NaN is not equal to itself
    assert found.info == expected.info


@pytest.fixture
def table(uncertain_runs, encoder):
    """Runs on 40 questions, one without a search among them."""
    runs = [uncertain_runs(number, steps=1 + number % 4) for number in range(40)]
    runs[7] = replace(runs[7], steps=())
    return compute_table(lambda: runs, SignalConfig(signals=("SE", "RE", "residual")), encoder)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
def test_write_and_read_is_the_identity(trajectories, encoder, tmp_path, data):
    runs = data.draw(st.lists(trajectories, max_size=4))
    names = data.draw(st.just(SIGNALS) | st.lists(st.sampled_from(SIGNALS), unique=True, max_size=3).map(tuple))
    config = SignalConfig(signals=names, se_cut=0.1 + 0.2)
    lines = {("blue", "logged"): Calibration(1 / 3, -0.1, 0.2, 20), ("", "scored:tiny"): Calibration(0, 1e-300, 0, 20)}
    table = compute_table(lambda: runs, config, encoder, calibrations=lines, logs_sha256="ab" * 32)
    write_table(tmp_path / "table.parquet", table)
    _same(read_table(tmp_path / "table.parquet"), table)


def test_an_empty_table_is_a_table(tmp_path):
    table = compute_table(lambda: [], SignalConfig(), None)
    assert len(table) == 0
    assert table.values.shape == (0, len(SIGNALS))
    write_table(tmp_path / "empty.parquet", table)
    _same(read_table(tmp_path / "empty.parquet"), table)
    for selected in (table.split("train"), table.select([])):
        _same(selected, table)


def test_columns_labels_and_turns(table):
    assert table.turns[:6].tolist() == [1, 1, 2, 1, 2, 3]
    assert table.episode_of_row[:6].tolist() == [0, 1, 1, 2, 2, 2]
    assert table.lengths[7] == 0
    np.testing.assert_array_equal(table.column("RE"), table.values[:, 1])
    np.testing.assert_array_equal(table.label("documents_seen"), table.labels[:, LABELS.index("documents_seen")])
    assert table.question_codes.tolist() == list(range(40))
    assert not table.has_gold.any()
    with pytest.raises(DataError, match="no column 'Nov'; found SE, RE, residual"):
        table.column("Nov")


def test_runs_of_one_question_share_its_code(uncertain_runs):
    runs = [replace(uncertain_runs(0), question_id=question) for question in ("b", "a", "b", "c")]
    table = compute_table(lambda: runs, SignalConfig(signals=("Nov",)), None)
    assert table.question_codes.tolist() == [0, 1, 0, 2]


def test_nulls_are_counted_by_reason(table):
    counts = table.null_counts("residual")
    assert counts["first step"] == 39
    assert sum(counts.values()) == np.isnan(table.column("residual")).sum()
    assert table.null_counts("RE") == {}


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.integers(-40, 39), max_size=10))
def test_select_takes_runs_in_the_given_order(table, chosen):
    part = table.select(chosen)
    assert part.episodes == tuple(table.episodes[index] for index in chosen) or not chosen
    rows = [np.arange(table.offsets[i % 40], table.offsets[i % 40 + 1]) for i in chosen]
    flat = np.concatenate([np.zeros(0, dtype=np.int64), *rows])
    np.testing.assert_array_equal(part.values, table.values[flat])
    np.testing.assert_array_equal(part.reasons, table.reasons[flat])
    np.testing.assert_array_equal(part.labels, table.labels[flat])
    assert part.lengths.tolist() == [table.lengths[index] for index in chosen]


def test_a_mask_selects_as_its_indices_do(table):
    mask = np.arange(40) % 3 == 0
    _same(table.select(mask), table.select(np.flatnonzero(mask)))
    _same(table.select(np.ones(40, dtype=bool)), table)


def test_the_splits_part_the_table_by_question(table):
    parts = [table.split(split) for split in SPLITS]
    assert sum(map(len, parts)) == len(table)
    for split, part in zip(SPLITS, parts, strict=True):
        assert {split_of(episode.question_id) for episode in part.episodes} <= {split}
    questions = Counter(question for part in parts for question in {e.question_id for e in part.episodes})
    assert set(questions.values()) == {1}


def test_a_selection_is_a_copy(table):
    part = table.select([0, 1])
    part.values[:] = 9.0
    assert not (table.values == 9.0).any()


def test_info_survives_json(table):
    info = with_info(table, logs_sha256="00").info
    assert info.logs_sha256 == "00"
    assert info_from_json(json.loads(json.dumps(info.to_json()))) == info


def test_the_order_of_reasons_is_part_of_the_file_format():
    # append only: a table holds positions
    assert REASONS[:14] == (
        "present", "first step", "no documents", "single document", "no texts", "no query", "no encoder",
        "no logprobs", "chosen token only", "no criteria", "no gold criteria", "no scores", "not calibrated",
        "not asked for",
    )  # fmt: skip


def test_files_that_are_no_tables_are_refused(table, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def refused(path, match):
        with pytest.raises(DataError, match=match) as caught:
            read_table(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "missing.parquet", "no such file")
    text = tmp_path / "text.parquet"
    text.write_text("not parquet")
    refused(text, "is not a Parquet file")
    (tmp_path / "empty.parquet").write_bytes(b"")
    refused(tmp_path / "empty.parquet", "is not a Parquet file")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "is a folder")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    refused(tmp_path / "other.parquet", "no signal table")
    good = tmp_path / "good.parquet"
    write_table(good, table)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(good.read_bytes()[:-100])
    refused(cut, "is not a Parquet file")
    arrow = pq.read_table(good)
    header = json.loads(arrow.schema.metadata[b"stopwise.signals"]) | {"version": 99}
    pq.write_table(arrow.replace_schema_metadata({"stopwise.signals": json.dumps(header)}), good)
    refused(good, "version 99; expected 2")


def test_an_interrupted_write_leaves_the_old_table(table, tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    path = tmp_path / "table.parquet"
    write_table(path, table)

    def broken(arrow, target, **options):
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", broken)
    with pytest.raises(KeyboardInterrupt):
        write_table(path, table.select([0]))
    _same(read_table(path), table)
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.parquet"]
