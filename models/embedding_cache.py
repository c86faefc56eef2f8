"""Embeddings on disk, by content hash and encoder id, so that no text is encoded twice.

Values are rounded to float16 on write and are always read back from there: an embedding depends a little on what
else was in its batch (padding), so the rounded, stored value is *the* value, for a prefix and for the whole run.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stopwise.data.errors import DataError
from stopwise.data.sqlite_file import open_sqlite
from stopwise.models.cache_folder import cache_folder
from stopwise.models.encoders import Embeddings, Encoder

BLOCK = 512  # texts encoded between two commits: what an interruption can lose


def default_cache() -> Path:
    """``$STOPWISE_CACHE/embeddings.sqlite``, by default below ``~/.cache/stopwise``."""
    return cache_folder() / "embeddings.sqlite"


class CachedEncoder:
    """An encoder behind a SQLite cache; itself an `Encoder`.

    SQLite, from the standard library, survives a crash and lets several processes share one cache.
    """

    def __init__(self, encoder: Encoder, path: Path | str | None = None) -> None:
        """Open the cache.

        Args:
            encoder: what computes missing embeddings.
            path: the cache file; None means `default_cache()`; ``":memory:"`` keeps it in memory.

        Raises:
            DataError: the file is there and is no embedding cache; `encode` and `prefetch` raise it too.
            UsageError: there cannot be a file at that path.
        """
        self.encoder = encoder
        self._path = str(default_cache() if path is None else path)
        # one thread at a time may use it, not always the same one: whoever shares it between threads takes turns
        self._database = open_sqlite(self._path, "embedding cache", check_same_thread=False)
        try:
            with self._explained():
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS embeddings"
                    " (encoder TEXT, text_sha256 BLOB, value BLOB, PRIMARY KEY (encoder, text_sha256)) WITHOUT ROWID"
                )
                found = [row[1] for row in self._database.execute("PRAGMA table_info(embeddings)")]
                if found != ["encoder", "text_sha256", "value"]:
                    raise sqlite3.DatabaseError(f"its columns are {', '.join(found)}")
        except DataError:
            self._database.close()
            raise

    @property
    def id(self) -> str:
        """The wrapped encoder's id."""
        return self.encoder.id

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts, from the cache where they are in it.

        Args:
            texts: n texts, repetitions allowed.

        Returns:
            float32 array of shape (n, dimension): the stored float16 values, scaled to unit length again.
        """
        keys = [_digest(text) for text in texts]
        found = self._read(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            self._write(list(missing), self.encoder.encode(list(missing.values())))
            found |= self._read(list(missing))
        if not keys:
            return np.zeros((0, 0), dtype=np.float32)
        return _unit(np.stack([np.frombuffer(found[key], dtype=np.float16) for key in keys]))

    def prefetch(self, texts: Iterable[str], progress: Callable[[int, int], None] | None = None) -> int:
        """Encode what is missing, in blocks of similar length, each committed: an interrupted call resumes.

        Args:
            texts: any texts, repetitions allowed.
            progress: called with (done, total) after each block.

        Returns:
            The number of texts that were encoded.
        """
        by_key = {_digest(text): text for text in texts}
        keys = list(by_key)
        present: set[bytes] = set()
        for start in range(0, len(keys), 500):
            present |= self._read(keys[start : start + 500]).keys()
        # similar lengths together waste no padding; the digest makes the order independent of the input's
        missing = sorted((key for key in keys if key not in present), key=lambda key: (len(by_key[key]), key))
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            self._write(block, self.encoder.encode([by_key[key] for key in block]))
            if progress is not None:
                progress(start + len(block), len(missing))
        return len(missing)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        unique = list(dict.fromkeys(keys))
        for start in range(0, len(unique), 500):  # SQLite bounds the number of placeholders
            part = unique[start : start + 500]
            marks = ",".join("?" * len(part))
            query = f"SELECT text_sha256, value FROM embeddings WHERE encoder = ? AND text_sha256 IN ({marks})"
            with self._explained():
                found.update(self._database.execute(query, [self.id, *part]).fetchall())
        return found

    def _write(self, keys: Sequence[bytes], values: Embeddings) -> None:
        rows = [(self.id, key, row.astype(np.float16).tobytes()) for key, row in zip(keys, values, strict=True)]
        with self._explained(), self._database:  # the first value stays: another process may have written the same text
            self._database.executemany("INSERT OR IGNORE INTO embeddings VALUES (?, ?, ?)", rows)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk, a lock that lasts, a file that may not be written
            raise DataError(f"{self._path}: the embedding cache cannot be used ({error}); name another file") from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self._path}: is not an embedding cache ({error}); delete it or name another file"
            ) from error


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _unit(rows: np.ndarray) -> Embeddings:
    wide = rows.astype(np.float64)
    norms = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    return (wide / np.where(norms > 0, norms, 1.0)).astype(np.float32)
