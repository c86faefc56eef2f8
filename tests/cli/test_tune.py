"""``stopwise tune``: thresholds from the arena, from the command line."""

import numpy as np
import pytest
import yaml

from stopwise.controllers.guards import Guards
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.package import PolicyPackage, read_package, write_package
from stopwise.data.store import write_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import read_table
from stopwise.train.closed_loop import two_thresholds

pytest.importorskip("bm25s")


@pytest.fixture
def config(tmp_path, monkeypatch, make_logs, answer):
    """A policy that stops late for sure and never intervenes, a small world, and a config that tunes it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    write_trajectories(tmp_path / "logs.parquet", make_logs(14))
    answer("signals", "logs.parquet", "--only", "Nov", "--out", "signals.parquet")
    write_world(tmp_path / "world", WorldConfig(documents=900, questions=40, seed=2))
    spec = FeatureSpec(())
    size = 2 * len(spec)
    coef = np.zeros((3, size))
    coef[2, 0] = 0.3
    weights = {"mean": np.zeros(size), "scale": np.ones(size), "coef": coef, "intercept": np.zeros(3)}
    controller = Logistic(spec, weights, threshold=2.0, intervene_threshold=2.0)
    info = read_table(tmp_path / "signals.parquet").info
    write_package(tmp_path / "policy", PolicyPackage("late", controller, Guards(max_interventions=1), info))
    values = {
        "policy": "policy",
        "signals": "signals.parquet",
        "split": "train",
        "reward": {"recall": 1.0, "search": 0.05},
        "arena": {"corpus": "world", "agents": ["rephraser"], "questions": 3, "retriever": "bm25"},
        "stop": [0.2, 0.8],
        "intervene": [0.0],
    }

    def write(**fields):
        (tmp_path / "tune.yaml").write_text(yaml.safe_dump(values | fields))
        return "tune.yaml"

    return write


def test_the_best_pair_is_in_the_policy_that_is_written(config, answer, tmp_path):
    result = answer("tune", config(), "--out", "tuned")
    tried = {(row["threshold"], row["intervene_threshold"]): row["worth"] for row in result["tried"]}
    assert tried[2.0, 2.0] == result["before"]["worth"]
    assert tried[2.0, 2.0]["interventions"] == 0
    best = max(tried, key=lambda pair: tried[pair]["value"])
    assert result["chosen"]["worth"]["value"] == tried[best]["value"] > tried[2.0, 2.0]["value"]  # searches cost a lot
    assert result["chosen"]["worth"]["searches"] < tried[2.0, 2.0]["searches"]
    assert any(worth["interventions"] > 0 for worth in tried.values())
    tuned = read_package(tmp_path / "tuned" / "policy")
    assert two_thresholds(tuned.controller) == best
    assert tuned.training["tuned"]["pairs"] == len(tried)
    assert not (tmp_path / "tuned.arms").exists()
    again = answer("tune", config(), "--out", "again")
    assert again["tried"] == result["tried"]


def test_finished_pairs_are_read_after_an_interruption(config, answer, command, monkeypatch, tmp_path):
    from stopwise.evaluation import arena

    whole = answer("tune", config(), "--out", "whole")
    made = []
    run = arena.ArenaBenchmark.run

    def interrupted(bench, arm):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(arm.arm.name)
        return run(bench, arm)

    monkeypatch.setattr(arena.ArenaBenchmark, "run", interrupted)
    status, _, err = command("tune", config(), "--out", "tuned")
    assert status == 130
    assert "finished parts are kept in tuned.arms: the same command goes on from there" in err
    monkeypatch.setattr(arena.ArenaBenchmark, "run", run)
    status, _, err = command("tune", config(stop=[0.3]), "--out", "tuned")
    assert status == 2
    assert "holds the unfinished arms of another search" in err
    assert answer("tune", config(), "--out", "tuned")["tried"] == whole["tried"]


def test_what_is_not_ours_is_not_taken_for_unfinished_work(config, command, tmp_path):
    """The folder of unfinished arms is deleted in the end."""
    (tmp_path / "tuned.arms").mkdir()
    (tmp_path / "tuned.arms" / "thesis.txt").write_text("years of work")
    status, _, err = command("tune", config(), "--out", "tuned")
    assert status == 2
    assert "tuned.arms: is where unfinished arms of this search would be kept, and holds something else" in err
    assert [path.name for path in (tmp_path / "tuned.arms").iterdir()] == ["thesis.txt"]


def test_a_corpus_that_is_not_there_leaves_nothing_behind(config, command, tmp_path):
    arena = {"corpus": "nowhere", "agents": ["rephraser"], "questions": 3, "retriever": "bm25"}
    status, _, err = command("tune", config(arena=arena), "--out", "tuned")
    assert status in (1, 2)
    assert "nowhere" in err
    assert not (tmp_path / "tuned.arms").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split": "test"}, "split"),
        ({"split": "all"}, "split"),
        ({"stop": []}, "stop: is empty"),
        ({"intervene": [1.5]}, "intervene: 1.5"),
        ({"arena": {"corpus": "world", "agents": ["rephraser"], "split": "val"}}, "arena.split"),
        ({"arena": {"corpus": "world", "agents": ["rephraser"], "questions": 0}}, "arena: questions: "),
        ({"policy": "nowhere"}, "policy: nowhere: no such folder"),
        ({"signals": "nowhere.parquet"}, "nowhere.parquet"),
    ],
)
def test_what_cannot_be_tuned_is_refused(config, command, fields, message):
    status, out, err = command("tune", config(**fields), "--out", "tuned")
    assert status in (1, 2)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
