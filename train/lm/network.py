"""The network that is trained: a base with an adapter or with all weights free, and what training changed in it."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from transformers import set_seed

from stopwise.controllers.lm import LORA_A, LORA_B
from stopwise.data.errors import DataError, UsageError
from stopwise.models.causal_lm import CausalLM
from stopwise.models.trunk import FrozenTrunk, has_plain_layers
from stopwise.train.lm.config import LoraOptions

ADAPTER = "default"  # peft's name for the only adapter


@contextlib.contextmanager
def former_names() -> Iterator[None]:
    """TRL 1.16 and peft 0.21 ask transformers 5.24 for properties by their former names: nothing for users to do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        yield


def trainable(base: CausalLM, lora: LoraOptions | None, seed: int) -> Any:
    """The base with a fresh adapter (B is zero, so it begins as the base), or with all weights free.

    Raises:
        UsageError: the base has no module of that name.
    """
    if lora is None:
        return base.network.train()
    set_seed(seed)
    depth = base.network.config.num_hidden_layers
    if lora.layers is not None and lora.layers > depth:
        raise UsageError(f"lora.layers: {lora.layers}; {base.name} has {depth}")
    options = LoraConfig(
        layers_to_transform=None if lora.layers is None else list(range(depth - lora.layers, depth)),
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with former_names():
            return get_peft_model(base.network, options).train()
    except ValueError as error:
        raise UsageError(f"lora.targets: {str(error).splitlines()[0]}") from error


def frozen_trunk(network: Any, lora: LoraOptions | None, *, bf16: bool = False) -> FrozenTrunk | None:
    """The trunk of a network whose adapter sits on the last layers only; None where there is nothing to save.

    None too for decoders that are not a plain list of layers with a norm after it.

    Args:
        network: from `trainable`.
        lora: of the network.
        bf16: see `FrozenTrunk`.
    """
    if lora is None or lora.layers is None or not has_plain_layers(network):
        return None
    first = network.config.num_hidden_layers - lora.layers
    return FrozenTrunk(network, first, bf16=bf16) if first > 0 else None


def changed_arrays(network: Any, lora: LoraOptions | None) -> dict[str, NDArray[np.float32]]:
    """What training changed, as `SmallLM` takes it: the adapter's matrices, or every parameter."""

    def array(tensor: torch.Tensor) -> NDArray[np.float32]:
        return tensor.detach().float().cpu().numpy().copy()

    if lora is None:
        return {name: array(parameter) for name, parameter in network.named_parameters()}
    found = {}
    for name, module in network.get_base_model().named_modules():
        if hasattr(module, "lora_A"):
            found[name + LORA_A] = array(module.lora_A[ADAPTER].weight)
            found[name + LORA_B] = array(module.lora_B[ADAPTER].weight)
    return found


def restore(network: Any, lora: LoraOptions | None, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put the arrays of an earlier run into a network of the same kind, in place.

    Raises:
        DataError: they do not fit.
    """
    own = changed_arrays(network, lora)
    odd = sorted(set(own) ^ set(arrays)) or [name for name in own if own[name].shape != arrays[name].shape]
    if odd:
        raise DataError(f"start: its weights do not fit this run's `lora` and `base`, as {odd[0]}; use the same there")
    with torch.no_grad():
        if lora is None:
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.from_numpy(np.asarray(arrays[name])))
            return
        for name, module in network.get_base_model().named_modules():
            if hasattr(module, "lora_A"):
                module.lora_A[ADAPTER].weight.copy_(torch.from_numpy(np.asarray(arrays[name + LORA_A])))
                module.lora_B[ADAPTER].weight.copy_(torch.from_numpy(np.asarray(arrays[name + LORA_B])))


def scaling(lora: LoraOptions | None) -> float:
    """Factor of B A in the merged weights."""
    return 1.0 if lora is None else lora.alpha / lora.rank
