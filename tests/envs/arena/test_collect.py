import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stopwise.cli.collect import make_encoder as packaged_encoder
from stopwise.data.errors import DataError, StopwiseError, UsageError
from stopwise.data.files import only_process, sha256_file
from stopwise.data.records import Action
from stopwise.data.store import read_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.branch_store import read_branches
from stopwise.envs.arena.branching import BranchConfig, recall
from stopwise.envs.arena.collect import LOCK, collect
from stopwise.envs.arena.collection import CollectConfig, ControllerChoice, RethinkerChoice
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import LoopConfig
from stopwise.envs.arena.population import run_population, sample_queries


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("collect") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=1))  # the world of the fixture `arena`
    return str(folder)


@pytest.fixture
def config(corpus: str) -> CollectConfig:
    return CollectConfig(corpus, agents=("chaser", "quitter"), questions=5, group=4)


def test_runs_are_those_of_the_population(config: CollectConfig, word_encoder, arena, tmp_path: Path) -> None:
    told = collect(config, tmp_path / "out", word_encoder)
    assert (told["runs"], told["groups"]) == (10, 3)
    kinds = [KINDS[name] for name in config.agents]
    queries = sample_queries(arena.queries, 5)
    expected = list(run_population(kinds, queries, arena.reader, arena.retriever, LoopConfig()))
    found = list(read_trajectories(tmp_path / "out" / "trajectories.parquet"))
    assert [run.id for run in found] == [run.id for run in expected]
    for one, other in zip(found, expected, strict=True):
        assert [step.queries for step in one.steps] == [step.queries for step in other.steps]
        assert one.answer == other.answer
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["collection.json", "trajectories.parquet"]


def test_a_finished_collection_is_left_alone(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    first = collect(config, tmp_path / "out", word_encoder)
    before = (tmp_path / "out" / "trajectories.parquet").stat().st_mtime_ns
    assert collect(replace(config, workers=3), tmp_path / "out", word_encoder) == first
    assert (tmp_path / "out" / "trajectories.parquet").stat().st_mtime_ns == before


def test_an_interruption_costs_at_most_a_group(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    collect(config, tmp_path / "whole", word_encoder)

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "collecting runs" and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(config, tmp_path / "out", word_encoder, interrupt)
    seen: list[int] = []
    collect(config, tmp_path / "out", word_encoder, lambda what, done, total: seen.append(done))
    assert 4 in seen
    assert 0 not in seen[1:]
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_a_folder_that_another_process_works_on_is_refused(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with only_process(out, out / LOCK), pytest.raises(UsageError, match=f"{out}: another process is working on it"):
        collect(config, out, word_encoder)
    assert list(out.iterdir()) == []
    collect(config, out, word_encoder)
    (out / LOCK).touch()  # of a killed process
    collect(config, out, word_encoder)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in folder.iterdir()}


def test_the_inverted_file_is_kept_for_a_resumed_call(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    config = replace(config, backend="ivf")

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "collecting runs" and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(config, tmp_path / "resumed", word_encoder, interrupt)
    assert (tmp_path / "resumed" / "index" / "ivf.faiss").exists()
    collect(config, tmp_path / "resumed", word_encoder)
    collect(config, tmp_path / "whole", word_encoder)
    assert hashes(tmp_path / "resumed") == hashes(tmp_path / "whole")


def test_a_controller_in_the_loop(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    choice = ControllerChoice(kind="heuristic", params={"patience": 4})
    config = replace(config, controller=choice, rethinker=RethinkerChoice(quality=1.0, harm=0.0))
    collect(config, tmp_path / "out", word_encoder)
    runs = list(read_trajectories(tmp_path / "out" / "trajectories.parquet"))
    actions = {step.logged_action for run in runs for step in run.search_steps}
    assert actions == set(Action)
    assert all(step.propensity == 1.0 for run in runs for step in run.search_steps)


def test_branches(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    config = replace(config, branch=BranchConfig(probability=0.3, rollouts=2))
    told = collect(config, tmp_path / "out", word_encoder)
    outcomes = read_branches(Path(told["branches"]))
    runs = {run.id: run for run in read_trajectories(Path(told["trajectories"]))}
    assert outcomes
    for outcome in outcomes:
        run = runs[outcome.trajectory_id]
        assert outcome.recall_before == recall(run.search_steps[: outcome.t], run.gold_ids)
        assert outcome.recall_gain >= 0
        assert outcome.action is not Action.STOP or (outcome.searches, outcome.recall_gain) == (0, 0.0)
        assert outcome.action is not Action.INTERVENE or outcome.searches >= 1
        assert outcome.propensity == 0.3
    rollouts = [(outcome.trajectory_id, outcome.t, outcome.action, outcome.rollout) for outcome in outcomes]
    assert len(rollouts) == len(set(rollouts))
    assert np.isfinite([outcome.recall_gain for outcome in outcomes]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": ("nobody",)}, "agents"),
        ({"group": 0}, "group"),
        ({"controller": ControllerChoice()}, "either `kind` or `policy`"),
        ({"controller": ControllerChoice(kind="unheard")}, "unheard"),
        ({"branch": BranchConfig(), "controller": ControllerChoice(kind="never_stop")}, "leave one of the two out"),
    ],
)
def test_refusals(config: CollectConfig, word_encoder, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(StopwiseError, match=message):
        collect(replace(config, **changes), tmp_path / "out", word_encoder)
    assert not (tmp_path / "out").exists()


def test_folders_are_not_mixed_up(config: CollectConfig, word_encoder, tmp_path: Path) -> None:
    collect(config, tmp_path / "out", word_encoder)
    with pytest.raises(UsageError, match="another config"):
        collect(replace(config, seed=1), tmp_path / "out", word_encoder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="is not empty"):
        collect(config, tmp_path / "other", word_encoder)
    with pytest.raises(DataError, match="no such file"):
        collect(replace(config, corpus=str(tmp_path / "nowhere")), tmp_path / "third", word_encoder)


SCRIPT = """
import sys
from pathlib import Path
from stopwise.cli.collect import make_encoder
from stopwise.envs.arena.collect import collect
from stopwise.envs.arena.collection import CollectConfig
if __name__ == "__main__":
    config = CollectConfig(sys.argv[1], agents=("chaser", "archivist"), questions=20, group=2, retriever="bm25",
                           workers=int(sys.argv[3]))
    collect(config, Path(sys.argv[2]), make_encoder)
"""


@pytest.mark.slow
def test_kill_at_ten_random_moments(corpus: str, tmp_path: Path) -> None:
    """kill -9, ten times, then once to the end: the same bytes as an undisturbed collection, by two workers or one."""
    pytest.importorskip("bm25s")
    script = tmp_path / "collect_script.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def start(out: Path, workers: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), corpus, str(out), str(workers)]
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True)

    started = time.monotonic()
    assert start(tmp_path / "whole", 1).wait() == 0
    length = time.monotonic() - started
    rng = random.Random(0)
    for number in range(10):
        process = start(tmp_path / "out", 1 + number % 2)
        time.sleep(rng.uniform(0.2, 0.9) * length)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(tmp_path / "out", 2).wait() == 0
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_the_command(corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    from stopwise.cli import collect as command

    pytest.importorskip("bm25s")
    place = tmp_path / "collect.yaml"
    place.write_text(f"corpus: {corpus}\nagents: [quitter]\nquestions: 3\nretriever: bm25\n", encoding="utf-8")
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    out = tmp_path / "out"
    args = parser.parse_args(["collect", str(place), "runs=2", "--out", str(out), "--branch", "0.5", "--json"])
    assert args.run(args) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 6
    assert read_branches(Path(told["branches"]))
    assert packaged_encoder(None).id.startswith("all-MiniLM-L6-v2")
