"""The chain of commands as a user runs it, on small logs and without an encoder."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from stopwise.controllers.session import ControlSession
from stopwise.data.store import read_trajectories, write_trajectories
from stopwise.runtime import load
from stopwise.signals.table import read_table

ONLY = ["Nov", "steps_since_new", "score_top", "RE"]
CONFIG = {
    "kind": "logistic",
    "signals": "signals.parquet",
    "reward": {"search": 0.02},
    "grid": {"C": [0.1]},
    "targets": {"folds": 3, "min_rows": 30},
}
BENCHMARK = {
    "signals": "signals.parquet",
    "reward": {"search": 0.02},
    "controllers": [
        {"kind": "never_stop"},
        {"kind": "fixed_budget", "params": {"budget": 3}},
        {"kind": "random", "match": "logistic"},
        {"kind": "heuristic"},
        {"kind": "ds_mcm"},
        {"policy": "runs/logistic"},
        {"kind": "random", "name": "matched to nothing", "match": "ds_mcm"},
        {"kind": "oracle"},
    ],
}


def write_yaml(path, value):
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_logs):
    """A working folder with logs and configs; commands run inside it."""
    folder = tmp_path_factory.mktemp("work")
    write_trajectories(folder / "logs.parquet", make_logs())
    write_yaml(folder / "logistic.yaml", CONFIG)
    write_yaml(folder / "benchmark.yaml", BENCHMARK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("STOPWISE_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def signals(place, answer):
    return answer("signals", "logs.parquet", "--only", *ONLY, "--out", "signals.parquet")


@pytest.fixture(scope="module")
def trained(signals, answer):
    return answer("train", "logistic.yaml", "--out", "runs/logistic")


@pytest.fixture(scope="module")
def compared(trained, answer):
    return answer("benchmark", "benchmark.yaml", "--out", "runs/benchmark")


@pytest.fixture(scope="module")
def exported(compared, answer):
    return answer("export", "runs/logistic", "--out", "policy", "--benchmark", "runs/benchmark")


def test_signals_reports_every_signal(signals, place):
    table = read_table(place / "signals.parquet")
    assert list(signals["signals"]) == ONLY
    for row in signals["signals"].values():
        assert row.keys() == {"mean", "std", "n", "nulls"}
        assert row["n"] + sum(row["nulls"].values()) == len(table.values)
    assert signals["signals"]["Nov"]["mean"] == pytest.approx(table.column("Nov").mean())
    assert (signals["trajectories"], signals["with_gold"], signals["encoder"]) == (96, 96, None)
    assert not (place / "cache").exists()  # no signal needs embeddings: no encoder, no cache


def test_analyze_reports_three_aurocs_a_signal(signals, place, answer, command):
    result = answer("analyze", "signals.parquet", "--resamples", "50", "--out", "analysis.json")
    assert list(result["auroc"]) == ONLY
    for kinds in result["auroc"].values():
        assert kinds.keys() == {"pooled", "turn_matched", "within_question"}
        assert all({"value", "ci", "pairs"} <= entry.keys() for entry in kinds.values())
    assert result["auroc"]["Nov"]["pooled"]["value"] > 0.7
    assert json.loads((place / "analysis.json").read_text()) == result
    assert answer("analyze", "signals.parquet", "--resamples", "50") == result
    status, out, err = command("analyze", "signals.parquet", "--resamples", "20")
    assert (status, "Nov" in out, "with gold" in err) == (0, True, True)


def test_train_leaves_a_policy_and_its_record(trained, place):
    run = place / "runs" / "logistic"
    assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "policy", "result.json"]
    assert json.loads((run / "result.json").read_text()) | {"out": "runs/logistic"} == trained
    assert trained["validation"]["return"] is not None
    assert trained["data_sha256"].keys() == {"signals"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["grid"] == {"C": [0.1]}
    assert config["guards"]["max_steps"] == 100  # resolved: defaults stand in it
    assert (run / "config.yaml").read_text().startswith("# stopwise train logistic.yaml --out runs/logistic\n")


def test_a_resolved_config_makes_the_same_policy_again(trained, place, answer):
    answer("train", "runs/logistic/config.yaml", "--out", "again")
    for name in ("manifest.json", "weights.safetensors", "README.md"):
        assert (place / "again/policy" / name).read_bytes() == (place / "runs/logistic/policy" / name).read_bytes()


def test_overrides_change_the_config(trained, answer, place):
    result = answer("train", "logistic.yaml", "--out", "dear", "reward.search=0.3", "name=dear", "seed=2")
    assert result["config"]["reward"]["search"] == 0.3
    assert result["validation"]["searches"] < trained["validation"]["searches"]
    assert result["command"].endswith("reward.search=0.3 name=dear seed=2 --out dear")


def test_benchmark_compares_in_the_configs_order(compared, place):
    rows = {row["controller"]: row for row in compared["rows"]}
    assert list(rows) == [
        "never_stop",
        "fixed_budget",
        "random ~ logistic",
        "heuristic",
        "ds_mcm",
        "logistic",
        "matched to nothing",
        "oracle",
    ]
    for row in rows.values():
        assert row["intervention_model"] == "forbidden"
        assert "not_applicable" in row or {"searches", "recall", "accuracy", "saving", "return"} <= row.keys()
    assert rows["ds_mcm"]["not_applicable"] == "no residual_z: not computed"
    assert rows["matched to nothing"]["not_applicable"] == "ds_mcm is not applicable: no residual_z: not computed"
    assert rows["logistic"]["policy"] == "runs/logistic"
    assert rows["logistic"]["searches"] < rows["never_stop"]["searches"]
    assert rows["oracle"]["return"] >= rows["logistic"]["return"]
    assert rows["random ~ logistic"]["recall"] < rows["logistic"]["recall"]
    stored = json.loads((place / "runs/benchmark/result.json").read_text())
    assert stored | {"out": "runs/benchmark"} == compared


def test_benchmark_prints_a_table(compared, command):
    status, out, err = command("benchmark", "benchmark.yaml", "--out", "table", "split=all", "intervention=noop")
    assert status == 0
    for text in ("never_stop", "not applicable", "intervention model: noop", "48 all questions, 96 runs"):
        assert text in out
    assert "result in table/result.json" in err


def test_an_exported_policy_carries_its_figures(exported, compared, place):
    manifest = json.loads((place / "policy/manifest.json").read_text())
    [row] = [row for row in compared["rows"] if row["controller"] == "logistic"]
    figures = manifest["training"]["benchmark"]
    assert (figures["recall"], figures["searches"]) == (row["recall"], row["searches"])
    assert figures["recall_difference_ci"] == row["versus_never_stop"]["recall"]["ci"]
    assert exported == {"out": "policy", "name": "logistic", "kind": "logistic", "form": "policy"}


def test_a_run_may_be_named_by_its_policy_folder_too(compared, answer):
    answer("export", "runs/logistic/policy", "--out", "other", "--benchmark", "runs/benchmark/result.json")


def test_the_exported_policy_decides_as_the_trained_one_on_every_step(exported, place, answer):
    result = answer("replay", "policy", "logs.parquet", "--out", "decisions.jsonl")
    lines = [json.loads(line) for line in (place / "decisions.jsonl").read_text().splitlines()]
    table = read_table(place / "signals.parquet")
    trained = load(place / "runs/logistic/policy").package
    session = ControlSession(trained.controller, trained.guards)
    expected = []
    for number, episode in enumerate(table.episodes):
        session.begin()
        for index in range(table.offsets[number], table.offsets[number + 1]):
            decision = session.decide(table.row(index))
            expected.append(
                (episode.id, table.turns[index], decision.action.name.lower(), list(decision.probabilities))
            )
            if decision.action.name == "STOP":
                break
    assert [(line["trajectory"], line["t"], line["action"], line["probabilities"]) for line in lines] == expected
    assert result["searches_made"] == len(lines) < result["searches_logged"] == len(table.values)
    assert (result["runs"], result["failures"]) == (96, {})
    assert result["decisions"]["stop"] == result["stopped"]
    assert result["decisions"].keys() == {"continue", "intervene", "stop"}
    assert result["missing_signals"] == {}


def test_replay_and_benchmark_agree(exported, place, answer):
    config = {"signals": "signals.parquet", "split": "all", "controllers": [{"policy": "policy"}]}
    write_yaml(place / "all.yaml", config)
    [row] = answer("benchmark", "all.yaml", "--out", "all")["rows"]
    result = answer("replay", "policy", "logs.parquet")
    assert result["saving"] == pytest.approx(row["saving"])  # as many runs of each question
    assert result["recall_kept"] == pytest.approx(row["recall"])
    assert result["stopped"] == row["stopped"]
    assert answer("replay", "policy", "logs.parquet", "--limit", "5")["runs"] == 5


def test_replay_for_people(exported, command):
    status, out, _ = command("replay", "policy", "logs.parquet", "--limit", "10")
    assert status == 0
    assert "of 10 runs stopped early" in out
    assert "recall of 10 runs with gold" in out


def test_logs_without_gold_are_replayed_and_benchmarked_without_recall(exported, place, make_logs, answer, command):
    write_trajectories(place / "bare.parquet", make_logs(gold=False, logprobs=False))
    result = answer("signals", "bare.parquet", "--only", *ONLY, "--out", "bare-signals.parquet")
    assert result["signals"]["RE"] == {
        "mean": None,
        "std": None,
        "n": 0,
        "nulls": {"no logprobs": result["decision_points"]},
    }
    result = answer("replay", "policy", "bare.parquet")
    assert (result["runs_with_gold"], result["recall_kept"], result["recall_logged"]) == (0, None, None)
    assert result["missing_signals"].keys() == {"RE: no logprobs"}
    result = answer("benchmark", "benchmark.yaml", "signals=bare-signals.parquet", "--out", "bare")
    rows = {row["controller"]: row for row in result["rows"]}
    assert rows["logistic"]["recall"] is None
    assert rows["logistic"]["searches"] > 0
    assert rows["oracle"]["not_applicable"].startswith("no gold")
    assert result["runs_with_gold"] == 0
    for words in (["analyze", "bare-signals.parquet"], ["train", "logistic.yaml", "signals=bare-signals.parquet"]):
        status, out, err = command(*words, *(["--out", "x"] if words[0] == "train" else []))
        assert (status, out) == (1, "")
        assert "no run has gold" in err
    assert not (place / "x").exists()


def test_a_rule_is_tuned_exported_and_replayed(signals, place, answer):
    write_yaml(
        place / "heuristic.yaml",
        {"kind": "heuristic", "signals": "signals.parquet", "grid": {"window": [2, 3], "nov_low": [0.0, 0.3]}},
    )
    result = answer("train", "heuristic.yaml", "--out", "runs/heuristic")
    assert len(result["tried"]) == 4
    answer("export", "runs/heuristic", "--out", "rule")
    assert answer("replay", "rule", "logs.parquet", "--limit", "20")["stopped"] > 0


def test_a_result_is_replaced_whole_and_other_folders_never(trained, place, command, answer):
    answer("train", "logistic.yaml", "--out", "twice", "grid.C=[1.0]")
    assert answer("train", "logistic.yaml", "--out", "twice")["config"]["grid"] == {"C": [0.1]}
    (place / "thesis").mkdir()
    (place / "thesis/chapter1.tex").write_text("years of work")
    for words in (
        ["train", "logistic.yaml", "--out", "thesis"],
        ["benchmark", "benchmark.yaml", "--out", "thesis"],
        ["export", "runs/logistic", "--out", "thesis"],
        ["export", "runs/logistic", "--out", "runs/logistic"],
    ):
        status, out, err = command(*words)
        assert (status, out) == (2, "")
        assert "holds other files" in err
    assert (place / "thesis/chapter1.tex").read_text() == "years of work"
    assert (place / "runs/logistic/policy").is_dir()


@pytest.mark.slow
def test_the_whole_chain_with_the_real_encoder(place, make_logs, answer, tmp_path):
    write_trajectories(tmp_path / "logs.parquet", make_logs(24))
    table = tmp_path / "signals.parquet"
    result = answer("signals", tmp_path / "logs.parquet", "--out", table)
    assert result["encoder"].startswith("all-MiniLM-L6-v2@")
    assert result["signals"]["Sim"]["n"] == result["decision_points"]
    answer("train", "logistic.yaml", f"signals={table}", "--out", tmp_path / "run")
    answer("export", tmp_path / "run", "--out", tmp_path / "policy")
    replayed = answer("replay", tmp_path / "policy", tmp_path / "logs.parquet", "--out", tmp_path / "decisions.jsonl")
    assert replayed["failures"] == {}
    read = read_table(table)
    trained = load(tmp_path / "run/policy").package
    session = ControlSession(trained.controller, trained.guards)
    lines = iter((tmp_path / "decisions.jsonl").read_text().splitlines())
    for number, run in enumerate(read_trajectories(tmp_path / "logs.parquet")):
        session.begin()
        for index in range(read.offsets[number], read.offsets[number + 1]):
            decision, line = session.decide(read.row(index)), json.loads(next(lines))
            assert (line["trajectory"], line["action"]) == (run.id, decision.action.name.lower())
            assert line["probabilities"] == list(decision.probabilities)
            if line["action"] == "stop":
                break
    assert next(lines, None) is None


def test_as_a_process(exported, place):
    """Exit status, stdout and stderr of a real process, once."""

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "stopwise.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ},
        )

    done = run("replay", "policy", "logs.parquet", "--limit", "3", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["runs"] == 3
    failed = run("replay", "nowhere", "logs.parquet", "--json")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert (
        failed.stderr
        == "stopwise replay: nowhere: no such folder; expected a policy package, or a run of `stopwise train`\n"
    )
