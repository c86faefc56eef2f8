import numpy as np
import pytest

from stopwise.data.store import write_trajectories
from stopwise.signals.table import read_table

SCORE = ("--score-window", "2000", "--score-reasoning")  # the tiny model has a small context


@pytest.fixture
def place(tmp_path, monkeypatch, make_logs):
    """A folder with logs, whose agents' own log-probabilities are there to be replaced, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    write_trajectories(tmp_path / "logs.parquet", make_logs(4))
    return tmp_path


def test_reasoning_is_scored_where_it_is_asked_for(place, answer, tiny_lm_folder):
    logged = answer("signals", "logs.parquet", "--only", "RE", "--out", "logged.parquet")
    assert logged["re_sources"] == ["logged"]
    asked = ("signals", "logs.parquet", "--only", "RE", *SCORE, tiny_lm_folder, "--out", "s.parquet")
    scored = answer(*asked)
    assert len(scored["re_sources"]) == 1
    assert scored["re_sources"][0].startswith("scored:tiny@")
    assert scored["signals"]["RE"]["n"] == logged["signals"]["RE"]["n"]
    first = read_table(place / "s.parquet").column("RE")
    assert not np.allclose(first, read_table(place / "logged.parquet").column("RE"))
    assert (place / "cache" / "scored.sqlite").exists()
    answer(*asked)
    np.testing.assert_array_equal(read_table(place / "s.parquet").column("RE"), first)


def test_thoughts_can_be_scored_where_no_logprobs_were_logged(place, answer, tiny_lm_folder, make_logs):
    write_trajectories(place / "bare.parquet", make_logs(2, logprobs=False))
    result = answer("signals", "bare.parquet", "--only", "RE", *SCORE, tiny_lm_folder, "--out", "s.parquet")
    assert result["signals"]["RE"]["nulls"] == {}


def test_a_model_that_is_not_there_is_one_line(place, command):
    status, out, err = command(
        "signals", "logs.parquet", "--only", "RE", "--score-reasoning", "no/such", "--out", "s.parquet"
    )
    assert (status, out) == (2, "")
    assert "model no/such: cannot be loaded" in err
    assert "Traceback" not in err


def test_too_long_a_window_names_the_option(place, command, tiny_lm_folder):
    status, _, err = command(
        "signals", "logs.parquet", "--only", "RE", "--score-reasoning", tiny_lm_folder, "--out", "s.parquet"
    )
    assert status == 2
    assert "more than its context of 2048; give a smaller window (--score-window) than 16000 characters" in err
    status, _, err = command("signals", "logs.parquet", "--score-window", "9", "--out", "s.parquet")
    assert (status, "--score-window: goes with --score-reasoning M" in err) == (2, True)
