import json
import random
import time

import pytest

from stopwise.data.store import write_trajectories
from stopwise.signals.table import read_table

CONFIG = """
endpoint: {{url: "{url}", model: judge-model, prices: {{prompt: 1000000}}, patience: {{attempts: 1}}}}
"""
FULL = json.dumps({"statuses": [{"number": 1, "status": "full"}], "add": [], "remove": []})
ONLY = ("signals", "logs.parquet", "--only", "Cov", "--out", "s.parquet")


@pytest.fixture
def place(tmp_path, monkeypatch, make_logs, server):
    """A folder with logs, a language model's config and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    write_trajectories(tmp_path / "logs.parquet", make_logs(1))
    (tmp_path / "llm.yaml").write_text(CONFIG.format(url=server.url))
    return tmp_path


def test_coverage_by_a_language_model(place, answer, server):
    server.otherwise = FULL
    asked = (*ONLY, "--cov-judge", "llm", "--llm", "llm.yaml")
    first = answer(*asked)
    steps = first["decision_points"]
    assert first["coverage_judge"] == "llm"
    assert first["coverage_model"].startswith(f"judge-model@{server.url} static criteria_stated@")
    assert first["signals"]["Cov"]["mean"] == 1
    assert (first["llm"]["judged"], first["llm"]["failed"], first["llm"]["served_model"]) == (steps, 0, "judge-model")
    assert first["llm"]["cost"]["operation"]["coverage"]["money"] == pytest.approx(10 * len(server.requests))
    assert read_table(place / "s.parquet").info.config.coverage_model == first["coverage_model"]
    calls = len(server.requests)
    second = answer(*asked)
    assert len(server.requests) == calls
    assert second["llm"]["cost"]["operation"]["total"]["money"] == 0
    assert second["signals"] == first["signals"]


def test_runs_are_judged_side_by_side_and_the_table_is_the_same(place, answer, server):
    waits, under_way, most = random.Random(0), [], []

    def slowly(body):
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(waits.random() / 50)
        under_way.pop()
        return FULL if len(json.dumps(body)) % 2 else "no"

    server.otherwise = slowly
    written = []
    for parallel in (1, 6):
        (place / "llm.yaml").write_text(
            CONFIG.format(url=server.url) + f"parallel: {parallel}\ncache: replies{parallel}.sqlite\n"
        )
        most.clear()
        result = answer(*ONLY, "--cov-judge", "llm", "--llm", "llm.yaml")
        written.append(((place / "s.parquet").read_bytes(), result["llm"]["failures"], result["signals"]))
        assert (max(most) > 1) == (parallel > 1)
    assert written[0] == written[1]


def test_the_bill_stands_beside_the_table_and_sums_up_interrupted_calls(place, command, answer, server):
    server.otherwise = FULL
    asked = (*ONLY, "--cov-judge", "llm", "--llm", "llm.yaml")
    plain = CONFIG.format(url=server.url)
    (place / "llm.yaml").write_text(plain + "budget: {calls: 3}\n")
    status, _, err = command(*asked)
    assert status == 1
    assert "with a larger budget.calls the same command goes on where it stopped" in err
    assert not (place / "s.parquet").exists()
    (place / "llm.yaml").write_text(plain)
    steps = answer(*asked)["decision_points"]
    bill = answer("cost", "s.parquet")["bills"]["s.parquet"]
    assert bill["model"] == f"judge-model@{server.url}"
    assert bill["operation"]["coverage"]["calls"] == len(server.requests) == steps
    assert bill["operation"]["coverage"]["money"] == pytest.approx(10 * steps)


def test_failures_are_reported(place, answer, server):
    server.otherwise = "no"
    result = answer(*ONLY, "--cov-judge", "llm", "--llm", "llm.yaml")
    assert result["llm"]["failures"] == {"no JSON in reply": result["decision_points"]}
    assert result["signals"]["Cov"]["mean"] == 0


@pytest.mark.parametrize(
    ("words", "config", "message"),
    [
        (("--cov-judge", "llm"), None, "--cov-judge llm: needs a language model; say --llm FILE"),
        (("--llm", "llm.yaml"), None, "go with --cov-judge llm"),
        (("--cov-judge", "llm", "--llm", "llm.yaml"), "{}", "expected either `endpoint` or `local`"),
        (("--cov-judge", "llm", "--llm", "llm.yaml"), "local: x\nparalel: 2", "did you mean parallel?"),
        (("--cov-judge", "llm", "--llm", "none.yaml"), None, "none.yaml: no such file"),
        (
            ("--cov-judge", "llm", "--llm", "llm.yaml"),
            'endpoint: {url: "http://h/v1", model: m, key_variable: NO_SUCH_KEY}',
            "the environment variable NO_SUCH_KEY is not set",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(place, command, words, config, message):
    if config is not None:
        (place / "llm.yaml").write_text(config)
    status, out, err = command(*ONLY, *words)
    assert status in (1, 2)
    assert out == ""
    assert message in err
    assert "Traceback" not in err
