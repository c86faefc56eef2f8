"""Controllers that ask a language model, from the command line."""

import json
from pathlib import Path

import pytest
import yaml

from stopwise.cli.benchmark import BenchmarkConfig
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import asks_model, make_rule
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.package import PolicyPackage, write_package
from stopwise.data.config import load_config
from stopwise.data.store import write_trajectories
from stopwise.envs.arena.collection import CollectConfig, ControllerChoice
from stopwise.signals.table import read_table
from stopwise.train.train import TrainConfig

FLAG = json.dumps({"err": 1, "suggestion": "Try the second clue."})
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def place(tmp_path, monkeypatch, make_logs, server, answer):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    write_trajectories(tmp_path / "logs.parquet", make_logs(14))
    answer("signals", "logs.parquet", "--only", "Nov,RE", "--out", "signals.parquet")
    return tmp_path


@pytest.fixture
def config(place, server):
    def write(*controllers, **fields):
        llm = {"endpoint": {"url": server.url, "model": "m", "patience": {"attempts": 1}}}
        values = {"signals": "signals.parquet", "split": "all", "intervention": "noop", "llm": llm, **fields}
        values = {key: value for key, value in values.items() if value is not None}
        (place / "benchmark.yaml").write_text(yaml.safe_dump(values | {"controllers": list(controllers)}))
        return "benchmark.yaml"

    return write


def test_a_benchmark_names_model_prompt_calls_and_failures(config, answer, server):
    server.otherwise = lambda body: "no JSON" if "Thought: I look for part 0" in str(body) else FLAG
    written = config({"kind": "llm_critic"}, {"kind": "never_stop"}, logs="logs.parquet")
    result = answer("benchmark", written, "--out", "run")
    critic, never = result["rows"]
    assert critic["model"] == f"m@{server.url}"
    assert critic["served_model"] == "m"
    assert critic["prompts"][0].startswith("critic@")
    assert critic["interventions"] > 0
    assert critic["controller_failures"]["no JSON in reply"] > 0
    assert result["llm"]["operation"]["controller"]["calls"] == len(server.requests)
    assert never["controller_calls"] == 0
    assert "model" not in never
    calls = len(server.requests)
    again = answer("benchmark", written, "--out", "again")
    assert len(server.requests) == calls
    for name in ("recall", "searches", "interventions", "controller_calls", "controller_tokens", "controller_failures"):
        assert again["rows"][0][name] == critic[name]


def test_without_texts_it_does_not_apply(config, answer, server):
    result = answer("benchmark", config({"kind": "llm_critic"}, {"kind": "raac"}), "--out", "run")
    assert result["rows"][0]["not_applicable"].startswith("no texts")
    assert result["rows"][1]["not_applicable"] == "no Cov: not computed"
    assert server.requests == []


@pytest.mark.parametrize(
    ("controllers", "fields", "message"),
    [
        ([{"kind": "raac"}], {"llm": None}, "llm: controllers.0, raac, asks a language model; name one, see configs"),
        ([{"kind": "ds_mcm", "params": {"slow": True}}], {}, "controllers.0.memory: ds_mcm with slow asks a memory"),
        ([{"kind": "raac", "memory": "m"}], {}, "controllers.0.memory: raac asks no memory"),
        ([{"kind": "ds_mcm", "params": {"slow": True}, "memory": "m"}], {}, "m: no experience memory; build one"),
        ([{"kind": "ds_mcm", "params": {"with_se": False}}], {}, "RE_z needs residual"),
        ([{"kind": "raac", "params": {"signals": ["SE"]}}], {}, "raac: signals"),
        ([{"kind": "llm_critic"}], {"logs": "none.parquet"}, "none.parquet"),
        ([{"kind": "llm_critic"}], {"logs": "other.parquet"}, "the signals were computed from"),
    ],
)
def test_what_is_missing_is_named(config, command, place, make_logs, controllers, fields, message):
    write_trajectories(place / "other.parquet", make_logs(3))
    status, _, err = command("benchmark", config(*controllers, **fields), "--out", "run")
    assert status in (1, 2)
    assert message in err
    assert not (place / "run").exists()


def test_a_random_controller_is_not_matched_to_one_that_reads_texts(config, answer, server):
    server.otherwise = FLAG
    written = config({"kind": "llm_critic"}, {"kind": "random", "match": "llm_critic"}, logs="logs.parquet")
    row = answer("benchmark", written, "--out", "run")["rows"][1]
    assert "reads texts" in row["not_applicable"]


def test_a_package_is_replayed_with_its_model(place, answer, command, server):
    server.otherwise = FLAG
    table = read_table(place / "signals.parquet")
    write_package(place / "policy", PolicyPackage("critic", LlmCritic(), Guards(), table.info))
    (place / "llm.yaml").write_text(yaml.safe_dump({"endpoint": {"url": server.url, "model": "m"}}))
    result = answer("replay", "policy", "logs.parquet", "--limit", "2", "--llm", "llm.yaml", "--out", "d.jsonl")
    assert result["decisions"]["intervene"] > 0
    lines = [json.loads(line) for line in (place / "d.jsonl").read_text().splitlines()]
    assert {line["message"] for line in lines if line["action"] == "intervene"} == {"Try the second clue."}
    status, _, err = command("replay", "policy", "logs.parquet")
    assert status == 2
    assert "llm_critic: asks a language model; name one under `llm`" in err


@pytest.mark.parametrize("kind", ["llm_critic", "raac", "never_stop"])
def test_training_says_what_it_cannot_do(place, command, kind):
    llm = {"llm": {"local": "x"}} if kind == "never_stop" else {}
    (place / "t.yaml").write_text(yaml.safe_dump({"kind": kind, "signals": "signals.parquet", **llm}))
    status, _, err = command("train", "t.yaml", "--out", "run")
    assert status == 2
    told = {"llm_critic": "reads texts", "raac": "asks a language model; name one under `llm`"}
    assert told.get(kind, "asks no language model; leave out `llm`") in err


def test_the_shipped_configs_are_read():
    prompted = load_config(BenchmarkConfig, CONFIGS / "papers_prompted.yaml")
    assert {choice.kind for choice in prompted.controllers} >= {"raac", "llm_critic", "ds_mcm", "heuristic"}
    assert prompted.arena is not None
    assert prompted.arena.driven
    rules = load_config(BenchmarkConfig, CONFIGS / "papers_benchmark.yaml")
    matched = {choice.match for choice in rules.controllers if choice.by == "interventions"}
    assert matched == {f"ds_mcm fast k {k}" for k in (0.5, 1, 2)}
    for choice in rules.controllers:
        assert not asks_model(make_rule(choice.kind or "", choice.params)), choice.name
    for choices in (prompted.controllers, rules.controllers):
        found = [choice for choice in choices if choice.kind == "ds_mcm"]
        assert {choice.params["k"] for choice in found} == {0.5, 1, 2, 3, 4}
    assert {choice.params.get("recall") for choice in prompted.controllers if choice.memory} == {1, 2, 4, 8}
    assert load_config(TrainConfig, CONFIGS / "raac.yaml").kind == "raac"
    collection = load_config(CollectConfig, CONFIGS / "collect_ds_mcm.yaml")
    assert collection.controller is not None
    assert (collection.controller.memory, collection.controller.signals) == ("runs/memory", "samples")
    other = load_config(CollectConfig, CONFIGS / "collect_ds_mcm.yaml", ["controller={kind: llm_critic}"])
    assert other.controller == ControllerChoice("llm_critic")
