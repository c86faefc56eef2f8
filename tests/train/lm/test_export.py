"""What is exported is the policy's own network, in the forms of other tools."""

import json

import numpy as np
import pytest
import torch

from stopwise.cli.main import main
from stopwise.controllers.baselines import NeverStop
from stopwise.controllers.lm import BaseModel, SmallLM
from stopwise.controllers.rendering import RenderingSpec
from stopwise.data.errors import UsageError
from stopwise.models.causal_lm import load_causal_lm
from stopwise.models.tiny_lm import TINY
from stopwise.train.lm.export import export_network, network_card, write_adapter, write_merged
from stopwise.train.lm.network import former_names

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")


def controller(adapter: bool) -> SmallLM:
    """A policy on the tiny model with random trained arrays."""
    base = load_causal_lm(TINY)
    rng = np.random.default_rng(3)
    arrays = {}
    for name in MODULES:
        weight = dict(base.network.named_parameters())[f"{name}.weight"]
        if adapter:
            arrays[f"{name}.lora_A"] = rng.normal(size=(2, weight.shape[1])).astype(np.float32)
            arrays[f"{name}.lora_B"] = 0.3 * rng.normal(size=(weight.shape[0], 2)).astype(np.float32)
        else:
            arrays[f"{name}.weight"] = rng.normal(size=tuple(weight.shape)).astype(np.float32)
    spec = RenderingSpec(("Nov", "Div"), ((0.5,), (0.2, 0.4)), 1, 0.01)
    return SmallLM(None, arrays, base=BaseModel(TINY, base.sha256), rendering=spec, scaling=1.5)


IDS = torch.tensor([[4, 20, 21, 33, 45, 60, 70, 71]])


def test_the_adapter_gives_the_policys_logits_in_peft(tmp_path):
    from peft import PeftModel

    policy = controller(adapter=True)
    write_adapter(tmp_path / "adapter", "tiny", policy)
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "README.md",
    }  # fmt: skip
    with former_names():
        loaded = PeftModel.from_pretrained(load_causal_lm(TINY).network, tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, policy.network(IDS).logits, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(policy.network(IDS).logits, load_causal_lm(TINY).network(IDS).logits, atol=0.1)


@pytest.mark.parametrize("adapter", [True, False])
def test_merged_weights_give_equal_logits_in_transformers(tmp_path, adapter):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = controller(adapter)
    write_merged(tmp_path / "merged", "tiny", policy)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, policy.network(IDS).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.encode("C", add_special_tokens=False) == load_causal_lm(TINY).tokenizer.encode("C")
    card = (tmp_path / "merged" / "README.md").read_text()
    assert policy.base.sha256 in card
    assert policy.rendering.header in card


def test_the_card_says_how_answers_are_read():
    """Who reads the network with another tool needs the numbers of the rendering."""
    plain = controller(adapter=True)
    assert "times" not in network_card("tiny", plain, "adapter")
    rendering = plain.rendering.read_by(2.5, (0.0, -1.25, 0.5))
    read = SmallLM(None, plain.weights, base=plain.base, rendering=rendering)
    assert "of their logits times 2.5000, plus (0.0000, -1.2500, 0.5000)" in network_card("tiny", read, "adapter")


def test_what_has_no_adapter_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"all weights of this policy were trained.*--as merged"):
        write_adapter(tmp_path / "adapter", "tiny", controller(adapter=False))
    with pytest.raises(UsageError, match="a never_stop policy has no network"):
        export_network(tmp_path / "other", "rule", NeverStop(), "merged")


def test_as_a_user_calls_it(tmp_path, capsys, table_of, run_of):
    from stopwise.controllers.guards import Guards
    from stopwise.controllers.package import PolicyPackage, write_package

    table = table_of([run_of([0.5], id="a")], signals=("Nov", "Div"))
    write_package(tmp_path / "policy", PolicyPackage("tiny", controller(adapter=True), Guards(), table.info))
    out = tmp_path / "adapter"
    assert main(["export", str(tmp_path / "policy"), "--as", "adapter", "--out", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"out": str(out), "name": "tiny", "kind": "lm", "form": "adapter"}
    assert json.loads((out / "adapter_config.json").read_text())["r"] == 2
