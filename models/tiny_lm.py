"""A tiny random language model over single characters: for tests and demonstrations of training, never for results.

Its weights come from a fixed seed of numpy's generator, so that they are the same everywhere.
"""

import contextlib
import io
from pathlib import Path
from typing import Any

from stopwise.data.files import atomic_folder, sha256_file, write_json
from stopwise.models.cache_folder import cache_folder

TINY = "tiny-random"
VERSION = 1  # of what `tiny_lm` makes
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
RECORD = "made.json"


def tiny_lm(folder: Path | None = None, *, width: int = 64, layers: int = 2, seed: int = 0) -> Path:
    """The folder of the model, made at the first call.

    Args:
        folder: where to make it; None is the cache folder.
        width: of the hidden states, a multiple of 16.
        layers: number of them.
        seed: of the weights.

    Raises:
        ImportError: torch or transformers is not installed.
    """
    folder = folder or cache_folder() / "models" / f"{TINY}-{VERSION}-{width}-{layers}-{seed}"
    if (folder / RECORD).exists():
        return folder
    import numpy as np
    import torch
    from tokenizers import Regex, Tokenizer, pre_tokenizers
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<pad>", "<start>", "<end>", "<unknown>"]
    vocabulary = {text: number for number, text in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<start>", eos_token="<end>", unk_token="<unknown>"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    network: Any = LlamaForCausalLM(config)
    chance = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in sorted(network.named_parameters()):
            if weight.ndim > 1:  # the scales of norms stay at one
                scale = 0.02 if "embed" in name else weight.shape[1] ** -0.5
                weight.copy_(torch.from_numpy(scale * chance.standard_normal(tuple(weight.shape))))
    with atomic_folder(folder, mark=RECORD) as partial, contextlib.redirect_stderr(io.StringIO()):  # progress bars
        network.save_pretrained(partial)
        fast.save_pretrained(partial)
        write_json(partial / RECORD, {"version": VERSION, "weights_sha256": sha256_file(partial / "model.safetensors")})
    return folder
