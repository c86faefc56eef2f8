import json
import sys

import pytest

from stopwise.data.store import write_trajectories


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_logs, answer):
    folder = tmp_path_factory.mktemp("minari")
    write_trajectories(folder / "logs.parquet", make_logs(6))
    answer("signals", folder / "logs.parquet", "--only", "Nov", "--out", folder / "signals.parquet")
    return folder


def convert(place, *words):
    return ("convert", place / "logs.parquet", "--to", "minari", "--signals", place / "signals.parquet", *words)


@pytest.mark.filterwarnings("ignore")  # minari's own
def test_a_dataset_of_decision_episodes(answer, command, place, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    out = "mine-v3"  # Minari takes a relative path for one from the dataset's folder
    result = answer(*convert(place, "--reward", "search=0.5", "--out", out))
    out = tmp_path / out
    dataset = minari.MinariDataset(out / "data")
    assert (result["episodes"], dataset.id) == (dataset.total_episodes, "mine-v3")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert minari.load_dataset("mine-v3").total_episodes == dataset.total_episodes
    assert json.loads(dataset.storage.metadata["stopwise"])["reward"]["search"] == 0.5
    parts = 0
    for split in ("train", "val", "cal", "test"):
        status, _, stderr = command(*convert(place, "--split", split, "--out", out))  # takes the old one's place
        assert status == 0 or "none in that split" in stderr
        if status == 0:
            read = minari.MinariDataset(out / "data")
            assert {row["split"] for row in read.storage.get_episode_metadata(range(len(read)))} == {split}
            parts += len(read)
    assert parts == result["episodes"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--reward", "serach=1"), 2, "unknown key serach; did you mean search?"),
        (("--reward", "search=dear"), 2, "--reward search=dear: expected KEY=NUMBER"),
        (("--reward", "search=-1"), 2, "reward.search: -1.0; expected a number of 0 or more"),
        (("--features", "Nvo"), 2, "unknown signal 'Nvo'"),
        (("--features", "SE"), 1, "no column 'SE'"),
        (("--signals", "nowhere"), 1, "nowhere: no such file"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(command, place, tmp_path, words, status, message):
    pytest.importorskip("minari")
    found, stdout, stderr = command(*convert(place, *words, "--out", tmp_path / "out"))
    assert (found, stdout, stderr.count("\n")) == (status, "", 1)
    assert message in stderr
    assert not list(tmp_path.iterdir())


def test_signals_of_other_logs_and_missing_signals(command, place, make_logs, tmp_path):
    write_trajectories(tmp_path / "other.parquet", make_logs(3))
    words = ("convert", tmp_path / "other.parquet", "--to", "minari", "--out", tmp_path / "out")
    status, _, stderr = command(*words, "--signals", place / "signals.parquet")
    assert (status, "was computed from other logs" in stderr) == (1, True)
    assert "--signals FILE is missing" in command(*words)[2]
    assert "--split belongs to --to minari" in command(*words[:3], "jsonl", *words[4:], "--split", "val")[2]
    assert not (tmp_path / "out").exists()


def test_without_minari(command, place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    status, _, stderr = command(*convert(place, "--out", tmp_path / "out"))
    assert (status, "minari is not installed; pip install" in stderr) == (2, True)
    assert not list(tmp_path.iterdir())
