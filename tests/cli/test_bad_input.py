"""What a user gets for input that cannot work: one line that says why, the right exit status, nothing half-written."""

import json
import subprocess
import sys

import pytest
import yaml

from stopwise.data.store import write_trajectories


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_logs, answer):
    """A folder with good files and with every kind of bad one."""
    folder = tmp_path_factory.mktemp("bad")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("STOPWISE_CACHE", str(folder / "cache"))
        write_trajectories(folder / "logs.parquet", make_logs(24))
        answer("signals", "logs.parquet", "--only", "Nov", "--out", "signals.parquet")
        (folder / "empty").write_bytes(b"")
        (folder / "binary").write_bytes(bytes(range(256)) * 8)
        (folder / "logs-cut").write_bytes((folder / "logs.parquet").read_bytes()[:-200])
        (folder / "signals-cut").write_bytes((folder / "signals.parquet").read_bytes()[:-200])
        (folder / "text").write_text("kind: never_stop\n")
        (folder / "folder").mkdir()
        (folder / "folder/kept").write_text("kept")
        good = {"kind": "fixed_budget", "signals": "signals.parquet", "grid": {"budget": [2, 4]}}
        (folder / "train.yaml").write_text(yaml.safe_dump(good))
        arms = {"signals": "signals.parquet", "controllers": [{"kind": "never_stop"}]}
        (folder / "benchmark.yaml").write_text(yaml.safe_dump(arms))
        answer("train", "train.yaml", "--out", "run")
        yield folder


@pytest.fixture
def fails(place, command):
    """Run a command that must fail: its one line on stderr; and the folder must be as before."""

    def look():
        return {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}

    def run(status, *words):
        before = look()
        found, out, err = command(*words)
        assert found == status, err
        assert out == ""
        assert "Traceback" not in err
        if not err.startswith("usage: "):
            *progress, last = err.splitlines()
            assert last.startswith(f"stopwise {words[0]}: ")
            assert all(line.startswith("computing signals: ") for line in progress)
        assert look() == before  # nothing written, nothing half-written
        return err

    return run


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ("nowhere", "nowhere: no such file"),
        ("empty", "empty: is empty"),
        ("binary", "binary: is not a Parquet file"),
        ("text", "text: is not a Parquet file"),
        ("logs-cut", "is not a Parquet file, or is cut off"),
        ("folder", "folder: is a folder"),
        ("signals.parquet", "expected trajectories"),
    ],
)
def test_logs_that_are_none(fails, logs, message):
    assert message in fails(1, "signals", logs, "--only", "Nov", "--out", "out.parquet")
    assert message in fails(1, "replay", "run", logs, "--out", "out.jsonl")


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ("nowhere", "nowhere: no such file"),
        ("empty", "empty: is not a Parquet file"),
        ("binary", "binary: is not a Parquet file"),
        ("signals-cut", "is not a Parquet file"),
        ("folder", "folder: is a folder"),
        ("logs.parquet", "is Parquet but no signal table"),
    ],
)
def test_signal_tables_that_are_none(fails, signals, message):
    assert message in fails(1, "analyze", signals, "--out", "out.json")
    assert message in fails(1, "train", "train.yaml", f"signals={signals}", "--out", "out")
    assert message in fails(1, "benchmark", "benchmark.yaml", f"signals={signals}", "--out", "out")


@pytest.mark.parametrize("name", ["train", "benchmark"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("nowhere", "no such file; expected a YAML config"),
        ("folder", "cannot be read"),
        ("binary", "binary: "),
        ("empty", "empty: "),
    ],
)
def test_configs_that_are_none(fails, name, config, message):
    status = 2 if config == "empty" else 1  # an empty config lacks its keys
    assert message in fails(status, name, config, "--out", "out")


def test_a_config_that_is_no_mapping_or_no_yaml(fails, place):
    (place / "list.yaml").write_text("- kind: never_stop\n")
    assert "list.yaml: holds list; expected a mapping" in fails(1, "train", "list.yaml", "--out", "out")
    (place / "broken.yaml").write_text("kind: [never_stop\n")
    assert "broken.yaml: line " in fails(1, "train", "broken.yaml", "--out", "out")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.serach=0.1", "unknown key reward.serach; did you mean search?"),
        ("gird.budget=[1]", "unknown key gird; did you mean grid?"),
        ("kindd=x", "unknown key kindd; did you mean kind?"),
        ("xyzzy=1", "unknown key xyzzy; expected one of kind, signals"),
        ("reward=3", "key reward"),
        ("reward.search=cheap", "key reward.search"),
        ("reward.search=-1", "reward.search: -1.0; expected a number of 0 or more"),
        ("guards.min_steps=0", "min_steps 0"),
        ("seed=-1", "seed: -1"),
        ("intervention=retrieve", "'retrieve' is not one of forbidden, noop"),
        ("reward.search.deep=1", "unknown key reward.search.deep|key reward.search|it has no keys"),
        ("grid.budget=[0]", "budget: 0; expected a whole number"),
        ("grid.budget=3", "key grid.budget"),
        ("grid.budget=[]", "grid.budget: is empty"),
        ("params.budjet=3", "budjet"),
        ("kind=oracle", "kind 'oracle'"),
        ("kind=lgistic", "kind 'lgistic'; expected one of logistic"),
        ("kind=heuristic", "grid|budget"),
        ("targets.folds=1", "targets.folds: 1"),
        ("objective.max_recall_loss=2", "objective.max_recall_loss"),
        ("grid.budget=[1", "the value is not YAML"),
    ],
)
def test_wrong_keys_and_values_of_a_training_run(fails, override, message):
    error = fails(2, "train", "train.yaml", override, "--out", "out")
    assert any(part in error for part in message.split("|"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("controlers=[]", "unknown key controlers; did you mean controllers?"),
        ("controllers=[]", "controllers is empty"),
        ("controllers=[{kindd: x}]", "unknown key controllers.0.kindd; did you mean kind?"),
        ("controllers=[{kind: never}]", "'never' is not one of never_stop"),
        ("controllers=[{name: x}]", "needs either `kind` or `policy`"),
        ("controllers=[{kind: never_stop, policy: run}]", "needs either `kind` or `policy`"),
        ("controllers=[{kind: logistic}]", "name its run as `policy`"),
        ("controllers=[{kind: never_stop}, {kind: never_stop}]", "two controllers are called 'never_stop'"),
        ("controllers=[{kind: never_stop, match: x}]", "only random can be matched"),
        ("controllers=[{policy: run, match: x}]", "only random can be matched"),
        ("controllers=[{kind: random, match: x}]", "no controller is called 'x'"),
        ("controllers=[{kind: random, match: x, params: {stop: 0.1}}]", "controllers.0.params"),
        ("controllers=[{kind: random, by: interventions}]", "controllers.0.by: says what `match` matches"),
        (
            "controllers=[{kind: random, match: x, by: interventions}, {kind: never_stop}]",
            "'random interventions ~ x' is to be matched to 'x', which is no other row; found never_stop",
        ),
        ("controllers=[{policy: run, params: {budget: 1}}]", "controllers.0.params"),
        ("controllers=[{kind: fixed_budget, params: {budget: x}}]", "budget: 'x'"),
        ("controllers.5.kind=oracle", "not one of 1 list items"),
        ("split=tset", "key split"),
        ("margin=-1", "margin: -1"),
        ("seed=-1", "seed: -1"),
    ],
)
def test_wrong_keys_and_values_of_a_benchmark(fails, override, message):
    assert message in fails(2, "benchmark", "benchmark.yaml", override, "--out", "out")


def test_an_override_needs_a_key_and_a_value(fails):
    assert "expected key.path=value" in fails(2, "train", "train.yaml", "seed", "--out", "out")


def test_a_policy_that_is_none(fails, place):
    assert "no such folder" in fails(1, "benchmark", "benchmark.yaml", "controllers=[{policy: x}]", "--out", "out")
    assert "has no manifest.json" in fails(1, "export", "folder", "--out", "out")
    assert "has no manifest.json" in fails(1, "replay", "folder", "logs.parquet")
    manifest = place / "run/policy/manifest.json"
    content = manifest.read_bytes()
    try:
        manifest.write_bytes(content.replace(b'"budget": ', b'"budget":  '))
        assert "was changed after it was written" in fails(1, "replay", "run", "logs.parquet")
    finally:
        manifest.write_bytes(content)


def test_figures_that_are_none(fails, place):
    assert "no such file" in fails(1, "export", "run", "--out", "out", "--benchmark", "nowhere")
    assert "is no result of `stopwise benchmark`" in fails(1, "export", "run", "--out", "out", "--benchmark", "run")
    (place / "odd.json").write_text('{"rows": [3]}')
    assert "is no result of" in fails(1, "export", "run", "--out", "out", "--benchmark", "odd.json")
    (place / "others.json").write_text(json.dumps({"rows": [{"controller": "x", "policy": "elsewhere"}]}))
    assert "has no figures for the policy run" in fails(
        1, "export", "run", "--out", "out", "--benchmark", "others.json"
    )
    (place / "thin.json").write_text(json.dumps({"rows": [{"controller": "x", "policy": "run"}]}))
    assert "thin.json" in fails(1, "export", "run", "--out", "out", "--benchmark", "thin.json")


def test_out_that_cannot_be_written(fails):
    assert "is a folder; expected a file" in fails(2, "signals", "logs.parquet", "--only", "Nov", "--out", "folder")
    assert "is a folder; expected a file" in fails(2, "analyze", "signals.parquet", "--out", "folder")
    assert "is a folder; expected a file" in fails(2, "replay", "run", "logs.parquet", "--out", "folder")
    assert "is a file; expected a folder" in fails(2, "train", "train.yaml", "--out", "text")
    assert "is a file; expected a folder" in fails(2, "benchmark", "benchmark.yaml", "--out", "text")
    assert "is a file; expected a folder" in fails(2, "export", "run", "--out", "text")
    for name in ("train", "benchmark"):  # before hours of work, not after them
        assert "is a file; expected" in fails(2, name, f"{name}.yaml", "signals=nowhere", "--out", "text")
        assert "holds other files" in fails(2, name, f"{name}.yaml", "signals=nowhere", "--out", "folder")
    assert "cannot be written" in fails(2, "train", "train.yaml", "--out", "text/out")
    assert "cannot be written" in fails(2, "signals", "logs.parquet", "--only", "Nov", "--out", "text/out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["signals", "logs.parquet", "--out", "x", "--only", "Nvo"], "no such signal; did you mean Nov?"),
        (["signals", "logs.parquet", "--out", "x", "--cov-judge", "gold"], "say --privileged too"),
        (["signals", "logs.parquet", "--out", "x", "--only", "Nov", "--se-cut", "3"], "from 0 to 2"),
        (["signals", "logs.parquet"], "required: --out"),
        (["analyze", "signals.parquet", "--resamples", "0"], "expected 1 or more"),
        (["analyze", "signals.parquet", "--horizon", "0"], "expected 1 or more"),
        (["analyze", "signals.parquet", "--seed", "-1"], "0 or more"),
        (["analyze", "signals.parquet", "--resamples", "many"], "invalid int value"),
        (["replay", "run", "logs.parquet", "--limit", "0"], "expected 1 or more"),
        (["train", "train.yaml"], "required: --out"),
        (["benchmark"], "required: CONFIG"),
    ],
)
def test_wrong_usage(fails, words, message):
    assert message in fails(2, *words)


def test_a_split_without_questions(fails, place, make_logs, answer):
    write_trajectories(place / "one.parquet", make_logs(1))
    answer("signals", "one.parquet", "--only", "Nov", "--out", "one-signals.parquet")
    splits = {"train": 0, "val": 0, "cal": 0, "test": 0}
    from stopwise.data.splits import split_of

    splits[split_of("q0")] += 1
    empty = next(split for split, count in splits.items() if not count)
    words = ["benchmark", "benchmark.yaml", "signals=one-signals.parquet", f"split={empty}", "--out", "out"]
    assert "no run" in fails(1, *words)
    assert "no run of the split" in fails(1, "train", "train.yaml", "signals=one-signals.parquet", "--out", "out")


def test_logs_without_any_run(fails, place, answer, make_logs):
    write_trajectories(place / "none.parquet", [])
    result = answer("signals", "none.parquet", "--only", "Nov", "--out", "none-signals.parquet")
    assert (result["trajectories"], result["signals"]["Nov"]["n"]) == (0, 0)
    assert "no run has gold" in fails(1, "analyze", "none-signals.parquet")
    assert "no run has" in fails(1, "train", "train.yaml", "signals=none-signals.parquet", "--out", "out")
    assert "no run" in fails(
        1, "benchmark", "benchmark.yaml", "signals=none-signals.parquet", "split=all", "--out", "out"
    )
    result = answer("replay", "run", "none.parquet")
    assert (result["runs"], result["saving"], result["recall_kept"]) == (0, None, None)


def test_help_is_light_and_names_the_commands():
    code = """
import sys
from stopwise.cli.main import main
try:
    main(["--help"])
except SystemExit as leaving:
    assert not leaving.code
heavy = ("numpy", "pyarrow", "sklearn", "scipy", "pydantic", "rich", "yaml", "torch", "gymnasium", "safetensors")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    *shown, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    for name in ("import", "inspect", "signals", "analyze", "train", "benchmark", "export", "replay", "demo"):
        assert any(line.split()[:1] == [name] for line in shown)


@pytest.mark.parametrize("name", ["signals", "analyze", "train", "benchmark", "export", "replay"])
def test_each_command_explains_itself(command, name):
    status, out, err = command(name, "--help")
    assert (status, err) == (0, "")
    assert f"example: stopwise {name}" in out
    assert "--json" in out


def test_no_command_unknown_commands_and_the_version(command):
    status, out, _ = command()
    assert status == 2
    assert "COMMAND" in out
    assert command("analyse")[0] == 2
    status, out, _ = command("--version")
    assert (status, out.count("\n")) == (0, 1)
