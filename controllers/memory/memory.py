"""The experience memory: entries by similarity in two pools, kept free of near duplicates ([DS-MCM] 3.3)."""

import json
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import check_number
from stopwise.controllers.memory.entries import LABELS, Entry, Label, Recalled
from stopwise.controllers.memory.index import FLAT_LIMIT, PoolIndex, Vectors
from stopwise.controllers.memory.store import EntryStore, question_hash
from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import atomic_path, sha256_file
from stopwise.models.encoders import Encoder

Query = Literal["session", "session_and_history"]

FILE = "memory.sqlite"  # the entries, in a memory's folder; `<label>.faiss` beside it can be made again from it
TAU_DUP = 0.98  # the paper gives no value; see docs/LOG.md for what it keeps
ROUNDING = 1e-6  # cosines of equal texts come out this far below 1
_CANDIDATES = 4  # for each entry that a search in a large pool wants: so many are compared exactly
_NEIGHBOURS = 16  # of an entry that `consolidate` looks at in a large pool
_SEARCHED = 1024  # entries whose neighbours are searched at a time
BLOCK = 256  # entries that are encoded, compared and written together by `add_all`


class ExperienceMemory:
    """A folder of experience, shared by any number of processes.

    Each entry is embedded as f(s) + f(h) (eq. 14), scaled to unit length. What is asked for is embedded as f(s) alone
    (eq. 13), or, by choice, like an entry. The file of entries is the truth; indexes are made from it, and loaded from
    the folder where a saved one still fits.
    """

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        *,
        tau_dup: float = TAU_DUP,
        query: Query = "session",
        flat_limit: int = FLAT_LIMIT,
    ) -> None:
        """Open a memory, or make an empty one.

        Args:
            folder: where it lies.
            encoder: f of eq. 13 and 14; the one it was built with.
            tau_dup: cosine to an entry of the same pool from which a candidate is a duplicate (eq. 22). The paper does
                not say whether the other pool counts; here it does not: that equal behaviour met both outcomes is
                worth knowing.
            query: what a search embeds.
            flat_limit: entries of a pool up to which it is searched exactly.

        Raises:
            UsageError: a parameter is not allowed, FAISS is not installed, or the folder cannot be written.
            DataError: the folder holds another memory: of another encoder, or damaged.
        """
        check_number("memory: tau_dup", tau_dup, low=-1, high=1)
        if query not in get_args(Query):
            raise UsageError(f"memory: query {query!r}; expected one of {', '.join(get_args(Query))}")
        self.folder = Path(folder)
        self.tau_dup = tau_dup
        self.query: Query = query
        self._encoder = encoder
        self._flat_limit = flat_limit
        self._lock = threading.RLock()  # of the indexes
        self._store = EntryStore(self.folder / FILE, encoder.id)
        self._indexes: dict[Label, PoolIndex | None] = dict.fromkeys(LABELS)
        self._last_id = 0  # the newest entry in the indexes
        self._generation = ""
        self._version = -1  # of the file, when it was last looked at
        self._refresh()

    def __len__(self) -> int:
        return sum(self.counts().values())

    def counts(self) -> dict[Label, int]:
        """Entries of each pool."""
        return self._store.counts()

    def kinds(self) -> dict[Label, str]:
        """How each pool is searched: "flat", "ivf", or "empty"."""
        return {label: index.kind if index is not None else "empty" for label, index in self._indexes.items()}

    def nearest(self, session: str, history: str = "", k: int = 2) -> Recalled:
        """The `k` most similar entries of each pool (eq. 15, 16); fewer where a pool holds fewer.

        `history` counts only with ``query="session_and_history"``.
        """
        return self.nearest_to(self._query_vector(session, history), k)

    def nearest_to(self, vector: Vectors, k: int = 2) -> Recalled:
        """As `nearest`, for an embedding of shape (D,) and unit length."""
        found = self.search(vector, k)
        entries = self._store.read([int(id) for _, ids in found for id in ids])
        pools = []
        for cosines, ids in found:  # an entry may have gone since the search: another process consolidated
            rows = [(entries[int(id)], float(c)) for id, c in zip(ids, cosines, strict=True) if int(id) in entries]
            pools.append((tuple(entry for entry, _ in rows), tuple(cosine for _, cosine in rows)))
        (successes, near), (failures, far) = pools
        return Recalled(successes, failures, near, far)

    def search(self, vector: Vectors, k: int) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Cosines and ids of the `k` most similar entries, most similar first, for each of `LABELS`."""
        check_number("memory: k", k, low=1, whole=True)
        with self._lock:
            self._refresh()
            return [self._search(index, vector, k) for index in self._indexes.values()]

    def _search(
        self, index: PoolIndex | None, vector: Vectors, k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        if index is None:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        exact = index.kind == "flat"
        cosines, ids = (found[0] for found in index.search(vector[None, :], k if exact else _CANDIDATES * k))
        cosines, ids = cosines[ids >= 0], ids[ids >= 0]
        if exact:
            return cosines, ids
        ids, values = self._store.vectors_of(ids)  # float16 twice, here and in its lists, is too coarse for near ties
        cosines = unit(values) @ vector if len(ids) else np.zeros(0, np.float32)
        order = np.argsort(-cosines, kind="stable")[:k]
        return cosines[order], ids[order]

    def add(self, entry: Entry) -> bool:
        """Keep an entry, unless its pool holds a near duplicate (eq. 21, 22); returns whether it was kept.

        When this returns, the entry is on the disk.
        """
        return self.add_all([entry]) == 1

    def add_all(self, entries: Iterable[Entry]) -> int:
        """As `add` for each in turn, in blocks that are written together; returns how many were kept."""
        kept = 0
        block: list[Entry] = []
        for entry in entries:
            block.append(entry)
            if len(block) == BLOCK:
                kept += self._add_block(block)
                block = []
        return kept + (self._add_block(block) if block else 0)

    def embed(self, entries: Sequence[Entry]) -> Vectors:
        """The vectors of entries, shape (N, D), unit length: eq. 14. An empty history adds nothing."""
        return self._sum([entry.session for entry in entries], [entry.history for entry in entries])

    def consolidate(self, tau_dup: float | None = None) -> int:
        """Take out near duplicates that are in already, as after `tau_dup` was lowered; the oldest of each group stays.

        Returns:
            How many entries went.
        """
        limit = (self.tau_dup if tau_dup is None else tau_dup) - ROUNDING
        gone: list[int] = []
        with self._lock:
            with self._store.transaction():
                self._refresh()
                for pool, label in enumerate(LABELS):
                    ids, values = self._store.vectors(pool)
                    index = self._indexes[label]
                    if index is None:
                        continue
                    small = index.kind == "flat"
                    kept = keep_first(unit(values), limit) if small else _keep(ids, values, index, limit)
                    gone.extend(int(id) for id in ids[~kept])
                if gone:
                    self._store.delete(gone)
            self._version = -1  # our own deletions do not show in the file's version
            self._refresh()
        return len(gone)

    def save_indexes(self) -> None:
        """Write the indexes of large pools beside the entries, so that opening does not have to make them again."""
        with self._lock:
            self._refresh()
            for label, index in self._indexes.items():
                if index is None or index.kind == "flat":
                    continue
                with atomic_path(self.folder / f"{label}.faiss") as partial:
                    index.save(partial)
                    digest = sha256_file(partial)
                fact = {"sha256": digest, "last_id": self._last_id, "generation": self._generation}
                self._store.set_fact(f"index:{label}", json.dumps(fact | {"entries": len(index)}))

    def check_disjoint(self, question_ids: Collection[str], questions: Collection[str] = ()) -> None:
        """Make sure that no question of an evaluation is in the memory.

        Args:
            question_ids: of the evaluation.
            questions: their texts, which find equal questions under other ids.

        Raises:
            DataError: one is; the message names the first of them.
        """
        ids, texts = self._store.questions()
        shared = sorted(ids & set(question_ids))
        shared += [text for text in questions if question_hash(text) in texts]
        if shared:
            raise DataError(
                f"{self.folder}: the memory holds {len(shared)} questions of the evaluation, as {shared[0][:80]!r}; "
                "expected none; build it on training questions (`stopwise train configs/memory.yaml`)"
            )

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def _query_vector(self, session: str, history: str) -> Vectors:
        return self._sum([session], [history if self.query == "session_and_history" else ""])[0]

    def _sum(self, sessions: Sequence[str], histories: Sequence[str]) -> Vectors:
        there = [position for position, history in enumerate(histories) if history.strip()]
        parts = self._encoder.encode([*sessions, *(histories[position] for position in there)])
        vectors = parts[: len(sessions)].astype(np.float64)
        vectors[there] += parts[len(sessions) :]
        return unit(vectors)

    def _add_block(self, block: Sequence[Entry]) -> int:
        stored = self.embed(block).astype(np.float16)
        vectors = unit(stored)
        pools = np.array([LABELS.index(entry.label) for entry in block])
        with self._lock:
            with self._store.transaction():
                self._refresh()  # what other processes have written counts, and none can write now
                kept = np.flatnonzero(self._fresh(pools, vectors, self.tau_dup - ROUNDING))
                ids = np.array(self._store.insert([block[row] for row in kept.tolist()], stored[kept]), np.int64)
            for pool in range(len(LABELS)):
                mine = pools[kept] == pool
                self._put(pool, ids[mine], vectors[kept[mine]])
            self._last_id = max(self._last_id, int(ids.max(initial=0)))
        return len(kept)

    def _fresh(self, pools: NDArray[np.integer], vectors: Vectors, limit: float) -> NDArray[np.bool_]:
        """Which candidates (N,) are near duplicates neither of an entry of their pool nor of a candidate before."""
        fresh = np.zeros(len(pools), dtype=bool)
        for pool, label in enumerate(LABELS):
            rows = np.flatnonzero(pools == pool)
            index = self._indexes[label]
            if index is not None and len(rows):
                rows = rows[index.search(vectors[rows], 1)[0][:, 0] < limit]
            fresh[rows[keep_first(vectors[rows], limit)]] = True
        return fresh

    def _refresh(self) -> None:
        """Take in what other processes have written since the last look."""
        version = self._store.data_version()
        if version == self._version:
            return
        generation = self._store.fact("generation") or "0"
        last = self._store.last_id()
        anew = generation != self._generation
        sizes = self._store.counts() if anew else {}
        for pool, label in enumerate(LABELS):
            after = self._last_id
            if anew:
                self._indexes[label], after = self._load(label, generation, sizes[label])
            ids, values = self._store.vectors(pool, after, last)
            self._put(pool, ids, unit(values))
        self._last_id, self._generation, self._version = last, generation, version

    def _load(self, label: Label, generation: str, entries: int) -> tuple[PoolIndex | None, int]:
        """A saved index that fits the file and is not too far behind, and the newest id in it."""
        fact = json.loads(self._store.fact(f"index:{label}") or "{}")
        path = self.folder / f"{label}.faiss"
        behind = entries > 2 * fact.get("entries", 0)
        if not fact or behind or fact["generation"] != generation or not path.is_file():
            return None, 0
        if sha256_file(path) != fact["sha256"]:
            return None, 0  # damaged, or another process has just written it: the entries are the truth
        return PoolIndex.load(path), fact["last_id"]

    def _put(self, pool: int, ids: NDArray[np.int64], vectors: Vectors) -> None:
        """New entries of a pool into its index, which is made with the first ones."""
        index = self._indexes[LABELS[pool]]
        if index is not None:
            index.add(ids, vectors)
        elif len(ids):
            self._indexes[LABELS[pool]] = PoolIndex.build(ids, vectors, flat_limit=self._flat_limit)


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Rows scaled to unit length, float32; a zero row stays."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    return vectors.astype(np.float32) / np.where(norms > 0, norms, 1.0).astype(np.float32)[:, None]


def keep_first(vectors: Vectors, limit: float) -> NDArray[np.bool_]:
    """Which rows (N, D) stay when each in turn goes that has a cosine of `limit` or more to one that stayed."""
    kept = np.zeros(len(vectors), dtype=bool)
    stayed = np.empty_like(vectors)
    count = 0
    for row, vector in enumerate(vectors):
        if count and float((stayed[:count] @ vector).max()) >= limit:
            continue
        stayed[count] = vector
        count += 1
        kept[row] = True
    return kept


def _keep(ids: NDArray[np.int64], values: NDArray[np.float16], index: PoolIndex, limit: float) -> NDArray[np.bool_]:
    """As `keep_first` for a large pool, among each entry's `_NEIGHBOURS` nearest by its index: approximate."""
    kept = np.ones(len(ids), dtype=bool)
    for start in range(0, len(ids), _SEARCHED):
        cosines, found = index.search(unit(values[start : start + _SEARCHED]), _NEIGHBOURS)
        for offset, (near, others) in enumerate(zip(cosines, found, strict=True)):
            row = start + offset
            earlier = np.searchsorted(ids, others[(near >= limit) & (others >= 0) & (others < ids[row])])
            kept[row] = not kept[earlier].any()
    return kept
