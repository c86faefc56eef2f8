"""What controllers ask beside signals: a language model, and a memory that holds no question of the run."""

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from stopwise.controllers.base import Controller
from stopwise.controllers.kinds import asks_memory, asks_model, connect
from stopwise.data.errors import DataError, UsageError
from stopwise.models.chat_client import ChatClient
from stopwise.models.chat_config import ChatConfig, open_chat
from stopwise.models.encoders import Encoder


class Connections:
    """Opens what is asked for, once, and closes it; to be used as a context.

    Args:
        llm: the language model of all controllers that ask one, or its config, opened when the first one asks.
        encoder: the signals' encoder, which memories are built with too, or its id; None is the packaged MiniLM.
        questions: ids of the questions that are to be answered, none of which may be in a memory.
        texts: of these questions, where they are known: they find equal questions under other ids.
    """

    def __init__(
        self,
        llm: ChatConfig | ChatClient | None,
        encoder: str | Encoder | None,
        questions: Collection[str],
        texts: Collection[str] = (),
    ) -> None:
        self._llm = llm
        self._encoder = encoder
        self._questions = questions
        self._texts = texts
        self._client: Any = None
        self._memories: list[Any] = []
        self._scratch: list[tempfile.TemporaryDirectory[str]] = []

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the memories; a second time does nothing."""
        while self._memories:
            self._memories.pop().close()
        while self._scratch:
            self._scratch.pop().cleanup()

    def connect(self, controller: Controller, memory: str | None, place: str) -> None:
        """Give a controller what it asks.

        Args:
            controller: of an arm, or of a collection.
            memory: folder of an experience memory, if one is named for it.
            place: where it stands in the config, for messages.

        Raises:
            UsageError: it asks a model or a memory and none is named, or one is named in vain.
            DataError: the memory is none, or holds a question that is to be answered.
        """
        if memory is not None and not asks_memory(controller):
            raise UsageError(f"{place}.memory: {controller.kind} asks no memory with these parameters; leave it out")
        if asks_memory(controller) and memory is None:
            raise UsageError(f"{place}.memory: ds_mcm with slow asks a memory; name its folder, or set params.recall=0")
        if asks_model(controller) and self._llm is None:
            raise UsageError(f"llm: {place}, {controller.kind}, asks a language model; name one, see configs/llm.yaml")
        if asks_model(controller) and self._client is None:
            self._client = open_chat(self._llm) if isinstance(self._llm, ChatConfig) else self._llm
        online = bool(getattr(controller, "online", False))
        connect(controller, self._client, None if memory is None else self._open(Path(memory), online))

    def _open(self, folder: Path, online: bool) -> Any:
        if online:  # it grows as the controllers run: on a copy, or a second run would begin with what the first learnt
            self._scratch.append(tempfile.TemporaryDirectory())
            copy = Path(self._scratch[-1].name) / "memory"
            folder = Path(shutil.copytree(folder, copy)) if folder.is_dir() else folder
        memory = open_memory(folder, self._encoder)
        self._memories.append(memory)
        memory.check_disjoint(self._questions, self._texts)
        return memory

    @property
    def client(self) -> Any:
        """The language model that controllers were connected to; None when none was opened."""
        return self._client

    def report(self) -> dict[str, Any] | None:
        """The model and its bill, JSON-able; None when none was opened."""
        if self._client is None:
            return None
        return {"model": self._client.id, "served_model": self._client.served_model, **self._client.ledger.report()}


def open_memory(folder: Path, encoder: str | Encoder | None) -> Any:
    """An experience memory.

    Args:
        folder: where it lies.
        encoder: the encoder that it was built with, or its id, which is then cached; None is the packaged MiniLM.

    Raises:
        DataError: there is none, or it was built with another encoder.
    """
    from stopwise.controllers.memory.memory import FILE, ExperienceMemory
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

    if not (folder / FILE).is_file():
        raise DataError(f"{folder}: no experience memory; build one with `stopwise train configs/memory.yaml`")
    if encoder is None or isinstance(encoder, str):
        model = MINILM if encoder is None or encoder.startswith(f"{MINILM}@") else encoder
        encoder = CachedEncoder(SentenceTransformerEncoder(model))
    return ExperienceMemory(folder, encoder)
