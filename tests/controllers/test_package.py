import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from stopwise.controllers.base import Controller
from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.boosted import Boosted, Privileged
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.oracle import Oracle
from stopwise.controllers.package import PolicyPackage, _digest, _manifest_text, read_package, write_package
from stopwise.controllers.session import ControlSession
from stopwise.data.errors import DataError, UsageError
from stopwise.envs.replay import ReplayEnv
from stopwise.signals.calibration import Calibration
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalConfig
from stopwise.train.trees import TreeOptions, fit_trees

SPEC = FeatureSpec(("Nov", "Sim"))


def logistic(order: Literal["C", "F"] = "C"):
    rng = np.random.default_rng(0)
    columns = 2 * len(SPEC)
    weights = {
        "mean": rng.normal(size=columns),
        "scale": rng.uniform(0.5, 2, columns),
        "coef": np.array(rng.normal(size=(3, columns)), order=order),
        "intercept": np.array([0.1, -np.inf, 0.3]),
    }
    return Logistic(SPEC, weights, threshold=0.4321)


def trees(kind: type[Boosted] = Boosted):
    """Three small trees, for all three actions, on every column that the kind has."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(200, len(SPEC) + kind.hidden))
    columns[rng.random(columns.shape) < 0.2] = np.nan
    values = rng.normal(size=(200, 3)) + np.nan_to_num(columns[:, -3:])
    arrays = fit_trees(columns, values, 3, TreeOptions(min_leaf=5), 0)
    return kind(SPEC, arrays, threshold=0.3, intervene_threshold=0.4)


CONTROLLERS: list[Controller] = [
    NeverStop(),
    FixedBudget(2),
    Random(0.3, 0.2),
    Heuristic(window=2, nov_low=0.3),
    DsMcm(1.5, "stop"),
    Oracle(),
    logistic(),
    logistic("F"),
    trees(),
    trees(Privileged),
]


@pytest.fixture(scope="module")
def table(run_of, table_of):
    rng = np.random.default_rng(1)
    runs = []
    for number in range(30):
        length = int(rng.integers(1, 7))
        cells = {name: rng.normal(size=length).tolist() for name in ("Nov", "Sim", "residual_z")}
        cells["Sim"][0] = "no query"
        recall = np.sort(rng.integers(0, 5, length)) / 4
        runs.append(run_of(recall.tolist(), question=f"q{number}", signals=cells))
    line = ("agent", "logged", Calibration(0.5, 0.25, 0.1, 40))
    return table_of(runs, encoder="model@abc", calibrations=(line,), logs_sha256="0" * 64, fitted=("se_cut",))


def package_of(controller, table):
    return PolicyPackage("mine ✓", controller, Guards(2, 50, 1, 3), table.info, {"seed": 3, "figures": [0.1, None]})


def decisions(package, table):
    env = ReplayEnv(table, FeatureSpec(()))
    session = ControlSession(package.controller, package.guards)
    made = []
    for episode in range(len(table)):
        session.begin(seed=episode)
        env.reset(options={"episode": episode})
        for index in range(table.offsets[episode], table.offsets[episode + 1]):
            decision = session.decide(table.row(index), env.hindsight)
            made.append((decision.action, decision.probabilities, decision.message))
            env.step(0)
    return made


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.kind)
def test_a_package_read_back_decides_the_same_on_every_row(controller, table, tmp_path):
    package = package_of(controller, table)
    write_package(tmp_path / "policy", package)
    found = read_package(tmp_path / "policy")
    assert decisions(found, table) == decisions(package, table)
    assert type(found.controller) is type(controller)
    assert found.controller.params == controller.params
    assert (found.name, found.guards, found.signals) == (package.name, package.guards, package.signals)
    assert dict(found.training) == dict(package.training)
    write_package(tmp_path / "again", found)
    for path in (tmp_path / "policy").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.fixture
def folder(table, tmp_path):
    write_package(tmp_path / "policy", package_of(logistic(), table))
    return tmp_path / "policy"


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors", "README.md"])
def test_a_changed_byte_anywhere_is_refused(folder, name):
    path = folder / name
    content = path.read_bytes()
    places = range(0, len(content), max(1, len(content) // 60))
    for place in [*places, len(content) - 1]:
        for flip in (1, 0x20, 0x80):
            changed = bytearray(content)
            changed[place] ^= flip
            path.write_bytes(bytes(changed))
            with pytest.raises(DataError, match=r"policy"):
                read_package(folder)
    for changed in (b"", content[:-1], content + b"\n"):
        path.write_bytes(changed)
        with pytest.raises(DataError):
            read_package(folder)
    path.write_bytes(content)
    assert read_package(folder).name == "mine ✓"


def forge(folder, change):
    """Change the manifest and make its digest fit, as someone would who edits by hand and knows how."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest.pop("digest")
    change(manifest)
    manifest["digest"] = _digest(manifest)
    path.write_text(_manifest_text(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(schema=2), "schema 2; this stopwise reads schema 1"),
        (lambda m: m.pop("schema"), "schema null"),
        (lambda m: m.pop("guards"), "key 'guards' is missing"),
        (lambda m: m.update(extra=1), "unknown key 'extra'"),
        (lambda m: m["guards"].pop("cooldown") and m["guards"].update(cool=1), "cool"),
        (lambda m: m["guards"].update(min_steps=0), "min_steps 0"),
        (lambda m: m.update(kind="forest"), "controller 'forest'"),
        (lambda m: m.update(kind="boosted"), "boosted: weights feature are missing"),
        (lambda m: m["params"].update(extra=1), "extra"),
        (lambda m: m.update(features=None), "logistic: names no features"),
        (lambda m: m["features"].update(version=2), "version 2"),
        (lambda m: m["features"].update(signals=["Nov"]), "expected shape"),
        (lambda m: m["features"].update(signals=["Now"]), "unknown signal 'Now'"),
        (lambda m: m["signals"].pop("encoder"), "encoder"),
        (lambda m: m["files"].pop("weights.safetensors"), "expected README.md, weights.safetensors"),
        (lambda m: m["files"].update({"../evil": "0"}), "expected README.md, weights.safetensors"),
        (lambda m: m.update(files=None), "inconsistent"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_with_the_reason(folder, change, reason):
    forge(folder, change)
    with pytest.raises(DataError, match=reason):
        read_package(folder)


def test_weights_of_another_package_are_refused(folder, table):
    other = folder.with_name("other")
    wide = FeatureSpec(("Nov",))
    columns = 2 * len(wide)
    weights = {"mean": np.zeros(columns), "scale": np.ones(columns), "coef": np.zeros((3, columns))}
    write_package(other, package_of(Logistic(wide, weights | {"intercept": np.zeros(3)}), table))
    shutil.copy(other / "weights.safetensors", folder)
    with pytest.raises(DataError, match=r"weights.safetensors: sha256 .*; the manifest says"):
        read_package(folder)
    from stopwise.data.files import sha256_file

    forge(folder, lambda m: m["files"].update({"weights.safetensors": sha256_file(folder / "weights.safetensors")}))
    with pytest.raises(DataError, match="logistic: weights mean are"):
        read_package(folder)


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors", "README.md"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        read_package(folder)


def test_what_is_no_package_is_said(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        read_package(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        read_package(tmp_path)
    for content in ("[]", "{}", "", "{", '{"schema": NaN}'):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(DataError, match=r"manifest\.json"):
            read_package(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_package(tmp_path)


def test_nothing_is_unpickled(folder, tmp_path):
    """A pickle in place of the weights, with a manifest that fits, is refused and not run."""
    proof = tmp_path / "proof"

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {proof}",))

    from stopwise.data.files import sha256_file

    weights = folder / "weights.safetensors"
    weights.write_bytes(pickle.dumps(Evil()))
    forge(folder, lambda m: m["files"].update({"weights.safetensors": sha256_file(weights)}))
    with pytest.raises(DataError):
        read_package(folder)
    assert not proof.exists()


def test_writing_replaces_a_package_whole_and_nothing_else(folder, table, tmp_path):
    write_package(folder, package_of(NeverStop(), table))
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "manifest.json"]
    mine = tmp_path / "work"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match=r"work: .*expected"):
        write_package(mine, package_of(NeverStop(), table))
    assert (mine / "thesis.txt").read_text() == "years"
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        write_package(file, package_of(NeverStop(), table))
    with pytest.raises(ValueError, match=r"Out of range|not JSON compliant"):
        write_package(folder, PolicyPackage("x", NeverStop(), Guards(), table.info, {"figure": float("nan")}))
    assert read_package(folder).name == "mine ✓"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "policy", "work"]  # no half-written folder


def test_the_card_says_what_it_is(folder):
    card = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("mine ✓", "`logistic` controller", '"threshold": 0.4321', "model@abc", "Nov, Sim", '"seed": 3'):
        assert part in card


@pytest.mark.parametrize("kind", ["logistic", "boosted"])
def test_a_learned_policy_runs_with_numpy_alone(folder, kind):
    code = """
import sys
import stopwise.runtime
policy = stopwise.runtime.load(sys.argv[1])
assert policy.package.controller.features.signals == ("Nov", "steps_since_new")
monitor = policy.monitor("who?", fail_open=False)
for step in range(4):
    advice = monitor.observe(queries=["who"], documents=["a text", {"title": "A page", "text": f"page {step}"}])
assert advice.signals.keys() == {"Nov", "steps_since_new"}
heavy = ("torch", "sklearn", "gymnasium", "transformers", "pyarrow", "pandas", "scipy", "pydantic", "yaml", "rich")
print([name for name in heavy if name in sys.modules])
"""
    spec = FeatureSpec(("Nov", "steps_since_new"))
    columns = 2 * len(spec)
    weights = {"mean": np.zeros(columns), "scale": np.ones(columns), "coef": np.ones((3, columns))}
    info = replace(read_package(folder).signals, config=SignalConfig(signals=spec.signals))
    controller = Logistic(spec, weights | {"intercept": np.zeros(3)}) if kind == "logistic" else trees()
    controller.features = spec  # as many columns, other names
    light = PolicyPackage("light", controller, Guards(), info)
    target = Path(folder).with_name("light")
    write_package(target, light)
    done = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
