"""Layers below the first one that is trained: what they make of a run never changes, so it is computed once.

With an adapter on the last n of N layers, a pass over a run that was seen before costs n / N of a whole one. Hidden
states are kept in memory in float32: some 1.4 MB for a run of 600 tokens and a width of 576.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

HEAD = 48  # tokens by which sequences are told apart before they are compared whole
LIMIT = 4 << 30  # bytes of hidden states that are kept
BLOCK = 64  # tokens, see `kernel_length`


def kernel_length(tokens: int) -> int:
    """Length to pad a sequence to: the next multiple of 64 where products of matrices go through bf16, else its own.

    For bf16 on a CPU oneDNN compiles a kernel for each new shape of a product, and nearly every run has another length:
    a third of the time, on one thread, and a gigabyte of kernels.
    """
    return tokens if torch.get_float32_matmul_precision() == "highest" else -(-tokens // BLOCK) * BLOCK


class HiddenStates:
    """Hidden states of whole sequences, by token ids; the longest unused go first where they outgrow the memory."""

    def __init__(self, limit: int = LIMIT) -> None:
        """Empty.

        Args:
            limit: bytes.
        """
        self._limit, self._size = limit, 0
        self._states: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()
        self._alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # first tokens to sequences

    def find(self, ids: tuple[int, ...]) -> torch.Tensor | None:
        """Those of a sequence (tokens, width), if it or one that begins with it is known."""
        for known in self._alike.get(ids[:HEAD], ()):
            if known[: len(ids)] == ids:
                self._states.move_to_end(known)
                return self._states[known][: len(ids)]
        return None

    def add(self, ids: tuple[int, ...], states: torch.Tensor) -> None:
        """Keep those of a sequence that `find` does not know."""
        self._states[ids] = states
        self._alike.setdefault(ids[:HEAD], []).append(ids)
        self._size += states.nbytes
        while self._size > self._limit and len(self._states) > 1:
            oldest, gone = self._states.popitem(last=False)
            self._alike[oldest[:HEAD]].remove(oldest)
            self._size -= gone.nbytes


@cache
def shared_states(base: str, first: int, device: str) -> HiddenStates:
    """What all policies of a process over one base model share, in float32.

    Args:
        base: hash of its weights.
        first: the lowest layer that differs between them.
        device: torch's name of where the states are.
    """
    return HiddenStates()


class FrozenTrunk:
    """The layers below `first` of a decoder; what they make of a sequence is computed once.

    Networks whose layers below `first` have the same weights can share the hidden states.
    """

    def __init__(self, network: Any, first: int, known: HiddenStates | None = None, *, bf16: bool = False) -> None:
        """Bind to a network.

        Args:
            network: a causal language model, or one with a peft adapter; its decoder has ``layers`` and ``norm``.
            first: the lowest layer that is trained.
            known: where hidden states are kept, if others use them too.
            bf16: compute under autocast, as accelerate does what lies above; it wraps whole networks only.
        """
        self._decoder = decoder_of(network)
        self._first = first
        self._known = HiddenStates() if known is None else known
        self._bf16 = bf16

    def bind(self, network: Any) -> "FrozenTrunk":
        """The same hidden states for another network whose layers below `first` have the same weights."""
        return FrozenTrunk(network, self._first, self._known, bf16=self._bf16)

    def hidden(self, ids: Sequence[int]) -> torch.Tensor:
        """Hidden states (tokens, width) of a sequence; those of a prefix are taken from the longer one."""
        wanted = tuple(ids)
        found = self._known.find(wanted)
        if found is not None:
            return found
        device = next(self._decoder.parameters()).device
        precision = torch.autocast(device.type, torch.bfloat16, enabled=self._bf16)
        with torch.inference_mode(), precision, self._part(slice(0, self._first), bare_end=True):
            # to the right, where a causal decoder never looks
            padding = [0] * (kernel_length(len(wanted)) - len(wanted))
            given = torch.tensor([[*wanted, *padding]], device=device)
            states = self._decoder(given, use_cache=False).last_hidden_state[0, : len(wanted)].float()
        states = states.clone()  # an inference tensor cannot take part in a backward pass
        self._known.add(wanted, states)
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


def decoder_of(network: Any) -> Any:
    """The decoder of a causal language model, with or without a peft adapter."""
    bare = network.get_base_model() if hasattr(network, "peft_config") else network
    return bare.get_decoder()


def has_plain_layers(network: Any) -> bool:
    """Whether its decoder is a plain list of layers with a norm after it, as `FrozenTrunk` needs it."""
    decoder = decoder_of(network)
    return hasattr(decoder, "layers") and hasattr(decoder, "norm")
