"""The logs that stopwise ships: what they promise, and what a policy trained on them does."""

import numpy as np
import pytest

from stopwise.cli.output import SAMPLES, logs_path, sample_file, signals_path
from stopwise.controllers.package import read_package, write_package
from stopwise.controllers.session import ControlSession
from stopwise.data.files import sha256_file
from stopwise.data.splits import SPLITS
from stopwise.data.store import read_trajectories
from stopwise.envs.arena.branch_store import read_branches
from stopwise.envs.arena.branching import action_values
from stopwise.models.encoders import MINILM, MINILM_SHA256
from stopwise.signals.definitions import SIGNALS
from stopwise.signals.table import read_table
from stopwise.train.train import TrainConfig, train


@pytest.fixture(scope="module")
def table():
    return read_table(signals_path(SAMPLES))


def test_they_are_small_and_whole(table):
    files = [logs_path(SAMPLES), signals_path(SAMPLES), sample_file("branches.parquet")]
    assert sum(file.stat().st_size for file in files) < 5_000_000
    assert len({episode.question_id for episode in table.episodes}) == 300
    assert len({episode.agent for episode in table.episodes}) == 3
    assert all(len(table.split(split)) > 0 for split in SPLITS)
    assert table.has_gold.all()
    assert table.names == SIGNALS


def test_the_signals_are_those_of_the_logs(table):
    assert table.info.logs_sha256 == sha256_file(logs_path(SAMPLES))
    assert table.info.encoder == f"{MINILM}@{MINILM_SHA256[:12]}"
    assert table.info.config.coverage_judge == "encoder"
    assert set(table.info.fitted) == {"se_cut", "coverage", "calibrations"}
    runs = list(read_trajectories(logs_path(SAMPLES)))
    assert [run.id for run in runs] == [episode.id for episode in table.episodes]
    assert [len(run.search_steps) for run in runs] == table.lengths.tolist()


def test_branches_are_at_states_of_agents_on_sample_questions(table):
    outcomes = read_branches(sample_file("branches.parquet"))
    known = {episode.question_id for episode in table.episodes}
    assert {outcome.question_id for outcome in outcomes} <= known
    values = action_values(outcomes)
    assert len(values.states) > 300
    assert np.isfinite(values.mean).all()
    assert np.isfinite(values.error).all()


def test_an_exported_policy_decides_as_the_trained_one_on_every_step(table, tmp_path):
    config = TrainConfig(kind="logistic", signals=SAMPLES, grid={"C": (0.01,)})
    package, _ = train(config, table)
    write_package(tmp_path / "policy", package)
    loaded = read_package(tmp_path / "policy")
    trained, exported = (ControlSession(one.controller, one.guards) for one in (package, loaded))
    for start, stop in zip(table.offsets[:-1], table.offsets[1:], strict=True):
        trained.begin()
        exported.begin()
        for index in range(start, stop):
            row = table.row(index)
            one, other = trained.decide(row), exported.decide(row)
            assert (one.action, one.probabilities) == (other.action, other.probabilities)
