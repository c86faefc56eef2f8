"""Controllers that ask a language model as rows of both benchmarks."""

import json

import pytest

from stopwise.controllers.base import Controller, certain
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.kinds import connect
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.raac import Raac
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.collection import CollectConfig
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.evaluation.arena import ArenaArm, ArenaBenchmark, arena_rows
from stopwise.evaluation.benchmark import Arm, benchmark
from stopwise.evaluation.rollout import rollout
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.prompts import load_prompt
from stopwise.signals.calibration import Calibration
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig

pytest.importorskip("bm25s")

CONFIG = SignalConfig(signals=("Nov", "residual_z"))
LINE = Calibration(slope=0.0, intercept=1.0, sigma=0.2, steps=100)
INFO = SignalInfo(CONFIG, encoder=None, calibrations=(("quitter", "logged", LINE),), logs_sha256=None)


class Reader(Controller):
    """Stops at a text that it reads."""

    kind = "reader"
    reads_text = True

    def __init__(self, word: str = "") -> None:
        self.word = word
        self.lengths: list[int] = []

    @property
    def params(self):
        return {"word": self.word}

    def distribution(self, observation):
        run = observation.run
        assert run is not None
        assert run.steps[-1].kind == "search"
        assert sum(step.kind == "search" for step in run.steps) == observation.row.t
        self.lengths.append(len(run.steps))
        return certain(Action.STOP if self.word in (run.steps[-1].thought or "") else Action.CONTINUE), None


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompted") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=2))
    return folder


@pytest.fixture
def bench(world, tmp_path, lengths):
    config = CollectConfig(str(world), agents=("quitter",), questions=5, retriever="bm25")
    return ArenaBenchmark(config, INFO, CachedEncoder(lengths, ":memory:"), tmp_path, lambda *_: None)


@pytest.fixture
def logs(bench):
    return {run.id: run for run in bench.run(None).runs}


@pytest.fixture
def env(logs):
    table = compute_table(lambda: iter(logs.values()), CONFIG, None)
    return ReplayEnv(table, FeatureSpec(()), intervention=intervention_model("noop"))


def answer(body):
    """Judges every step, by what the prompt is."""
    text = body["messages"][0]["content"]
    if text.startswith(load_prompt("raac").text[:40]):
        steps = text.split("step | ")[1].count("\n")
        return json.dumps({"reasoning": f"{steps}", "action": ("continue", "intervene", "continue", "stop")[steps % 4]})
    return json.dumps({"err": int("Found: " in text), "suggestion": "Try another part of the question."})


def arms(client):
    made = [
        Arm("raac N", Raac(signals=["Nov"], history=9), Guards(cooldown=1)),
        Arm("critic", LlmCritic(), Guards(cooldown=2)),
        Arm("slow", DsMcm(slow=True, recall=0)),
    ]
    for arm in made:
        connect(arm.controller, client)
    return made


def test_in_the_arena_they_are_ordinary_rows(bench, server, client_of):
    server.otherwise = answer
    client = client_of()
    raac, critic, slow = arms(client)
    (one, two, three, rule), _ = arena_rows(
        bench, [ArenaArm(raac), ArenaArm(critic), ArenaArm(slow), ArenaArm(Arm("rule", Heuristic()))], Reward()
    )
    assert one["controller_calls"] > 0
    assert one["controller_tokens"] == pytest.approx(13 * one["controller_calls"])
    assert one["stopped"] > 0
    assert two["interventions"] > 0
    assert two["controller_failures"] == {}
    for row in (one, two):
        assert row["model"] == client.id
        assert row["served_model"] == "test-model"
    assert one["prompts"] == [load_prompt(name).version for name in ("raac", "raac_signals")]
    assert two["prompts"] == [load_prompt("critic").version]
    assert 0 < three["controller_calls"] < one["controller_calls"]  # flagged steps only
    assert three["prompts"] == two["prompts"]
    assert "model" not in rule
    runs = bench.run(ArenaArm(critic)).runs
    thoughts = [step.thought or "" for run in runs for step in run.search_steps]
    assert sum(thought.startswith("Try another part of the question. ") for thought in thoughts) == sum(
        step.logged_action is Action.INTERVENE for run in runs for step in run.search_steps
    )


def test_failures_stand_in_the_row_and_the_run_goes_on(bench, server, client_of):
    server.otherwise = "I am no JSON."
    raac, *_ = arms(client_of())
    (row,), _ = arena_rows(bench, [ArenaArm(raac)], Reward())
    assert row["controller_failures"].keys() == {"no JSON in reply"}
    assert row["controller_failures"]["no JSON in reply"] > 0
    assert (row["interventions"], row["saving"], row["stopped"]) == (0, 0, 0)


def test_in_replay_texts_come_from_the_logs(env, logs):
    reader = Reader("Nothing")
    outcomes = rollout(env, reader, Guards(), logs=logs)
    assert len(outcomes) == len(logs)
    assert reader.lengths
    with pytest.raises(DataError, match="have no run"):
        rollout(env, reader, Guards(), logs={})


def test_without_logs_it_is_not_applicable(env, logs, server, client_of):
    server.otherwise = answer
    _, critic, _ = arms(client_of())
    (row,) = benchmark(env, [critic])
    assert row["not_applicable"].startswith("no texts: a signal table has none; name the logs")
    (row,) = benchmark(env, [critic], logs=logs)
    assert row["controller_calls"] > 0
    assert row["model"].startswith("test-model@")
    assert row["controller_seconds"] > 0


def test_what_a_missing_signal_means(env, logs, client_of):
    everything = Arm("raac", Raac())
    connect(everything.controller, client_of())
    (row,) = benchmark(env, [everything], logs=logs)
    assert row["not_applicable"] == "no Cov: not computed"
