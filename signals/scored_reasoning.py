"""Reasoning entropy by scoring: the entropies that another language model has over a logged thought.

For logs without log-probabilities. The model reads the run's conversation as it stood when the thought was written, and
teacher forcing gives its next-token distribution at every position of the thought. That is not the agent's own
uncertainty, so the result is marked ``scored:<model>`` and never mixed with logged entropies.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Logprobs, Trajectory
from stopwise.data.sqlite_file import open_sqlite
from stopwise.models.cache_folder import cache_folder
from stopwise.models.chat import Message
from stopwise.models.transcript import WINDOW, Passage, Window, passages
from stopwise.signals.entropy import TOP_K

RUNS = 64  # whose passages are sorted by length together
TOKENS = 4096  # of a forward pass, padding included


class Scorer(Protocol):
    """What is needed of a language model; `stopwise.models.local_lm.LocalLM` is one."""

    @property
    def id(self) -> str:
        """Names the weights."""
        ...

    @property
    def context(self) -> int:
        """Tokens that it can read."""
        ...

    def render(self, messages: Sequence[Message], *, begin_reply: bool = False) -> str:
        """The conversation as text."""
        ...

    def encode_with_spans(self, text: str) -> tuple[list[int], NDArray[np.int64]]:
        """Token ids, and the characters (tokens, 2) that each covers."""
        ...

    def top_logprobs(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[NDArray[np.int64]], top_k: int
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities (P, top_k) at the P positions of each sequence."""
        ...


@dataclass(frozen=True, slots=True)
class _Piece:
    """One passage on its way through the model."""

    key: bytes
    ids: list[int]
    positions: list[NDArray[np.int64]]  # of each thought's tokens


class ReasoningScorer:
    """Scores the thoughts of runs. Results are kept by content, so an interrupted call goes on where it was."""

    def __init__(self, model: Scorer, cache: Path | str | None = None, window: Window = WINDOW) -> None:
        """Open the cache.

        Args:
            model: scores.
            cache: SQLite file; None means ``scored.sqlite`` in stopwise's cache folder; ``":memory:"`` keeps nothing.
            window: how much of a run the model reads before a thought.

        Raises:
            DataError: the file is there and is no such cache.
            UsageError: there cannot be a file at that path.
        """
        self._model = model
        self._window = window
        self._path = str(cache_folder() / "scored.sqlite" if cache is None else cache)
        self._database = open_sqlite(self._path, "cache of scores")
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS scored"
                " (model TEXT, content_sha256 BLOB, entropies TEXT, PRIMARY KEY (model, content_sha256)) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise DataError(f"{self._path}: is not a cache of scores ({error}); delete it or name another") from error

    @property
    def source(self) -> str:
        """What the scores are marked with."""
        return f"scored:{self._model.id}"

    def score(
        self, runs: Iterable[Trajectory], progress: Callable[[str, int, int | None], None] | None = None
    ) -> Iterator[Trajectory]:
        """The runs with scored entropies in place of whatever log-probabilities they hold.

        Searches without a thought end up with none: logged ones beside scored ones would be a mixture.

        Args:
            runs: any number of runs.
            progress: called with what is being done, how many runs are scored, and None.
        """
        iterator, done = iter(runs), 0
        while block := list(islice(iterator, RUNS)):
            parts = [passages(run.question, run.steps, self._window) for run in block]
            texts = {}  # rendered once: the key and the pieces need them
            for part in parts:
                for passage in part:
                    text = self._model.render(passage.messages)
                    texts[id(passage)] = (text, _spans(self._model.id, text, passage))
            keys = {number: _key(*text) for number, text in texts.items()}
            found = self._found(list(keys.values()))
            missing = {key: texts[number] for number, key in keys.items() if key not in found}
            found |= self._compute(missing)
            for run, part in zip(block, parts, strict=True):
                entropies: dict[int, tuple[float, ...]] = {}
                for passage in part:
                    for thought, values in zip(passage.thoughts, found[keys[id(passage)]], strict=True):
                        entropies[thought.step] = tuple(values)
                yield self._marked(run, entropies)
            done += len(block)
            if progress is not None:
                progress("scoring reasoning", done, None)

    def close(self) -> None:
        """Close the cache."""
        self._database.close()

    def _marked(self, run: Trajectory, entropies: dict[int, tuple[float, ...]]) -> Trajectory:
        steps = tuple(
            replace(step, logprobs=Logprobs(entropies=entropies[number], source=self.source))
            if number in entropies
            else replace(step, logprobs=None)
            for number, step in enumerate(run.steps)
        )
        return replace(run, steps=steps)

    def _compute(self, missing: dict[bytes, tuple[str, list[tuple[int, int]]]]) -> dict[bytes, list[list[float]]]:
        pieces = []
        for key, (text, spans) in missing.items():
            ids, places = self._model.encode_with_spans(text)
            if len(ids) > self._model.context:
                raise UsageError(
                    f"model {self._model.id}: a conversation of {len(ids)} tokens is more than its context of "
                    f"{self._model.context}; give a smaller window (--score-window) than {self._window.conversation} "
                    "characters"
                )
            # a token belongs to a thought when it shares a character with it; nothing stands before the first token
            positions = [
                np.flatnonzero((places[:, 0] < end) & (places[:, 1] > start) & (np.arange(len(ids)) > 0))
                for start, end in spans
            ]
            pieces.append(_Piece(key, ids, positions))
        pieces.sort(key=lambda piece: (len(piece.ids), piece.key))
        found: dict[bytes, list[list[float]]] = {}
        for batch in _batches(pieces):
            positions = [np.concatenate(piece.positions) for piece in batch]
            rows = self._model.top_logprobs([piece.ids for piece in batch], positions, TOP_K)
            scored = {}
            for piece, top in zip(batch, rows, strict=True):
                flat = [round(float(value), 7) for value in top_entropies(top)]
                ends = np.cumsum([len(places) for places in piece.positions])
                scored[piece.key] = [flat[end - len(p) : end] for p, end in zip(piece.positions, ends, strict=True)]
            with self._database:
                self._database.executemany(
                    "INSERT OR IGNORE INTO scored VALUES (?, ?, ?)",
                    [(self._model.id, key, json.dumps(values)) for key, values in scored.items()],
                )
            found |= scored
        return found

    def _found(self, keys: Sequence[bytes]) -> dict[bytes, list[list[float]]]:
        found = {}
        for key in keys:
            row = self._database.execute(
                "SELECT entropies FROM scored WHERE model = ? AND content_sha256 = ?", [self._model.id, key]
            ).fetchone()
            if row is not None:
                found[key] = json.loads(row[0])
        return found


def top_entropies(top: NDArray[np.float32]) -> NDArray[np.float64]:
    """Entropies in nats, shape (P,), of top-K distributions given as log-probabilities (P, K), renormalised on the K.

    The same as `stopwise.signals.entropy.position_entropy` of each row.
    """
    wide = top.astype(np.float64)
    share = np.exp(wide - wide.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return np.maximum(0.0, -(share * logs).sum(axis=1))


def _batches(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Runs of pieces, shortest first, with at most `TOKENS` tokens each once padded; a longer piece goes alone."""
    batch: list[_Piece] = []
    for piece in pieces:
        if batch and len(piece.ids) * (len(batch) + 1) > TOKENS:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _spans(model: str, text: str, passage: Passage) -> list[tuple[int, int]]:
    """Where each thought stands in the rendered conversation: messages stand in it in order, word for word."""
    starts, position = [], 0
    for message in passage.messages:
        content = message.content.strip()  # some templates strip it
        start = text.find(content, position)
        if start < 0:
            raise UsageError(f"model {model}: its chat template changes messages, so thoughts cannot be found in them")
        starts.append(start)
        position = start + len(content)
    return [(starts[thought.message], starts[thought.message] + thought.length) for thought in passage.thoughts]


def _key(text: str, spans: Sequence[tuple[int, int]]) -> bytes:
    return hashlib.sha256(json.dumps([text, list(spans), TOP_K]).encode()).digest()
