"""A trained network for other tools: the adapter as peft keeps it, or the merged weights as a transformers model."""

from pathlib import Path
from typing import Any

import numpy as np

from stopwise.controllers.lm import LORA_A, LORA_B, SmallLM, merge
from stopwise.controllers.rendering import ACTIONS, ASKS, RenderingSpec
from stopwise.data.errors import UsageError
from stopwise.data.files import atomic_folder
from stopwise.models.causal_lm import load_causal_lm, model_source

CARD = "README.md"


def write_adapter(folder: Path, name: str, controller: SmallLM) -> None:
    """Write a peft adapter: ``adapter_config.json``, ``adapter_model.safetensors`` and a model card.

    Args:
        folder: to be made, or an earlier export.
        name: of the policy.
        controller: one that was trained with an adapter.

    Raises:
        UsageError: all its weights were trained.
    """
    from peft import LoraConfig
    from safetensors.numpy import save_file

    if not all(key.endswith((LORA_A, LORA_B)) for key in controller.weights):
        raise UsageError("export: all weights of this policy were trained, there is no adapter; use `--as merged`")
    modules = sorted({key.removesuffix(LORA_A).removesuffix(LORA_B) for key in controller.weights})
    rank = len(controller.weights[modules[0] + LORA_A])
    config = LoraConfig(
        r=rank,
        lora_alpha=round(controller.scaling * rank),
        target_modules=modules,  # by their whole names: not every layer has one
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=controller.base.name,
        inference_mode=True,
    )
    with atomic_folder(folder, mark="adapter_config.json") as partial:
        config.save_pretrained(str(partial))
        arrays = {f"base_model.model.{key}.weight": np.ascontiguousarray(v) for key, v in controller.weights.items()}
        save_file(arrays, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        (partial / CARD).write_text(network_card(name, controller, "adapter"), encoding="utf-8")


def write_merged(folder: Path, name: str, controller: SmallLM) -> None:
    """Write the whole network with its tokenizer, in float32, as any tool of Hugging Face reads it.

    Args:
        folder: to be made, or an earlier export.
        name: of the policy.
        controller: of any training.

    Raises:
        UsageError: the base model cannot be loaded.
        DataError: it is another one than was trained on.
    """
    controller.prepare()  # checks the base
    loaded = load_causal_lm(controller.base.name, device="cpu")
    merge(loaded.network, controller.weights, controller.scaling)
    with atomic_folder(folder, mark="config.json") as partial:
        loaded.network.save_pretrained(str(partial))
        loaded.tokenizer.save_pretrained(str(partial))
        (partial / CARD).write_text(network_card(name, controller, "merged weights"), encoding="utf-8")


def network_card(name: str, controller: SmallLM, what: str) -> str:
    """A page for people: what the network reads, how its answer is read, what decides."""
    spec: RenderingSpec = controller.rendering
    nan = float("nan")
    example = spec.header + spec.row(1, [0.0] * len(spec.signals), None) + spec.row(2, [nan] * len(spec.signals), None)
    source = controller.base.name if model_source(controller.base.name) == controller.base.name else "a packaged model"
    return "\n".join(
        [
            "---",
            f"base_model: {controller.base.name}",
            "library_name: transformers",
            "tags: [stopwise, deep-research, controller]",
            "---",
            f"# {name}: {what}",
            "",
            f"A controller of deep-search agents, trained by stopwise on {controller.base.name} ({source}; weights "
            f"with sha256 `{controller.base.sha256}`). It reads one short row a search and answers by one token: "
            f"{', '.join(f'`{action}`' for action in ACTIONS)} for continue, intervene, stop, read at the ask token "
            f"(`{ASKS[0]}` before any intervention, `{ASKS[1]}` after one, and so on), as the next token among the "
            f"three{_reading(spec)}. It stops when the probability of stop is {controller.threshold:.4f} or more, and "
            f"else intervenes when the share of intervening in the rest is {controller.intervene_threshold:.4f} or "
            "more.",
            "",
            "```",
            example,
            "```",
            "",
            "It was trained on logs of one kind of agent and corpus: on others its thresholds have to be chosen anew "
            "(`stopwise train`). It does not read questions, queries or documents.",
            "",
        ]
    )


def _reading(spec: RenderingSpec) -> str:
    """How the logits of the actions become probabilities, where that is more than a softmax."""
    if spec.sharpness == 1.0 and not any(spec.offsets):
        return ""
    offsets = ", ".join(f"{offset:.4f}" for offset in spec.offsets)
    return f", of their logits times {spec.sharpness:.4f}, plus ({offsets})"


def export_network(folder: Path, name: str, controller: Any, form: str) -> None:
    """Write a network in a form, ``adapter`` or ``merged``.

    Raises:
        UsageError: the controller has no network, or not in that form.
    """
    if not isinstance(controller, SmallLM):
        raise UsageError(f"export: a {controller.kind} policy has no network; leave `--as {form}` out")
    if form == "adapter":
        write_adapter(folder, name, controller)
    else:
        write_merged(folder, name, controller)
