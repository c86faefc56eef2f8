from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.oracle import Oracle
from stopwise.data.errors import DataError
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.collection import CollectConfig, RethinkerChoice
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.evaluation.arena import ArenaArm, ArenaBenchmark, arena_rows
from stopwise.evaluation.benchmark import Arm, benchmark, matched_intervention_rate
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig

pytest.importorskip("bm25s")

REWARD = Reward(recall=1.0, correct=0.5, search=0.01, intervention=0.02, controller=0.001)
INFO = SignalInfo(SignalConfig(signals=("Nov",)), encoder=None, calibrations=(), logs_sha256=None)


class NoEncoder:
    """These arms read no embeddings: being asked for one is an error."""

    id = "none"

    def encode(self, texts):
        raise AssertionError(f"asked to embed {len(texts)} texts")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arena") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=2))
    return folder


@pytest.fixture
def make_bench(world, tmp_path):
    def make(info: SignalInfo = INFO, said: list[str] | None = None) -> ArenaBenchmark:
        config = CollectConfig(str(world), agents=("chaser", "drifter"), questions=10, retriever="bm25")
        progress = (lambda what, done, total: None) if said is None else (lambda what, done, total: said.append(what))
        return ArenaBenchmark(config, info, CachedEncoder(NoEncoder(), ":memory:"), tmp_path, progress)

    return make


def test_without_interventions_the_figures_are_those_of_replay(make_bench):
    """Every figure that both benchmarks have, to the last bit, times apart."""
    guards = Guards(max_interventions=0)
    arms = [Arm("never", NeverStop(), guards), Arm("five", FixedBudget(5), guards), Arm("r", Random(0.1), guards)]
    bench = make_bench()
    live, _ = arena_rows(bench, [ArenaArm(arm) for arm in arms], REWARD)
    logs = bench.run(None).runs
    table = compute_table(lambda: iter(logs), SignalConfig(signals=("Nov",)), None)
    env = ReplayEnv(table, FeatureSpec(()), reward=REWARD, intervention=intervention_model("forbidden"))
    replayed = benchmark(env, arms)
    # the arena's baseline has no controller, and so no price of its decisions
    for one, other in list(zip(live, replayed, strict=True))[1:]:
        for name in ("runs", "searches", "stopped", "recall", "precision", "f1", "accuracy", "answer_visible"):
            assert one[name] == other[name], (one["controller"], name)
        assert one["return"] == pytest.approx(other["return"])
        assert one["intervention_model"] == "arena"
    assert live[0]["versus_never_stop"] is None
    assert live[0]["recall"] == replayed[0]["recall"]


def test_interventions_have_real_outcomes_and_agents_stand_apart(make_bench):
    arms = [ArenaArm(Arm("heuristic", Heuristic(patience=4))), ArenaArm(Arm("oracle", Oracle()))]
    (row, oracle), apart = arena_rows(make_bench(), arms, REWARD)
    assert row["interventions"] > 0
    assert set(apart) == {"chaser", "drifter"}
    assert row["runs"] == sum(rows[0]["runs"] for rows in apart.values()) == 20
    assert row["searches"] == pytest.approx(np.mean([rows[0]["searches"] for rows in apart.values()]))
    assert "hindsight" in oracle["not_applicable"]


def test_a_random_rethinker_makes_another_run_at_an_intervention(make_bench):
    arm = Arm("heuristic", Heuristic(patience=4))
    other = replace(arm, name="random queries")
    bench = make_bench()
    arena_rows(bench, [ArenaArm(arm), ArenaArm(other, RethinkerChoice("random"))], REWARD)
    ours, theirs = bench.run(ArenaArm(arm)).runs, bench.run(ArenaArm(other)).runs
    assert any(one.steps != two.steps for one, two in zip(ours, theirs, strict=True))


def test_a_random_row_intervenes_as_often_as_the_row_that_it_matches(make_bench):
    """It is made after that row, wherever it stands, and again in the same way from finished arms."""
    reference = Arm("often", Random(stop=0.0, intervene=0.3), Guards(cooldown=1, max_interventions=2))
    arms = [ArenaArm(Arm("by chance", Random(0.0), matches="often", versus=("often",))), ArenaArm(reference)]
    bench = make_bench()
    (chance, often), apart = arena_rows(bench, arms, REWARD)
    assert often["interventions"] > 1
    assert chance["interventions"] == pytest.approx(often["interventions"], abs=0.5)
    matched = chance["matched"]
    assert (matched["row"], matched["interventions_of_row"]) == ("often", often["interventions"])
    assert matched["interventions"] == chance["interventions"]
    decisions = np.array([count.decisions for count in bench.run(arms[1]).counts])
    assert matched["rate"] == matched_intervention_rate(decisions, often["interventions"], reference.guards)
    assert matched["rate"] == pytest.approx(0.3, abs=0.15)
    assert "versus" in chance
    for rows in apart.values():
        assert rows[0]["matched"]["rate"] == matched["rate"]
        assert rows[0]["matched"]["interventions_of_row"] == rows[1]["interventions"]
    assert arena_rows(make_bench(), arms, REWARD) == ([chance, often], apart)


def test_finished_arms_are_read_back(make_bench):
    arms = [ArenaArm(Arm("five", FixedBudget(5)))]
    said: list[str] = []
    before, _ = arena_rows(make_bench(), arms, REWARD)
    after, _ = arena_rows(make_bench(said=said), arms, REWARD)
    assert (before, said) == (after, [])


def test_signals_of_another_encoder_are_refused(make_bench):
    with pytest.raises(DataError, match="fitted with encoder tea"):
        make_bench(info=replace(INFO, encoder="tea"))
