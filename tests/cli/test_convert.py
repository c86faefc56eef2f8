import json

import pytest

from stopwise.data.importers import read_logs
from stopwise.data.records import Document, Logprobs, Step, Trajectory
from stopwise.data.store import write_trajectories

STEP = Step(
    "search", queries=("Ada",), documents=(Document("d", "😀"),), logprobs=Logprobs(top=((-0.5, float("-inf")),))
)
RUNS = [Trajectory("a", "q", "Where?", steps=(STEP,)), Trajectory("b", "q", "Where?", ended_by="budget")]


@pytest.fixture
def logs(tmp_path):
    path = tmp_path / "logs.parquet"
    write_trajectories(path, RUNS)
    return path


def test_json_lines_read_back_as_the_same_trajectories(stopwise, logs, tmp_path):
    out = tmp_path / "logs.jsonl"
    status, stdout, _ = stopwise("convert", logs, "--to", "jsonl", "--out", out, "--json")
    assert (status, json.loads(stdout)) == (0, {"trajectories": 2, "to": "jsonl", "out": str(out)})
    assert list(read_logs([out])) == RUNS


@pytest.mark.slow
def test_a_dataset_on_disk(stopwise, logs, tmp_path):
    datasets = pytest.importorskip("datasets")
    out = tmp_path / "dataset"
    assert stopwise("convert", logs, "--to", "datasets", "--out", out)[0] == 0
    loaded = datasets.load_from_disk(str(out))
    assert loaded["id"][:] == ["a", "b"]
    assert loaded[0]["documents"] == [{"id": "d", "text": "😀", "title": None, "url": None}]


def test_what_is_no_file_of_trajectories_is_refused(stopwise, tmp_path):
    for target in ("jsonl", "datasets"):
        status, _, stderr = stopwise("convert", tmp_path / "none", "--to", target, "--out", tmp_path / "o")
        assert (status, stderr) == (1, f"{tmp_path / 'none'}: no such file")
        assert not list(tmp_path.iterdir())
