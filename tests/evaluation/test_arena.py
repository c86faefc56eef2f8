from collections.abc import Sequence
from pathlib import Path

import pytest

from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.data.corpus import read_corpus, read_queries
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import LoopConfig
from stopwise.envs.arena.puzzle import make_reader
from stopwise.envs.arena.rethinkers import HeuristicRethinker
from stopwise.envs.arena.retrievers import BM25Retriever
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.evaluation.arena import ArenaRun, ArenaSetting, arena_benchmark
from stopwise.evaluation.benchmark import Arm, benchmark
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalConfig

pytest.importorskip("bm25s")

REWARD = Reward(recall=1.0, correct=0.5, search=0.01, intervention=0.02, controller=0.001)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> ArenaSetting:
    folder: Path = tmp_path_factory.mktemp("arena") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=2))
    documents = list(read_corpus(folder))
    queries = tuple(read_queries(folder))[:10]
    return ArenaSetting(
        kinds=(KINDS["chaser"], KINDS["drifter"]),
        queries=queries,
        reader=make_reader(documents),
        retriever=BM25Retriever(documents),
        loop=LoopConfig(),
        rethinker=HeuristicRethinker(),
    )


def test_without_interventions_the_figures_are_those_of_replay(setting: ArenaSetting) -> None:
    """Every figure that both benchmarks have, to the last bit, times apart."""
    guards = Guards(max_interventions=0)
    arms = [Arm("never", NeverStop(), guards), Arm("five", FixedBudget(5), guards), Arm("r", Random(0.1), guards)]
    live = arena_benchmark(setting, arms, reward=REWARD)
    logs = [run.trajectory for run in setting(None)]
    table = compute_table(lambda: iter(logs), SignalConfig(signals=("Nov",)), None)
    env = ReplayEnv(table, FeatureSpec(()), reward=REWARD, intervention=intervention_model("forbidden"))
    replayed = benchmark(env, arms)
    for one, other in zip(live, replayed, strict=True):
        for name in ("runs", "searches", "stopped", "recall", "precision", "f1", "accuracy", "answer_visible"):
            assert one[name] == other[name], (one["controller"], name)
        assert one["return"] == pytest.approx(other["return"])
        assert one["intervention_model"] == "arena"
    assert live[0]["versus_never_stop"]["recall"]["difference"] == 0


def test_interventions_have_real_outcomes_and_agents_stand_apart(setting: ArenaSetting) -> None:
    (row,) = arena_benchmark(setting, [Arm("heuristic", Heuristic(patience=4))], reward=REWARD)
    assert row["interventions"] > 0
    assert set(row["by_agent"]) == {"chaser", "drifter"}
    assert row["runs"] == sum(part["runs"] for part in row["by_agent"].values()) == 20
    mean = sum(part["searches"] for part in row["by_agent"].values()) / 2
    assert row["searches"] == pytest.approx(mean)


def test_arms_must_come_back_with_the_same_runs(setting: ArenaSetting) -> None:
    def shuffled(arm: Arm | None) -> Sequence[ArenaRun]:
        runs = list(setting(arm))
        return runs if arm is None else runs[::-1]

    with pytest.raises(ValueError, match="other runs"):
        arena_benchmark(shuffled, [Arm("never", NeverStop())], reward=REWARD)
