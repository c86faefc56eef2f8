"""The language model, the experience memories and the texts that a benchmark's controllers ask for."""

import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from stopwise.cli.output import logs_path
from stopwise.data.errors import DataError, UsageError
from stopwise.models.chat_config import ChatConfig


class Connections:
    """Opens what is asked for, once, and closes it; to be used as a context.

    Args:
        llm: the language model of all controllers that ask one.
        encoder: id of the signals' encoder, which memories are built with too; None is the packaged MiniLM.
        questions: ids of the evaluation's questions, none of which may be in a memory.
    """

    def __init__(self, llm: ChatConfig | None, encoder: str | None, questions: Collection[str]) -> None:
        self._llm = llm
        self._encoder = encoder
        self._questions = questions
        self._client: Any = None
        self._memories: list[Any] = []
        self._scratch: list[tempfile.TemporaryDirectory[str]] = []

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *_: object) -> None:
        for memory in self._memories:
            memory.close()
        for folder in self._scratch:
            folder.cleanup()

    def connect(self, controller: Any, memory: str | None, place: str) -> None:
        """Give a controller what it asks.

        Args:
            controller: of an arm.
            memory: folder of an experience memory, if one is named for it.
            place: where it stands in the config, for messages.

        Raises:
            UsageError: it asks a model or a memory and none is named, or one is named in vain.
            DataError: the memory is none, or holds a question of the evaluation.
        """
        from stopwise.controllers.kinds import asks_memory, asks_model, connect
        from stopwise.models.chat_config import open_chat

        if memory is not None and not asks_memory(controller):
            raise UsageError(f"{place}.memory: {controller.kind} asks no memory with these parameters; leave it out")
        if asks_memory(controller) and memory is None:
            raise UsageError(f"{place}.memory: ds_mcm with slow asks a memory; name its folder, or set params.recall=0")
        if asks_model(controller) and self._llm is None:
            raise UsageError(f"llm: {place}, {controller.kind}, asks a language model; name one, see configs/llm.yaml")
        if asks_model(controller) and self._client is None:
            assert self._llm is not None
            self._client = open_chat(self._llm)
        connect(controller, self._client, None if memory is None else self._open(Path(memory), controller.online))

    def _open(self, folder: Path, online: bool) -> Any:
        if online:  # it grows as the benchmark runs: on a copy, or a second run would begin with what the first learnt
            self._scratch.append(tempfile.TemporaryDirectory())
            copy = Path(self._scratch[-1].name) / "memory"
            folder = Path(shutil.copytree(folder, copy)) if folder.is_dir() else folder
        memory = open_memory(folder, self._encoder)
        self._memories.append(memory)
        memory.check_disjoint(self._questions)
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


def open_memory(folder: Path, encoder: str | None) -> Any:
    """An experience memory.

    Args:
        folder: where it lies.
        encoder: id of the encoder that it was built with; None is the packaged MiniLM.

    Raises:
        DataError: there is none, or it was built with another encoder.
    """
    from stopwise.controllers.memory.memory import FILE, ExperienceMemory
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

    if not (folder / FILE).is_file():
        raise DataError(f"{folder}: no experience memory; build one with `stopwise train configs/memory.yaml`")
    model = MINILM if encoder is None or encoder.startswith(f"{MINILM}@") else encoder
    return ExperienceMemory(folder, CachedEncoder(SentenceTransformerEncoder(model)))


def texts_of(name: str | None, arms: Sequence[Any], table: Any) -> Mapping[str, Any] | None:
    """The runs of a signal table by trajectory id, for arms that read texts; None where none does or none are named.

    Raises:
        UsageError: the logs are not those that the table was computed from.
    """
    from stopwise.data.files import sha256_file
    from stopwise.data.store import read_trajectories

    if name is None or not any(arm.controller.reads_text for arm in arms):
        return None
    path = logs_path(name)
    expected, found = table.info.logs_sha256, sha256_file(path) if path.is_file() else None
    if expected is not None and found is not None and found != expected:
        raise UsageError(f"logs: {path} has sha256 {found[:12]}; the signals were computed from {expected[:12]}")
    wanted = {episode.id for episode in table.episodes}
    return {run.id: run for run in read_trajectories(path) if run.id in wanted}
