"""The small LM as a controller and as a policy package; nothing of training is needed."""

import json
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from stopwise.controllers.guards import Guards  # noqa: E402 - torch may be missing
from stopwise.controllers.lm import BaseModel, SmallLM, lowest_layer  # noqa: E402
from stopwise.controllers.package import MANIFEST, PolicyPackage, read_package, write_package  # noqa: E402
from stopwise.controllers.rendering import RenderingSpec  # noqa: E402
from stopwise.controllers.session import ControlSession  # noqa: E402
from stopwise.data.errors import DataError, UsageError  # noqa: E402
from stopwise.data.records import Action  # noqa: E402
from stopwise.models.causal_lm import load_causal_lm  # noqa: E402
from stopwise.models.tiny_lm import tiny_lm  # noqa: E402
from stopwise.models.trunk import HiddenStates  # noqa: E402
from stopwise.runtime import load  # noqa: E402
from stopwise.signals.table import SignalInfo  # noqa: E402
from stopwise.signals.tracker import SignalConfig, SignalRow  # noqa: E402

CONTINUE, INTERVENE, STOP = Action
SPEC = RenderingSpec(("Nov", "steps_since_new"), ((0.2, 0.5, 0.8), (0.5, 1.5, 3.5)), 1, 0.01, context_rows=4)
MODULE = "model.layers.0.self_attn.q_proj"
ROWS = [{"Nov": 1.0, "steps_since_new": 0.0}, {"Nov": 0.4}, {}, {"Nov": 0.0, "steps_since_new": 2.0}, {"Nov": 0.6}, {}]


@pytest.fixture(scope="module")
def base():
    found = load_causal_lm("tiny-random", device="cpu")
    return BaseModel(found.name, found.sha256)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    return {
        f"{MODULE}.lora_A": rng.standard_normal((2, 64)).astype(np.float32),
        f"{MODULE}.lora_B": rng.standard_normal((64, 2)).astype(np.float32),
    }


@pytest.fixture
def controller(base, arrays):
    return SmallLM(None, arrays, base=base, rendering=SPEC, scaling=0.5, threshold=2.0, intervene_threshold=2.0)


def decide(controller, rows=ROWS, **options):
    """Probabilities of a run's decisions."""
    session = ControlSession(controller, Guards(max_interventions=1), **options)
    return [session.decide(SignalRow(t, row, {})).probabilities for t, row in enumerate(rows, 1)]


def package_of(controller):
    info = SignalInfo(SignalConfig(signals=SPEC.signals), None, (), None)
    return PolicyPackage("small", controller, Guards(max_interventions=1), info, {"method": "exact"})


class TestController:
    def test_probabilities_are_a_softmax_over_the_actions_of_a_plain_forward(self, controller):
        """The last row's answers by one forward pass over the whole context, with the adapter merged by hand."""
        found = decide(controller)
        network = load_causal_lm("tiny-random", device="cpu").network
        weight = dict(network.named_parameters())[f"{MODULE}.weight"]
        with torch.no_grad():
            change = controller.weights[f"{MODULE}.lora_B"] @ controller.weights[f"{MODULE}.lora_A"]
            weight += 0.5 * torch.from_numpy(change)
        tokens = controller._scorer.tokens
        values = np.array([[row.get(name, np.nan) for name in SPEC.signals] for row in ROWS])
        for row, start in enumerate((0, 0, 0, 0, 2, 2)):
            ids = tokens.context(values, start, row + 1)
            with torch.no_grad():
                logits = network(torch.tensor([ids])).logits[0, -2, list(tokens.actions)]  # the last but one: ask "a"
            assert found[row] == pytest.approx(torch.softmax(logits.double(), -1).tolist(), abs=1e-5)

    def test_the_number_of_interventions_is_which_token_asks(self, controller, see):
        controller.reset()
        first, _ = controller.distribution(see(1, interventions=0, Nov=0.5))
        second, _ = controller.distribution(see(1, interventions=1, Nov=0.5))  # the same row, asked again
        later, _ = controller.distribution(see(1, interventions=5, Nov=0.5))
        assert len(controller._rows) == 1
        assert abs(first - second).max() > 1e-4
        assert first[INTERVENE] > 0
        assert second[INTERVENE] == 0  # it never learned what intervening brings there
        assert second.sum() == pytest.approx(1)
        assert (later == second).all()

    def test_how_answers_are_read_is_part_of_the_policy(self, controller, base, arrays, tmp_path):
        """softmax(3 logits + offsets), decided one by one, foreseen, and out of a package."""
        plain = np.log(np.array([row for row in decide(controller) if min(row) > 0]))
        rendering = SPEC.read_by(3.0, (0.0, -0.5, 1.0))
        sharp = SmallLM(
            None, arrays, base=base, rendering=rendering, scaling=0.5, threshold=2.0, intervene_threshold=2.0
        )
        found = np.array([row for row in decide(sharp) if min(row) > 0])
        wanted = np.exp(3.0 * plain + np.array([0.0, -0.5, 1.0]))
        assert found == pytest.approx(wanted / wanted.sum(axis=1, keepdims=True), abs=1e-5)
        write_package(tmp_path / "policy", package_of(sharp))
        back = read_package(tmp_path / "policy").controller
        assert isinstance(back, SmallLM)
        assert back.rendering == rendering
        assert np.array(decide(back)) == pytest.approx(np.array(decide(sharp)))

    def test_an_overwhelming_wish_to_intervene_leaves_a_distribution(self, controller, see):
        controller.reset()
        controller.distribution(see(1, Nov=0.5))
        controller._logits = np.array([[0.0, 0.0, 0.0], [-900.0, 900.0, -901.0]])
        found, _ = controller.distribution(see(1, interventions=1, Nov=0.5))
        assert found == pytest.approx([1 / (1 + np.exp(-1)), 0, 1 / (1 + np.e)])

    def test_thresholds_decide(self, base):
        def chosen(stop, nudge, probabilities, legal=(True, True, True)):
            controller = SmallLM(None, {}, base=base, rendering=SPEC, threshold=stop, intervene_threshold=nudge)
            return controller.choose(np.array(probabilities), np.array(legal))

        assert chosen(0.5, 0.5, [0.2, 0.3, 0.5]) is STOP
        assert chosen(0.51, 0.5, [0.2, 0.3, 0.5]) is INTERVENE  # 0.6 of what is not stop
        assert chosen(0.51, 0.61, [0.2, 0.3, 0.5]) is CONTINUE
        assert chosen(2, 2, [0.0, 0.0, 1.0], (False, False, True)) is STOP  # nothing else is legal
        assert chosen(2, 0.1, [0.0, 0.0, 1.0]) is CONTINUE

    def test_runs_do_not_know_of_each_other(self, controller):
        alone = decide(controller.copy())
        first, second = controller.copy(), controller.copy()
        one, two = ControlSession(first, Guards()), ControlSession(second, Guards())
        mixed = []
        for t, row in enumerate(ROWS, 1):
            mixed.append(one.decide(SignalRow(t, row, {})).probabilities)
            two.decide(SignalRow(t, {"Nov": 0.9}, {}))
        assert mixed == alone
        assert first._scorer is second._scorer is controller._scorer  # the network is there once
        assert first.network is controller.network
        assert first._rows is not second._rows
        assert decide(first) == alone  # begun again

    @pytest.mark.parametrize("shown", [6, 3, 2])
    def test_a_run_foreseen_is_decided_alike(self, controller, shown):
        """All rows at once, in contexts of four; of a run that goes another way than was foreseen, too."""
        wanted = decide(controller)
        session = ControlSession(controller, Guards(max_interventions=1))
        other = [*ROWS[:shown], *({"Nov": 0.1, "steps_since_new": 7.0} for _ in ROWS[shown:])]
        session.foresee([SignalRow(t, row, {}) for t, row in enumerate(other, 1)])
        assert session.counts.foreseen
        assert session.counts.seconds > 0
        found = [session.decide(SignalRow(t, row, {})).probabilities for t, row in enumerate(ROWS, 1)]
        assert np.array(found) == pytest.approx(np.array(wanted), abs=1e-6)
        session.begin()
        assert not session.counts.foreseen
        assert np.array(decide(controller)) == pytest.approx(np.array(wanted), abs=1e-6)

    def test_it_reads_a_foreseen_run_once(self, controller, monkeypatch):
        controller.prepare()
        scorer = controller._scorer
        passes = []
        append = scorer.append
        monkeypatch.setattr(scorer, "append", lambda reading, rows: passes.append(len(rows)) or append(reading, rows))
        session = ControlSession(controller, Guards(max_interventions=1))
        rows = [SignalRow(t, row, {}) for t, row in enumerate(ROWS, 1)]
        session.foresee(rows)
        for row in rows:
            session.decide(row)
        assert passes == [4, 4]  # contexts of four rows, the second beginning with two of the first

    @pytest.mark.parametrize("shown", [6, 3])
    def test_runs_foreseen_share_what_lies_below_the_adapters(self, base, arrays, monkeypatch, shown):
        """Policies over one base, changed in its upper layer only: the second finds the lower one's work done."""
        above = {name.replace("layers.0", "layers.1"): array for name, array in arrays.items()}
        wanted = []
        for scaling in (0.5, 2.0):
            policy = SmallLM(None, above, base=base, rendering=SPEC, scaling=scaling)
            wanted.append(decide(policy))
            rows = [SignalRow(t, row, {}) for t, row in enumerate(ROWS[:shown], 1)]
            session = ControlSession(policy, Guards(max_interventions=1))
            session.foresee(rows)
            found = [session.decide(row).probabilities for row in rows]
            assert np.array(found) == pytest.approx(np.array(wanted[-1][:shown]), abs=1e-6)
            monkeypatch.setattr(HiddenStates, "add", None)  # whatever the next one would compute of it fails
        assert abs(np.array(wanted[0]) - np.array(wanted[1])).max() > 1e-4
        assert lowest_layer(above) == 1

    def test_an_array_of_no_layer_leaves_nothing_to_share(self, arrays):
        assert lowest_layer({}) == 0
        assert lowest_layer(arrays) == 0
        assert lowest_layer({"model.layers.7.mlp.up_proj.lora_A": arrays[f"{MODULE}.lora_A"]}) == 7
        assert lowest_layer({"model.layers.7.x": arrays[f"{MODULE}.lora_A"], "lm_head.weight": np.zeros(1)}) == 0

    def test_equal_parameters_make_an_equal_controller(self, controller, arrays):
        twin = SmallLM(None, arrays, **json.loads(json.dumps(controller.params)))
        assert twin.params == controller.params
        assert decide(twin) == decide(controller)


class TestBadParts:
    def test_another_base_is_refused(self, arrays, base, tmp_path):
        other = SmallLM(None, arrays, base=BaseModel(base.name, "0" * 64), rendering=SPEC)
        with pytest.raises(DataError, match=f"has weights with sha256 {base.sha256}; this policy was trained on 0000"):
            other.prepare()
        folder = tiny_lm(tmp_path / "other", seed=1)
        with pytest.raises(DataError, match="bring that model, or train again"):
            SmallLM(None, arrays, base=BaseModel(str(folder), base.sha256), rendering=SPEC).prepare()

    def test_a_base_that_is_not_there_is_refused(self, arrays):
        with pytest.raises(UsageError, match="model no/such: cannot be loaded"):
            SmallLM(None, arrays, base=BaseModel("no/such", ""), rendering=SPEC).prepare()

    def test_half_an_adapter_is_refused(self, arrays, base):
        half = {name: array for name, array in arrays.items() if name.endswith("A")}
        with pytest.raises(DataError, match=f"weights of {MODULE} lack one of the adapter's two matrices"):
            SmallLM(None, half, base=base, rendering=SPEC)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ({"nowhere.weight": np.zeros((2, 2), np.float32)}, "fit nothing of the base model"),
            ({f"{MODULE}.weight": np.zeros((2, 2), np.float32)}, r"shape \(2, 2\) fit shape \(64, 64\)"),
            (
                {f"{MODULE}.lora_A": np.zeros((2, 3), np.float32), f"{MODULE}.lora_B": np.zeros((64, 2), np.float32)},
                r"shape \(64, 3\) fit shape \(64, 64\)",
            ),
        ],
    )
    def test_weights_that_do_not_fit_are_refused(self, base, weights, message):
        with pytest.raises(DataError, match=message):
            SmallLM(None, weights, base=base, rendering=SPEC).prepare()

    def test_an_unknown_rendering_key_is_refused(self, base, controller):
        with pytest.raises(DataError, match="colour"):
            SmallLM(None, {}, base=base, rendering={**controller.params["rendering"], "colour": 1})


class TestPackage:
    def test_saved_and_loaded_it_is_the_same(self, controller, tmp_path):
        write_package(tmp_path / "policy", package_of(controller))
        one, two = (read_package(tmp_path / "policy").controller for _ in range(2))
        assert isinstance(one, SmallLM)
        assert isinstance(two, SmallLM)
        assert one.rendering == SPEC
        assert one.params == controller.params
        assert decide(one) == decide(two) == decide(controller)  # bit for bit
        assert (one._logits == controller._logits).all()

    def test_changed_weights_are_refused(self, controller, tmp_path):
        write_package(tmp_path / "policy", package_of(controller))
        weights = tmp_path / "policy" / "weights.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        with pytest.raises(DataError, match="sha256"):
            read_package(tmp_path / "policy")

    def test_the_manifest_holds_no_code(self, controller, tmp_path):
        write_package(tmp_path / "policy", package_of(controller))
        manifest = json.loads((tmp_path / "policy" / MANIFEST).read_text())
        assert manifest["kind"] == "lm"
        assert manifest["params"]["rendering"]["price"] == 0.01
        assert {path.suffix for path in (tmp_path / "policy").iterdir()} == {".json", ".md", ".safetensors"}

    def test_the_live_monitor_decides(self, controller, tmp_path):
        write_package(tmp_path / "policy", package_of(controller))
        policy = load(tmp_path / "policy")
        assert not policy.needs_encoder
        monitor = policy.monitor("Who?", fail_open=False)
        first = monitor.observe(queries=["one"], documents=[{"id": "a", "text": "A"}, {"id": "b", "text": "B"}])
        second = monitor.observe(queries=["two"], documents=[{"id": "a", "text": "A"}])
        assert first.signals["Nov"] == 1.0
        assert second.signals["Nov"] == 0.0
        again = decide(controller, [dict(first.signals), dict(second.signals)])
        assert [first.probabilities, second.probabilities] == again
        assert monitor.counts.failures == 0

    def test_it_loads_without_trl_and_peft(self, controller, tmp_path):
        write_package(tmp_path / "policy", package_of(controller))
        code = f"""
import sys
for name in ("trl", "peft", "accelerate", "datasets", "sklearn", "gymnasium"):
    sys.modules[name] = None  # importing it fails
import stopwise.runtime
policy = stopwise.runtime.load({str(tmp_path / "policy")!r})
assert "torch" not in sys.modules  # not before the first decision
advice = policy.monitor("Who?", fail_open=False).observe(queries=["one"], documents=["A", "B"])
print(advice.probabilities)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        wanted = decide(controller, [{"Nov": 1.0, "steps_since_new": 0.0}])[0]
        assert eval(done.stdout.splitlines()[-1]) == pytest.approx(wanted, abs=1e-6)
