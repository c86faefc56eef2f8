"""The arena benchmark over agents that a language model drives, from the command line."""

import json
import re

import pytest
import yaml

from stopwise.data.files import lock_beside, only_process
from stopwise.data.store import write_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.models.prompts import load_prompt

pytest.importorskip("bm25s")

CRITIC = load_prompt("critic").text[:40]


def reply(body):
    """Searches twice and answers; as a critic finds an error in everything."""
    text = body["messages"][-1]["content"]
    if text.startswith(CRITIC):
        return json.dumps({"err": 1, "suggestion": "Try the second clue."})
    return f"I look.\nSearch: town {len(body['messages'])}" if len(body["messages"]) < 6 else "Answer: Alba"


@pytest.fixture
def config(tmp_path, monkeypatch, make_logs, server, answer):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    write_trajectories(tmp_path / "logs.parquet", make_logs(14))
    answer("signals", "logs.parquet", "--only", "Nov", "--out", "signals.parquet")
    write_world(tmp_path / "world", WorldConfig(documents=900, questions=40, seed=2))
    server.otherwise = reply
    model = {"endpoint": {"url": server.url, "model": "m", "patience": {"attempts": 1}}, "parallel": 1}
    values = {
        "signals": "signals.parquet",
        "split": "all",
        "llm": model,
        "arena": {
            "corpus": "world",
            "agents": ["react"],
            "react": [{"name": "react"}],
            "llm": model,
            "questions": 2,
            "retriever": "bm25",
        },
        "controllers": [{"kind": "never_stop"}, {"kind": "llm_critic"}],
    }

    def write(**fields):
        (tmp_path / "benchmark.yaml").write_text(yaml.safe_dump(values | fields))
        return "benchmark.yaml"

    return write


def test_every_row_names_its_models_and_bills_stand_apart(config, answer, command, server, tmp_path):
    result = answer("benchmark", config(), "--out", "run")
    never, critic = result["rows"]
    model = f"m@{server.url}"
    assert never["models"] == {"agent": model, "controller": None, "rethinker": None, "coverage": None}
    assert critic["models"]["controller"] == model
    assert never["overhead"]["times_alone"] == pytest.approx(1)
    assert 0 < critic["overhead"]["seconds"]["controller"] < 1
    assert critic["cost"]["calls"]["controller"] == critic["controller_calls"] > 0
    assert result["llm"]["operation"].keys() == {"controller", "total"}
    assert result["agents_llm"]["operation"].keys() == {"agent", "total"}
    told = answer("cost", "run")["bills"]
    assert told == {"run (agents)": result["agents_llm"], "run": result["llm"]}
    status, out, err = command("benchmark", "benchmark.yaml", "--out", "again")
    assert status == 0
    assert "what a run cost: react" in out
    critic = json.loads((tmp_path / "again" / "result.json").read_text())["rows"][1]  # seconds differ from call to call
    (line,) = (line for line in out.split("all agents")[1].split("react")[0].splitlines() if "llm_critic" in line)
    cells = [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
    share = sum(critic["overhead"]["seconds"].values())
    assert cells[-2:] == [f"{share:.1%}", f"{critic['overhead']['times_alone']:.2f}"]
    assert "seconds of controller and rethinker in the whole run" in err
    assert "controllers" not in json.dumps(result["agents_llm"])


def test_the_arms_of_another_benchmark_are_kept_and_told_at_once(config, answer, command, server, tmp_path):
    answer("benchmark", config(), "--out", "run")
    assert not (tmp_path / "run.arms").exists()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    asked = len(server.requests)
    words = ("benchmark", config(controllers=[{"kind": "never_stop"}]), "--out", "run")
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert "the runs of an arm that this benchmark has not; name another folder, or move it away" in err
    assert len(server.requests) == asked
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    answer("benchmark", config(), "--out", "run")  # the same benchmark anew replaces it


def test_finished_arms_outlive_a_result_that_cannot_be_written(config, command, tmp_path, monkeypatch):
    def lost(target, partial):  # of the run alone: the arms' policies are folders, too
        return "kept.txt" if target.name == "run" else None

    monkeypatch.setattr("stopwise.data.files._would_be_lost", lost)
    status, _, err = command("benchmark", config(), "--out", "run")
    assert (status, "kept.txt, which this command does not write" in err) == (2, True)
    assert len(list((tmp_path / "run.arms").glob("*.parquet"))) == 2


def test_arms_that_another_process_works_on_are_refused(config, command, server, tmp_path):
    with only_process(tmp_path / "run", lock_beside(tmp_path / "run")):
        status, out, err = command("benchmark", config(), "--out", "run")
    assert (status, out) == (2, "")
    assert "run.arms: another process is working on it; wait until that ends, or name another folder" in err
    assert server.requests == []
    assert not (tmp_path / "run.arms").exists()


def test_a_rethinker_without_a_model_is_refused_at_once(config, command, server):
    rows = [{"kind": "never_stop"}, {"kind": "heuristic", "rethinker": {"kind": "llm"}}]
    arena = {"corpus": "world", "agents": ["quitter"], "questions": 1, "retriever": "bm25"}
    status, _, err = command("benchmark", config(arena=arena, controllers=rows), "--out", "run")
    assert status == 2
    assert "llm: is needed by an agent, the controller, the rethinker" in err
    assert server.requests == []


def test_a_row_matched_by_interventions_has_the_other_rows_rethinker_and_is_told(config, command, tmp_path):
    often = {"kind": "random", "name": "often", "params": {"stop": 0, "intervene": 0.4}}
    often["rethinker"] = {"kind": "random"}
    rows = [{"kind": "random", "match": "often", "by": "interventions", "versus": ["often"]}, often]
    arena = {"corpus": "world", "agents": ["quitter", "chaser"], "questions": 4, "retriever": "bm25"}
    status, out, _ = command("benchmark", config(arena=arena, controllers=rows, llm=None), "--out", "run")
    assert status == 0
    matched, reference = json.loads((tmp_path / "run" / "result.json").read_text())["rows"]
    assert matched["rethinker"] == reference["rethinker"] | {"kind": "random"}
    assert matched["matched"]["interventions_of_row"] == reference["interventions"] > 0
    told = f"where it may, {matched['interventions']:.2f} times a run; often {reference['interventions']:.2f}"
    assert f"random interventions ~ often: intervenes with probability {matched['matched']['rate']:.3f} {told}" in out
