"""Causal language models by name, as networks: for scoring, for training, and for policies that are made of one."""

import contextlib
import hashlib
import io
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stopwise.data.errors import UsageError
from stopwise.data.files import sha256_file
from stopwise.models.smollm2 import SMOLLM2, dense_smollm2
from stopwise.models.tiny_lm import TINY, tiny_lm

INSTALL = "pip install 'stopwise[lm]'"


@dataclass(frozen=True)
class CausalLM:
    """A network with its tokenizer."""

    name: str  # as it was asked for
    network: Any  # transformers.PreTrainedModel, in evaluation mode
    tokenizer: Any  # transformers.PreTrainedTokenizerBase
    source: str  # what it was loaded from: a folder, or a Hugging Face id

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def sha256(self) -> str:
        """Of the weight files; computed at the first call, since only policies need it.

        Raises:
            UsageError: there are no safetensors.
        """
        return _weights_sha256(self.source)


def load_causal_lm(name: str = SMOLLM2, *, dtype: str = "float32", device: str | None = None) -> CausalLM:
    """Load a network and its tokenizer.

    Args:
        name: ``SmolLM2-135M-Instruct`` (the packaged weights), ``tiny-random`` (two random layers, for tests), a
            Hugging Face id, or a folder.
        dtype: of the weights in memory, a torch name.
        device: torch device; None is CUDA where there is one, else the CPU.

    Raises:
        UsageError: it cannot be loaded, or what loads it is not installed.
        DataError: the packaged weights are not what they should be.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):  # transformers speaks of wandb; stdout is for results
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
            from transformers.utils import logging
    except ImportError as error:
        raise UsageError(f"model {name}: {error.name or error} is not installed; run `{INSTALL}`") from error
    source = model_source(name)
    logging.disable_progress_bar()  # stderr is for our own progress
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(source)
            network: Any = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model {name}: cannot be loaded ({(str(error) or type(error).__name__).splitlines()[0]}); "
            f"name {SMOLLM2}, a Hugging Face id or a folder"
        ) from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return CausalLM(name, network.to(device).eval(), tokenizer, source)


def model_source(name: str) -> str:
    """What transformers is to load for a name: a folder, or a Hugging Face id."""
    if name == SMOLLM2:
        return str(dense_smollm2())
    return str(tiny_lm()) if name == TINY else name


def _weights_sha256(source: str) -> str:
    """One hash of a model's safetensors files, in its folder or in the Hugging Face cache, whatever their number."""
    from transformers.utils.hub import cached_file

    if Path(source).is_dir():
        files = sorted(Path(source).glob("*.safetensors"))
    else:
        found = [cached_file(source, part, _raise_exceptions_for_missing_entries=False) for part in _PARTS]
        folder = next((Path(path).parent for path in found if path), None)
        files = sorted(folder.glob("*.safetensors")) if folder else []
    if not files:
        raise UsageError(f"model {source}: no safetensors weights found; other formats are not read")
    if len(files) == 1:
        return sha256_file(files[0])
    return hashlib.sha256("".join(sha256_file(file) for file in files).encode()).hexdigest()


_PARTS = ("model.safetensors", "model.safetensors.index.json")
