"""FAISS indexes over embeddings: flat, which compares a query with all vectors, and inverted file, which skips most.

Source of the inverted file: Jégou, Douze & Schmid, *Product quantization for nearest neighbor search*, TPAMI 2011,
section IV, without the product quantizer: vectors are kept whole, so that scores are exact and only the choice of who
is compared is approximate.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError, UsageError

Backend = Literal["exact", "faiss", "ivf"]

TRAINING_PER_CELL = 64  # vectors that cells are fitted on; FAISS warns below 39, and more hardly moves them
SMALLEST_CELL = 39  # vectors a cell, on average
IVF_PROBES = 64  # cells that a search looks into


def cells_of(count: int) -> int:
    """Cells of an inverted file over `count` vectors: four times their root, and fewer where that leaves them bare."""
    return max(1, min(int(4 * count**0.5), count // SMALLEST_CELL))


def build_index(vectors: NDArray[np.float32], backend: Literal["faiss", "ivf"], probes: int = IVF_PROBES) -> Any:
    """Index vectors for search by inner product.

    Args:
        vectors: (n, d) float32.
        backend: ``faiss`` is flat, ``ivf`` an inverted file with `cells_of` (n) cells, fitted by k-means on an even
            sample of the vectors.
        probes: cells that a search looks into.

    Raises:
        UsageError: FAISS is not installed.
    """
    faiss = _faiss()
    count, dimension = vectors.shape
    if backend == "faiss":
        index = faiss.IndexFlatIP(dimension)
    else:
        cells = cells_of(count)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # it would print a warning for a corpus of a few documents
        index.train(vectors[:: max(1, count // (TRAINING_PER_CELL * cells))])
        index.nprobe = probes
    index.add(vectors)
    return index


def write_index(index: Any, path: Path) -> None:
    """Write an index to a file."""
    _faiss().write_index(index, str(path))


def read_index(path: Path, probes: int = IVF_PROBES) -> Any:
    """Read an inverted file back.

    Raises:
        UsageError: FAISS is not installed.
        DataError: the file is no such index.
    """
    faiss = _faiss()
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise DataError(f"{path}: is no FAISS index ({str(error).splitlines()[0]}); build the index again") from error
    index.nprobe = probes
    return index


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise UsageError(
            "the backends `faiss` and `ivf` need FAISS; install stopwise[faiss], or use `exact`"
        ) from error
    return faiss
