"""Interrupted and resumed training equals undisturbed training, bit for bit; two processes equal one."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import yaml

from stopwise.data.config import plain
from stopwise.signals.table import write_table
from stopwise.train.lm import grpo as lm_grpo
from stopwise.train.lm import run as lm_run
from stopwise.train.lm import trainer as lm_trainer
from stopwise.train.lm.config import ExactOptions, LoraOptions, SftOptions
from stopwise.train.lm.run import train_lm
from stopwise.train.lm.trainer import WHOLE, last_checkpoint

METHODS = ("sft", "exact", "grpo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.trainer.CollapseWarning"),
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning"),
]


class Killed(Exception):
    """Stands for what a process does not survive."""


def stop_at(stage, step):
    def progress(name, done, total):
        if (name, done) == (stage, step):
            raise Killed

    return progress


def assert_equal(one, other):
    assert list(one) == list(other)
    for stage in one:
        assert one[stage].result.best_return == other[stage].result.best_return
        for name, array in one[stage].arrays.items():
            assert (array == other[stage].arrays[name]).all()
        curves = [
            [{k: v for k, v in entry.items() if k != "seconds"} for entry in part[stage].result.curve]
            for part in (one, other)
        ]
        assert curves[0] == curves[1]
        seconds = [entry["seconds"] for entry in other[stage].result.curve]
        assert seconds == sorted(seconds)


@pytest.fixture(scope="module")
def undisturbed(config_of, knowing, tmp_path_factory):
    made = {}

    def get(method):
        if method not in made:
            made[method], _ = train_lm(config_of(method=method), knowing, tmp_path_factory.mktemp(method) / "work")
        return made[method]

    return get


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_and_resumed_is_undisturbed(config_of, knowing, undisturbed, tmp_path, method):
    """Checkpoints are after steps 2 and 4: it stops after 3, having lost one step, and again at the end."""
    config, work = config_of(method=method), tmp_path / "work"
    with pytest.raises(Killed):
        train_lm(config, knowing, work, stop_at(method, 3))
    assert last_checkpoint(work / method) == str(work / method / "checkpoint-2")
    resumed, _ = train_lm(config, knowing, work)
    assert_equal(undisturbed(method), resumed)


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2, alpha=4)])
def test_a_time_limit_and_a_reference_are_remembered(config_of, knowing, tmp_path, monkeypatch, lora):
    """The rate falls with the time, and the divergence is measured against the same policy as before."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    for module in (lm_grpo, lm_trainer):
        monkeypatch.setattr(module, "time", clock)

    def ticking(progress):
        def tick(name, done, total):
            clock.now += 6.0
            progress(name, done, total)

        return tick

    config = config_of(method="grpo", lora=lora)
    config = replace(config, grpo=replace(config.grpo, epochs=100.0, warmup=0.0, minutes=0.5, kl=0.1))
    whole, _ = train_lm(config, knowing, tmp_path / "whole", ticking(lambda *_: None))
    steps = [entry for entry in whole["grpo"].result.curve if "loss" in entry]
    # the clock is read before it ticks, so the second step is as fast as the first, and the sixth is the last
    rates = [entry["learning_rate"] / config.grpo.learning_rate for entry in steps]
    assert rates == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2], abs=0.02)
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-7)
    work = tmp_path / "work"
    with pytest.raises(Killed):
        train_lm(config, knowing, work, ticking(stop_at("grpo", 5)))
    assert last_checkpoint(work / "grpo") == str(work / "grpo" / "checkpoint-4")
    resumed, _ = train_lm(config, knowing, work, ticking(lambda *_: None))
    assert_equal(whole, resumed)


def test_a_kill_after_the_last_checkpoint(config_of, knowing, undisturbed, tmp_path, monkeypatch):
    def die(*_):
        raise Killed

    config, work = config_of(method="sft"), tmp_path / "work"
    with monkeypatch.context() as patch:
        patch.setattr(lm_run, "_write_arrays", die)
        with pytest.raises(Killed):
            train_lm(config, knowing, work)
    assert last_checkpoint(work / "sft") == str(work / "sft" / "checkpoint-4")
    resumed, _ = train_lm(config, knowing, work)
    assert_equal(undisturbed("sft"), resumed)


def test_a_checkpoint_that_was_cut_short_is_passed_over(config_of, knowing, undisturbed, tmp_path):
    config, work = config_of(method="sft"), tmp_path / "work"
    with pytest.raises(Killed):
        train_lm(config, knowing, work, stop_at("sft", 4))
    half = work / "sft" / "checkpoint-4"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half of")
    assert not (half / WHOLE).exists()
    resumed, _ = train_lm(config, knowing, work)
    assert_equal(undisturbed("sft"), resumed)


def test_patience_is_remembered(config_of, knowing, tmp_path):
    """With a learning rate of next to nothing no look is better than the first: it ends at the third."""
    slow = SftOptions(epochs=3, batch=4, micro_batch=4, evaluate_every=2, learning_rate=1e-12, warmup=0, patience=2)
    config = config_of(method="sft", sft=slow)
    whole, _ = train_lm(config, knowing, tmp_path / "whole")
    steps = [entry["step"] for entry in whole["sft"].result.curve if "loss" in entry]
    assert steps[-1] == 6
    with pytest.raises(Killed):
        train_lm(config, knowing, tmp_path / "work", stop_at("sft", 5))
    resumed, _ = train_lm(config, knowing, tmp_path / "work")
    assert_equal(whole, resumed)


@pytest.fixture
def place(knowing, config_of, tmp_path):
    """A folder with the table, and ``place(name, config)``: writes a config for the command line."""
    write_table(tmp_path / "signals.parquet", knowing)

    def write(name, config):
        values = plain(replace(config, signals=str(tmp_path / "signals.parquet")))
        (tmp_path / name).write_text(yaml.safe_dump(json.loads(json.dumps(values))))
        return tmp_path / name

    return write


KILLER = """
import os, signal, sys
from pathlib import Path
import torch
from stopwise.data.config import load_values, read_config
from stopwise.signals.table import read_table
from stopwise.train.lm.config import LmConfig
from stopwise.train.lm.run import train_lm

torch.set_num_threads(1)
file, work, stage, step = sys.argv[1:]

def progress(name, done, total):
    if name == stage and done == int(step):
        os.kill(os.getpid(), signal.SIGKILL)

config = read_config(LmConfig, load_values(Path(file), []), file)
train_lm(config, read_table(Path(config.signals)), Path(work), progress)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_a_random_step_and_resumed_is_undisturbed(place, config_of, knowing, tmp_path, method):
    options = {"epochs": 2.0, "batch": 4, "micro_batch": 2, "evaluate_every": 2, "learning_rate": 5e-4}
    config = config_of(method=method)
    stage = replace(getattr(config, method), **options)  # eight steps
    config = replace(config, **{method: stage})
    file = place("config.yaml", config)
    step = int(np.random.default_rng().integers(3, 8))
    work = tmp_path / "work"
    first = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLER, file, work, method, str(step)], capture_output=True, text=True
    )
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert last_checkpoint(work / method) is not None
    kept = replace(config, signals=str(tmp_path / "signals.parquet"))
    resumed, _ = train_lm(kept, knowing, work)
    whole, _ = train_lm(kept, knowing, tmp_path / "whole")
    assert_equal(whole, resumed)


def launch(processes, file, out):
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = ["-m", "stopwise.cli", "train", str(file), "--out", str(out)]
    if processes > 1:
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", *words]
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "result.json").read_text())


@pytest.mark.slow
def test_two_processes_equal_one(place, config_of, tmp_path):
    from safetensors.numpy import load_file

    few = {"epochs": 1.0, "batch": 4, "evaluate_every": 2, "learning_rate": 5e-4}
    results = {}
    for processes, part in ((1, 4), (2, 2)):
        config = config_of(
            method="exact",
            sft=SftOptions(**few, micro_batch=part),
            exact=ExactOptions(**few, micro_batch=part),
        )
        results[processes] = launch(processes, place(f"{processes}.yaml", config), tmp_path / f"out{processes}")
        assert results[processes]["processes"] == processes
    for stage in ("sft", "policy"):
        parts = [
            load_file(tmp_path / f"out{n}" / (f"{stage}/policy" if stage == "sft" else stage) / "weights.safetensors")
            for n in (1, 2)
        ]
        apart = np.concatenate([np.abs(array - parts[1][name]).ravel() for name, array in parts[0].items()])
        # where a gradient is all rounding, Adam's first steps are of full length in either direction
        assert np.quantile(apart, 0.99) < 1e-5
    for stage in ("sft", "exact"):
        losses = [[entry["loss"] for entry in results[n]["stages"][stage]["curve"] if "loss" in entry] for n in (1, 2)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    looks = [
        [entry["eval_return"] for entry in results[n]["stages"]["exact"]["curve"] if "eval_return" in entry]
        for n in (1, 2)
    ]
    assert looks[0] == pytest.approx(looks[1], abs=1e-5)
    assert results[1]["chosen"] == pytest.approx(results[2]["chosen"], abs=1e-4)
