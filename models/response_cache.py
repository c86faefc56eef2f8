"""Replies of language models on disk, by the content of the request, so that a second run costs nothing."""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from stopwise.data.errors import DataError
from stopwise.data.sqlite_file import open_sqlite
from stopwise.models.cache_folder import cache_folder
from stopwise.models.chat import ChatReply, ChatRequest, TokenLogprobs, ToolCall, Usage

_TABLE = "CREATE TABLE IF NOT EXISTS replies (request_sha256 BLOB PRIMARY KEY, model TEXT, reply TEXT) WITHOUT ROWID"
_COLUMNS = ["request_sha256", "model", "reply"]


def default_response_cache() -> Path:
    """The file in stopwise's cache folder."""
    return cache_folder() / "replies.sqlite"


def request_key(model: str, request: ChatRequest) -> bytes:
    """SHA-256 of the model's id and of everything in the request. No key, no header and no address but the id's."""
    content = json.dumps([model, asdict(request)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(content.encode()).digest()


class ResponseCache:
    """A table of replies; safe to share between threads and between processes.

    The first reply to a request stays, so that all who ask for it get the same.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        """Open the cache.

        Args:
            path: the file; None means `default_response_cache()`; ``":memory:"`` keeps it in memory.

        Raises:
            DataError: the file is there and is no such cache.
            UsageError: there cannot be a file at that path.
        """
        self._path = str(default_response_cache() if path is None else path)
        self._lock = threading.Lock()
        self._database = open_sqlite(self._path, "cache of replies", check_same_thread=False)
        try:
            with self._explained():
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute(_TABLE)
                found = [row[1] for row in self._database.execute("PRAGMA table_info(replies)")]
                if found != _COLUMNS:
                    raise sqlite3.DatabaseError(f"its columns are {', '.join(found)}")
        except DataError:
            self._database.close()
            raise

    def get(self, key: bytes) -> ChatReply | None:
        """The reply to a request, or None."""
        with self._explained(), self._lock:
            row = self._database.execute("SELECT reply FROM replies WHERE request_sha256 = ?", [key]).fetchone()
        return None if row is None else _reply(row[0])

    def put(self, key: bytes, model: str, reply: ChatReply) -> ChatReply:
        """Keep a reply, unless there is one; returns the one that is kept."""
        text = json.dumps(asdict(reply), ensure_ascii=True)
        with self._explained(), self._lock, self._database:
            self._database.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", [key, model, text])
        kept = self.get(key)
        assert kept is not None
        return kept

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise DataError(
                f"{self._path}: the cache of replies cannot be used ({error}); name another file"
            ) from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self._path}: is not a cache of replies ({error}); delete it or name another file"
            ) from error


def _reply(text: str) -> ChatReply:
    value = json.loads(text)
    logprobs = value["logprobs"]
    return ChatReply(
        **value
        | {
            "usage": Usage(**value["usage"]),
            "tool_calls": tuple(ToolCall(**call) for call in value["tool_calls"]),
            "logprobs": None
            if logprobs is None
            else tuple(TokenLogprobs(p["token"], p["logprob"], tuple(p["top"])) for p in logprobs),
        }
    )
