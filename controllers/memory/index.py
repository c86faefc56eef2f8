"""Cosine search in one pool of a memory by FAISS: exact while it is small, inverted lists when it is large.

Vectors have unit length, so that inner product is cosine ([DS-MCM] eq. 15).

A large pool is an inverted file: k-means on a sample makes some thousands of lists, and a search looks at the lists
nearest to the query (Jegou, Douze and Schmid, *Product Quantization for Nearest Neighbor Search*, PAMI 2011, section
4). Vectors lie in the lists as float16, half the size; the memory compares the best candidates again with what its file
holds. HNSW, the other usual choice, takes several times as long to build at a million vectors.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError

Vectors = NDArray[np.float32]  # (N, D), rows of unit length
Ids = NDArray[np.int64]  # (N,)

FLAT_LIMIT = 10_000  # vectors up to which an exact search takes about a millisecond
PROBES = 24  # lists that a search looks at
_POINTS_A_LIST = 40  # training vectors of k-means for a list; FAISS warns below 39
_ROUNDS = 8  # of k-means


class PoolIndex:
    """Vectors by id.

    Attributes:
        kind: "flat" (exact) or "ivf".
    """

    def __init__(self, index: Any, kind: str) -> None:
        """Wrap a FAISS index; use `build` or `load`."""
        self._index = index
        self.kind = kind

    @classmethod
    def build(cls, ids: Ids, vectors: Vectors, *, flat_limit: int = FLAT_LIMIT, seed: int = 0) -> "PoolIndex":
        """An index of the kind that suits the number of vectors.

        Args:
            ids: shape (N,), different.
            vectors: shape (N, D), rows of unit length.
            flat_limit: up to so many vectors are searched exactly.
            seed: of the k-means sample.

        Raises:
            UsageError: FAISS is not installed.
        """
        faiss = _faiss()
        dimension = vectors.shape[1]
        if len(vectors) <= flat_limit:
            found = cls(faiss.IndexIDMap2(faiss.IndexFlatIP(dimension)), "flat")
        else:
            lists = list_count(len(vectors))
            index = faiss.IndexIVFScalarQuantizer(
                faiss.IndexFlatIP(dimension),
                dimension,
                lists,
                faiss.ScalarQuantizer.QT_fp16,
                faiss.METRIC_INNER_PRODUCT,
                False,  # by_residual: the vectors themselves, not what is left after their list's centre
            )
            index.cp.spherical, index.cp.niter, index.cp.seed = True, _ROUNDS, seed
            index.cp.max_points_per_centroid = _POINTS_A_LIST
            sample = np.random.default_rng(seed).permutation(len(vectors))[: _POINTS_A_LIST * lists]
            index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
            index.nprobe = PROBES
            found = cls(index, "ivf")
        found.add(ids, vectors)
        return found

    @classmethod
    def load(cls, path: Path) -> "PoolIndex":
        """An index that `save` wrote.

        Raises:
            RuntimeError: it cannot be read.
        """
        faiss = _faiss()
        index = faiss.read_index(str(path))
        if isinstance(index, faiss.IndexIVF):
            index.nprobe = PROBES
            return cls(index, "ivf")
        return cls(index, "flat")

    def save(self, path: Path) -> None:
        """Write it to a file."""
        _faiss().write_index(self._index, str(path))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Add vectors, shape (N, D), under new ids (N,). Lists are not made anew: a pool that grew a lot is rebuilt."""
        if len(ids):
            self._index.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), ids.astype(np.int64))

    def search(self, queries: Vectors, k: int) -> tuple[NDArray[np.float32], Ids]:
        """The most similar vectors, most similar first.

        Args:
            queries: shape (Q, D), rows of unit length.
            k: neighbours, at least 1.

        Returns:
            Cosines (Q, k) and ids (Q, k); id -1 and cosine -inf where there are fewer than k.
        """
        cosines, ids = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return np.where(ids < 0, -np.inf, cosines).astype(np.float32), ids


def list_count(vectors: int) -> int:
    """Lists of an inverted file: 4 sqrt(N), as FAISS advises, rounded to a power of two."""
    return int(2 ** round(np.log2(4 * np.sqrt(vectors))))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise UsageError("memory: FAISS is not installed; run `pip install 'stopwise[faiss]'`") from error
    return faiss
