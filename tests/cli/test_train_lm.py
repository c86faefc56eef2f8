"""`stopwise train` of a small LM as a user runs it, on the tiny random model."""

import json
import os
import subprocess
import sys

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("trl")

from stopwise.controllers.lm import SmallLM
from stopwise.data.files import lock_beside, only_process
from stopwise.data.store import write_trajectories
from stopwise.runtime import load
from stopwise.signals.table import read_table

pytestmark = [  # a few steps of a random network may end anywhere
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.trainer.CollapseWarning"),
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning"),
]
ONLY = ["Nov", "steps_since_new", "RE"]
FEW = {"epochs": 1, "batch": 4, "micro_batch": 2, "evaluate_every": 2, "learning_rate": 0.0005}
CONFIG = {
    "kind": "lm",
    "method": "exact",
    "base": "tiny-random",
    "lora": {"rank": 2, "alpha": 4},
    "signals": "signals.parquet",
    "features": ONLY,
    "reward": {"search": 0.02},
    "targets": {"folds": 3, "min_rows": 30},
    "runs": 12,
    "validation_runs": 6,
    "sft": FEW,
    "exact": FEW,
    "grpo": {**FEW, "generations": 3},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_logs, answer):
    """A working folder with signals and a config; commands run inside it."""
    folder = tmp_path_factory.mktemp("work")
    write_trajectories(folder / "logs.parquet", make_logs(120))
    (folder / "lm.yaml").write_text(yaml.safe_dump(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        answer("signals", "logs.parquet", "--only", *ONLY, "--out", "signals.parquet")
        yield folder


@pytest.fixture(scope="module")
def trained(place, answer):
    return answer("train", "lm.yaml", "--out", "runs/lm")


def test_the_result_says_what_was_done(trained, place):
    assert trained["method"] == "exact"
    assert list(trained["stages"]) == ["sft", "exact"]
    assert trained["processes"] == 1
    assert trained["base"]["name"] == "tiny-random"
    assert trained["runs"]["learned from"] == 12
    assert trained == json.loads((place / "runs/lm/result.json").read_text()) | {"out": "runs/lm"}
    assert not (place / "runs/lm.partial").exists()
    assert {path.name for path in (place / "runs/lm").iterdir()} == {"policy", "sft", "result.json", "config.yaml"}


def test_a_run_that_another_process_works_on_is_refused(place, command):
    with only_process(place / "busy", lock_beside(place / "busy")):
        status, out, err = command("train", "lm.yaml", "--out", "busy")
    assert (status, out) == (2, "")
    assert "busy.partial: another process is working on it" in err
    assert not list(place.glob("*busy*"))


def test_both_policies_serve_a_live_agent(trained, place):
    for folder in ("policy", "sft/policy"):
        policy = load(place / "runs/lm" / folder)
        assert isinstance(policy.package.controller, SmallLM)
        monitor = policy.monitor("Who?", fail_open=False)
        for number in range(4):
            advice = monitor.observe(queries=["one"], documents=[f"document {number}", "another"])
            assert sum(advice.probabilities) == pytest.approx(1)


def test_the_benchmark_takes_it(trained, place, answer):
    config = {
        "signals": "signals.parquet",
        "reward": {"search": 0.02},
        "controllers": [{"kind": "never_stop"}, {"policy": "runs/lm"}],
    }
    (place / "benchmark.yaml").write_text(yaml.safe_dump(config))
    found = answer("benchmark", "benchmark.yaml", "--out", "runs/benchmark")
    assert [row["controller"] for row in found["rows"]] == ["never_stop", "lm"]


def test_for_people(place, command):
    status, out, err = command("train", "lm.yaml", "--out", "runs/sft", "method=sft")
    assert status == 0
    assert out.startswith("sft: validation return ")
    assert out.count("\n") == 1
    assert "checkpoints in runs/sft.partial; call the same command again to go on" in err
    assert "sft: policy in runs/sft/policy" in err


def test_a_policy_for_each_price(place, command):
    status, out, _ = command("train", "lm.yaml", "--out", "runs/priced", "method=sft", "prices=[0.01, 0.2]")
    assert status == 0
    for price in (0.01, 0.2):
        assert f"at a search price of {price:g}: recall " in out
        policy = load(place / f"runs/priced/prices/{price:g}/policy")
        controller = policy.package.controller
        assert isinstance(controller, SmallLM)
        assert controller.rendering.price == price


def test_grpo_from_a_finished_run(trained, place, answer):
    found = answer("train", "lm.yaml", "--out", "runs/grpo", "method=grpo", "start=runs/lm")
    assert list(found["stages"]) == ["grpo"]
    steps = [entry for entry in found["stages"]["grpo"]["curve"] if "loss" in entry]
    assert all("frac_reward_zero_std" in entry and "rate_stop" in entry for entry in steps)


def test_an_interrupted_command_goes_on(place, command, answer, monkeypatch):
    from stopwise.cli import train_lm

    class Interrupted(Exception):
        pass

    class Progress:
        def __call__(self, name, done, total):
            if (name, done) == ("exact", 3):
                raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(train_lm, "Progress", Progress)
        with pytest.raises(Interrupted):
            command("train", "lm.yaml", "--out", "runs/again")
    assert (place / "runs/again.partial/sft.json").exists()
    assert not (place / "runs/again").exists()
    status, out, err = command("train", "lm.yaml", "--out", "runs/again", "seed=1", "--json")
    assert (status, out) == (2, "")
    assert "runs/again.partial: holds an unfinished run of another config; delete it, or use that config" in err
    found = answer("train", "lm.yaml", "--out", "runs/again")
    twin = answer("train", "lm.yaml", "--out", "runs/twin")
    assert found["chosen"] == twin["chosen"]
    same = [(place / f"runs/{name}/policy/weights.safetensors").read_bytes() for name in ("again", "twin")]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sft.batch=6", "sft.micro_batch=4"], "batch 6 cannot be shared out"),
        (["base=no/such-model"], "model no/such-model: cannot be loaded"),
        (["features=[]"], "signals none"),
        (["features=[Cov]"], "no column 'Cov'"),
        (["prices=[-0.1]"], "prices: -0.1; expected a number of 0 or more"),
        (["method=magic"], "method"),
        (["exact.lr=0.1"], "exact.lr"),
        (["start=runs/nowhere"], "runs/nowhere"),
        (["lora.targets=[nowhere]"], "lora.targets"),
        (["intervention=uplift"], "needs `uplift: RUN`"),
        (["signals=nowhere.parquet"], "nowhere.parquet: no such file"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(place, command, overrides, message):
    out = f"runs/bad-{len(overrides)}-{abs(hash(str(overrides)))}"
    status, printed, err = command("train", "lm.yaml", "--out", out, *overrides, "--json")
    assert status in (1, 2)
    assert printed == ""
    assert message in err
    assert "Traceback" not in err
    assert not (place / out).exists()


def test_stdout_is_one_json_object_whatever_libraries_print(trained, place):
    """transformers prints on stdout when it is imported while wandb is offline."""
    done = subprocess.run(
        [sys.executable, "-m", "stopwise.cli", "train", "lm.yaml", "--out", "runs/quiet", "method=sft", "--json"],
        env={**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["method"] == "sft"
    assert "offline mode" in done.stderr


def test_it_reads_its_own_config_again(trained, place, answer):
    found = answer("train", "runs/lm/config.yaml", "--out", "runs/copy")
    assert found["chosen"] == trained["chosen"]
    assert read_table(place / "signals.parquet").names == tuple(ONLY)


def test_without_the_extra_it_says_what_to_install(place):
    code = (
        "import sys; sys.modules['trl'] = None\n"
        "from stopwise.cli.main import main\n"
        "sys.exit(main(['train', 'lm.yaml', '--out', 'runs/none']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "run `pip install 'stopwise[lm]'`" in done.stderr
    assert "Traceback" not in done.stderr
