"""Layers below the first one that is trained: what they make of a run never changes, so it is computed once.

With an adapter on the last n of N layers, a pass over a run that was seen before costs n / N of a whole one. Hidden
states are kept in memory in float32: some 1.4 MB for a run of 600 tokens and a width of 576.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from stopwise.train.lm.config import LoraOptions

HEAD = 48  # tokens by which sequences are told apart before they are compared whole
BLOCK = 64  # tokens, see `kernel_length`


def kernel_length(tokens: int) -> int:
    """Length to pad a sequence to: the next multiple of 64 where products of matrices go through bf16, else its own.

    For bf16 on a CPU oneDNN compiles a kernel for each new shape of a product, and nearly every run has another length:
    a third of the time, on one thread, and a gigabyte of kernels.
    """
    return tokens if torch.get_float32_matmul_precision() == "highest" else -(-tokens // BLOCK) * BLOCK


class FrozenTrunk:
    """Hidden states before layer `first` of a decoder, by token ids; shared by networks with the same lower layers."""

    def __init__(
        self,
        network: Any,
        first: int,
        known: dict[tuple[int, ...], list[Any]] | None = None,
        *,
        bf16: bool = False,
    ) -> None:
        """Bind to a network.

        Args:
            network: a causal language model, or one with a peft adapter; its decoder has ``layers`` and ``norm``.
            first: the lowest layer that is trained.
            known: hidden states that another network has already computed.
            bf16: compute under autocast, as accelerate does what lies above; it wraps whole networks only.
        """
        bare = network.get_base_model() if hasattr(network, "peft_config") else network
        self._decoder = bare.get_decoder()
        self._first = first
        self._known: dict[tuple[int, ...], list[Any]] = {} if known is None else known
        self._bf16 = bf16

    def bind(self, network: Any) -> "FrozenTrunk":
        """The same hidden states for another network whose layers below `first` have the same weights."""
        return FrozenTrunk(network, self._first, self._known, bf16=self._bf16)

    def hidden(self, ids: Sequence[int]) -> torch.Tensor:
        """Hidden states (tokens, width) of a sequence; those of a prefix are taken from the longer one."""
        wanted = tuple(ids)
        bucket = self._known.setdefault(wanted[:HEAD], [])
        for known, states in bucket:
            if known[: len(wanted)] == wanted:
                return states[: len(wanted)]
        device = next(self._decoder.parameters()).device
        precision = torch.autocast(device.type, torch.bfloat16, enabled=self._bf16)
        with torch.inference_mode(), precision, self._part(slice(0, self._first), bare_end=True):
            # to the right, where a causal decoder never looks
            padding = [0] * (kernel_length(len(wanted)) - len(wanted))
            given = torch.tensor([[*wanted, *padding]], device=device)
            states = self._decoder(given, use_cache=False).last_hidden_state[0, : len(wanted)].float()
        states = states.clone()  # an inference tensor cannot take part in a backward pass
        bucket.append((wanted, states))
        return states

    @contextlib.contextmanager
    def top(self) -> Iterator[None]:
        """Inside, the network begins at layer `first`: give it hidden states as ``inputs_embeds``."""
        with self._part(slice(self._first, None), bare_end=False):
            yield

    @contextlib.contextmanager
    def _part(self, chosen: slice, *, bare_end: bool) -> Iterator[None]:
        layers, norm = self._decoder.layers, self._decoder.norm
        self._decoder.layers = layers[chosen]
        if bare_end:
            self._decoder.norm = torch.nn.Identity()
        try:
            yield
        finally:
            self._decoder.layers, self._decoder.norm = layers, norm


def frozen_trunk(network: Any, lora: LoraOptions | None, *, bf16: bool = False) -> FrozenTrunk | None:
    """The trunk of a network whose adapter sits on the last layers only; None where there is nothing to save.

    None too for decoders that are not a plain list of layers with a norm after it.
    """
    if lora is None or lora.layers is None:
        return None
    bare = network.get_base_model() if hasattr(network, "peft_config") else network
    decoder = bare.get_decoder()
    plain = hasattr(decoder, "layers") and hasattr(decoder, "norm")
    first = bare.config.num_hidden_layers - lora.layers
    return FrozenTrunk(network, first, bf16=bf16) if plain and first > 0 else None
