"""The entries of a memory on disk: one SQLite file with a write-ahead log.

SQLite, from the standard library, gives what a memory needs of a file: a process that is killed while it writes loses
the transaction under way and nothing else, and several processes may write, one at a time. Vectors have a table of
their own, so that reading all of them does not read the texts.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.memory.entries import LABELS, Entry, Label
from stopwise.data.errors import DataError
from stopwise.data.importers.toolbox import normalise_question
from stopwise.data.sqlite_file import open_sqlite

SCHEMA = 1

_TABLES = (
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY AUTOINCREMENT, label TEXT NOT NULL,"
    " question_id TEXT NOT NULL, question TEXT, question_sha256 BLOB, agent TEXT, dataset TEXT, source TEXT NOT NULL,"
    " abstraction_by TEXT NOT NULL, session TEXT NOT NULL, history TEXT NOT NULL, abstraction TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS vectors (id INTEGER PRIMARY KEY, pool INTEGER NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS by_pool ON vectors (pool)",
    "CREATE INDEX IF NOT EXISTS by_question ON entries (question_id)",
    "CREATE INDEX IF NOT EXISTS by_question_text ON entries (question_sha256)",
)
_FIELDS = (
    "label",
    "question_id",
    "question",
    "agent",
    "dataset",
    "source",
    "abstraction_by",
    "session",
    "history",
    "abstraction",
)
_READ = 20_000  # vectors that are read at a time
_MARKS = 500  # SQLite bounds the number of placeholders of a statement


class EntryStore:
    """Entries with their vectors. Safe to share between threads and between processes.

    Vectors are stored as float16 and are what was stored, not what was computed: every process sees the same.
    """

    def __init__(self, path: Path, encoder: str) -> None:
        """Open or make the file.

        Args:
            path: of the SQLite file; its folder is made when missing.
            encoder: id of the encoder; a memory holds the embeddings of one encoder only.

        Raises:
            DataError: the file is there and is no memory, or is one of another schema or encoder.
            UsageError: there cannot be a file at that path.
        """
        self.path = Path(path)
        self._lock = threading.RLock()
        self._database = open_sqlite(str(self.path), "a memory", check_same_thread=False, isolation_level=None)
        try:
            with self._explained():
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=FULL")  # a commit is on the disk: the power may go, too
                with self.transaction():
                    self._prepare(encoder)
        except DataError:
            self._database.close()
            raise

    def _prepare(self, encoder: str) -> None:
        for statement in _TABLES:
            self._database.execute(statement)
        wanted = {"schema": str(SCHEMA), "encoder": encoder, "generation": "0"}
        self._database.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", wanted.items())
        for name in ("schema", "encoder"):
            found = self.fact(name)
            if found != wanted[name]:
                raise DataError(
                    f"{self.path}: has {name} {found}; this memory needs {name} {wanted[name]}; build it again, or "
                    f"name the {name} that it was built with"
                )
        columns = [row[1] for row in self._database.execute("PRAGMA table_info(entries)")]
        if set(columns) != {"id", "question_sha256", *_FIELDS}:
            raise sqlite3.DatabaseError(f"its columns are {', '.join(columns)}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and alone among all processes; others wait up to a minute."""
        with self._lock, self._explained():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def fact(self, name: str) -> str | None:
        """A fact about the memory: ``schema``, ``encoder``, ``generation`` (rises when entries go), or an index's."""
        with self._lock, self._explained():
            row = self._database.execute("SELECT value FROM facts WHERE name = ?", [name]).fetchone()
        return None if row is None else row[0]

    def set_fact(self, name: str, value: str) -> None:
        """Write a fact; inside a `transaction` it is part of it."""
        with self._lock, self._explained():
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, value])

    def data_version(self) -> int:
        """A number that changes when another connection has written."""
        with self._lock, self._explained():
            return int(self._database.execute("PRAGMA data_version").fetchone()[0])

    def insert(self, entries: Sequence[Entry], vectors: NDArray[np.float16]) -> list[int]:
        """Append entries with their vectors, shape (N, D); returns their ids. Call it inside a `transaction`."""
        names = ", ".join((*_FIELDS, "question_sha256"))
        marks = ", ".join("?" * (len(_FIELDS) + 1))
        ids = []
        with self._lock, self._explained():
            for entry, vector in zip(entries, vectors, strict=True):
                values = [_clean(getattr(entry, name)) for name in _FIELDS]
                row = self._database.execute(
                    f"INSERT INTO entries ({names}) VALUES ({marks})", [*values, question_hash(entry.question)]
                )
                assert row.lastrowid is not None
                self._database.execute(
                    "INSERT INTO vectors VALUES (?, ?, ?)",
                    [row.lastrowid, LABELS.index(entry.label), vector.astype(np.float16).tobytes()],
                )
                ids.append(row.lastrowid)
        return ids

    def delete(self, ids: Iterable[int]) -> None:
        """Take entries out and raise the generation. Call it inside a `transaction`."""
        rows = [(id,) for id in ids]
        with self._lock, self._explained():
            self._database.executemany("DELETE FROM entries WHERE id = ?", rows)
            self._database.executemany("DELETE FROM vectors WHERE id = ?", rows)
            self.set_fact("generation", str(int(self.fact("generation") or 0) + 1))

    def last_id(self) -> int:
        """The newest entry's id, 0 where there is none. Ids rise in the order in which entries are committed."""
        with self._lock, self._explained():
            return int(self._database.execute("SELECT coalesce(max(id), 0) FROM vectors").fetchone()[0])

    def vectors(self, pool: int, after: int = 0, upto: int = 2**62) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
        """Ids (N,) and vectors (N, D) of the entries of a pool with ids above `after`, up to `upto`, in their order.

        Args:
            pool: position in `LABELS`.
            after: an id.
            upto: an id.

        Raises:
            DataError: vectors have several lengths.
        """
        ids: list[NDArray[np.int64]] = []
        blocks: list[NDArray[np.float16]] = []
        with self._lock, self._explained():
            rows = self._database.execute(
                "SELECT id, value FROM vectors WHERE id > ? AND id <= ? AND +pool = ? ORDER BY id", [after, upto, pool]
            )
            while block := rows.fetchmany(_READ):
                if len({len(value) for _, value in block} | {2 * b.shape[1] for b in blocks[:1]}) != 1:
                    raise DataError(f"{self.path}: holds vectors of several lengths; build the memory again")
                ids.append(np.array([id for id, _ in block], np.int64))
                joined = b"".join(value for _, value in block)
                blocks.append(np.frombuffer(joined, dtype=np.float16).reshape(len(block), -1))
        if not ids:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.float16)
        return np.concatenate(ids), np.concatenate(blocks)

    def vectors_of(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
        """Ids (N,) and vectors (N, D) of entries by their ids, a few; those that are not there are left out."""
        marks = ",".join("?" * len(ids))
        with self._lock, self._explained():
            rows = self._database.execute(
                f"SELECT id, value FROM vectors WHERE id IN ({marks})", ids.tolist()
            ).fetchall()
        if not rows:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.float16)
        values = np.stack([np.frombuffer(value, dtype=np.float16) for _, value in rows])
        return np.array([id for id, _ in rows], np.int64), values

    def read(self, ids: Sequence[int]) -> dict[int, Entry]:
        """Entries by id; ids that are not there are left out."""
        found: dict[int, Entry] = {}
        columns = ", ".join(_FIELDS)
        for start in range(0, len(ids), _MARKS):
            part = [int(id) for id in ids[start : start + _MARKS]]
            marks = ",".join("?" * len(part))
            with self._lock, self._explained():
                rows = self._database.execute(f"SELECT id, {columns} FROM entries WHERE id IN ({marks})", part)
                for id, *values in rows:
                    found[id] = Entry(**dict(zip(_FIELDS, values, strict=True)))
        return found

    def counts(self) -> dict[Label, int]:
        """Entries of each pool."""
        with self._lock, self._explained():
            rows = dict(self._database.execute("SELECT pool, count(*) FROM vectors GROUP BY pool").fetchall())
        return {label: rows.get(position, 0) for position, label in enumerate(LABELS)}

    def questions(self) -> tuple[set[str], set[bytes]]:
        """Ids of all questions, and hashes of their texts by `question_hash`."""
        with self._lock, self._explained():
            ids = {row[0] for row in self._database.execute("SELECT DISTINCT question_id FROM entries")}
            texts = {row[0] for row in self._database.execute("SELECT DISTINCT question_sha256 FROM entries")}
        return ids, texts - {None}

    def close(self) -> None:
        """Close the file, its write-ahead log folded into it."""
        with self._lock:
            self._database.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk, a lock that lasts, a file that may not be written
            raise DataError(f"{self.path}: the memory cannot be used ({error}); name another folder") from error
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path}: is not a memory ({error}); delete it or name another folder") from error


@lru_cache(maxsize=4096)  # all sessions of a run have one question
def question_hash(question: str | None) -> bytes | None:
    """SHA-256 of a question's text without regard to case and white space; None for None."""
    if question is None:
        return None
    return hashlib.sha256(normalise_question(question).encode("utf-8", "surrogatepass")).digest()


def _clean(value: str | None) -> str | None:
    """Text that SQLite can hold: lone surrogates, which logs may hold, become question marks."""
    return None if value is None else value.encode("utf-8", "replace").decode("utf-8")
