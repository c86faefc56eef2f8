"""Retrievers over a corpus: queries in, ranked documents out. Scores never depend on which queries come together."""

import copy
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import CorpusDocument
from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import atomic_folder, read_json, sha256_file, write_json
from stopwise.data.records import Document
from stopwise.envs.arena.vector_index import IVF_PROBES, Backend, build_index, read_index, write_index
from stopwise.models.encoders import Encoder

ENCODE_BATCH = 256  # passages embedded at a time
INDEX_SCHEMA = 1  # of a saved index's manifest

VECTORS, CELLS = "vectors.npy", "ivf.faiss"  # files of a saved index


class Retriever(Protocol):
    """Finds documents for queries."""

    @property
    def id(self) -> str:
        """Names the method and its model."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Document, ...]]:
        """For each query the best `k` documents, best first, with score and rank."""
        ...


class DenseRetriever:
    """Inner product between query and passage embeddings.

    The backend ``exact`` is plain numpy, ``faiss`` (extra ``faiss``) finds the same faster. ``ivf`` (the same extra)
    compares a query with the documents of the nearest cells only: approximate, and worth it for hundreds of thousands
    of documents (``docs/results/scale.json``).

    Args:
        documents: ids, titles and texts, in corpus order.
        vectors: (n, d) float32, rows L2-normalised: embeddings of the documents' passages.
        encoder: embeds the queries; must be the one that embedded the passages.
        backend: what searches.
        probes: cells that ``ivf`` looks into; more of them find more and take longer.
        index: an inverted file over the vectors that was made before; None makes one where the backend needs it.

    Raises:
        DataError: there are no documents, or another number of vectors.
        UsageError: FAISS is wanted and not installed.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        vectors: NDArray[np.float32],
        encoder: Encoder,
        backend: Backend = "exact",
        probes: int = IVF_PROBES,
        index: Any = None,
    ) -> None:
        if not len(documents):
            raise DataError("the corpus holds no documents; expected at least one")
        if len(documents) != len(vectors):
            raise DataError(f"{len(vectors)} vectors for {len(documents)} documents; build the index again")
        self._documents = tuple(documents)
        self._vectors = np.ascontiguousarray(vectors, dtype=np.float32)  # (n, d)
        self._encoder = encoder
        self._backend: Backend = backend
        self._probes = probes
        self._index = index
        if backend != "exact" and index is None:
            self._index = build_index(self._vectors, backend, probes)

    @classmethod
    def build(cls, corpus: Iterable[CorpusDocument], encoder: Encoder, backend: Backend = "exact") -> "DenseRetriever":
        """Embed a corpus, a batch at a time."""
        documents: list[Document] = []
        vectors: list[NDArray[np.float32]] = []
        batch: list[str] = []
        for document in corpus:
            documents.append(as_result(document))
            batch.append(document.passage)
            if len(batch) == ENCODE_BATCH:
                vectors.append(encoder.encode(batch))
                batch = []
        if batch:
            vectors.append(encoder.encode(batch))
        return cls(documents, np.concatenate(vectors) if vectors else np.zeros((0, 1), np.float32), encoder, backend)

    @property
    def id(self) -> str:
        """Method, encoder and, where it is not exact, backend."""
        backend = f":{self._backend}" if self._backend != "exact" else ""
        return f"dense:{self._encoder.id}{backend}{self._probes if self._backend == 'ivf' else ''}"

    def with_encoder(self, encoder: Encoder) -> "DenseRetriever":
        """The same index, asked through another object of the same encoder (one with a cache of its own).

        Raises:
            DataError: it is another encoder.
        """
        if encoder.id != self._encoder.id:
            raise DataError(f"the index was made by {self._encoder.id}, not by {encoder.id}; build it again")
        other = copy.copy(self)
        other._encoder = encoder
        return other

    def save(self, folder: Path) -> None:
        """Write the embeddings with the encoder's id and their hash, atomically; and the cells, where there are any.

        Cells are fitted once and read back: fitted again, they can come out a little differently on another machine.
        """
        with atomic_folder(folder, mark="index.json") as partial:
            np.save(partial / VECTORS, self._vectors)
            cells = None
            if self._backend == "ivf":
                write_index(self._index, partial / CELLS)
                cells = sha256_file(partial / CELLS)
            manifest = {
                "schema": INDEX_SCHEMA,
                "encoder": self._encoder.id,
                "documents": len(self._documents),
                "corpus_sha256": _corpus_hash(self._documents),
                "vectors_sha256": sha256_file(partial / VECTORS),
                "ivf_sha256": cells,
            }
            write_json(partial / "index.json", manifest)

    @classmethod
    def load(
        cls,
        folder: Path,
        corpus: Iterable[CorpusDocument],
        encoder: Encoder,
        backend: Backend = "exact",
        probes: int = IVF_PROBES,
    ) -> "DenseRetriever":
        """Read a saved index for a corpus; vectors are mapped into memory, so that processes share them.

        Raises:
            DataError: the index was made by another encoder or of another corpus, its bytes have changed, or it was
                saved without the cells that ``ivf`` needs.
        """
        folder = Path(folder)
        manifest = read_json(folder / "index.json")
        documents = [as_result(document) for document in corpus]
        expected = {
            "schema": INDEX_SCHEMA,
            "encoder": encoder.id,
            "documents": len(documents),
            "corpus_sha256": _corpus_hash(documents),
        }
        for key, value in expected.items():
            if not isinstance(manifest, dict) or manifest.get(key) != value:
                found = manifest.get(key) if isinstance(manifest, dict) else manifest
                raise DataError(
                    f"{folder / 'index.json'}: {key} is {found!r}, expected {value!r}; build the index again"
                )
        if backend == "ivf" and manifest.get("ivf_sha256") is None:
            raise DataError(f"{folder / 'index.json'}: was saved without cells; build the index again, with `ivf`")
        hashes = {VECTORS: "vectors_sha256"} | ({CELLS: "ivf_sha256"} if backend == "ivf" else {})
        for name, key in hashes.items():
            if sha256_file(folder / name) != manifest.get(key):
                raise DataError(f"{folder / name}: its bytes are not those that were saved; build the index again")
        index = read_index(folder / CELLS, probes) if backend == "ivf" else None
        return cls(documents, np.load(folder / VECTORS, mmap_mode="r"), encoder, backend, probes, index)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Document, ...]]:
        """For each query the `k` documents with the highest inner product; exact ties go to the earlier document."""
        if not queries:
            return []
        k = min(k, len(self._documents))
        found: list[tuple[Document, ...]] = []
        for query in self._encoder.encode(list(queries)):
            if self._index is None:
                scores = self._vectors @ query  # (n,); a product over many queries would round differently
                best = _top(scores, k)
                found.append(_results(self._documents, best, scores[best]))
            else:
                row, indices = self._index.search(query[None, :], k)
                kept = indices[0] >= 0  # an inverted file can come back with fewer
                found.append(_results(self._documents, indices[0][kept], row[0][kept]))
        return found


class BM25Retriever:
    """Okapi BM25 over lower-case words, by bm25s (extra ``bm25``).

    Raises:
        DataError: the corpus holds no documents.
        UsageError: bm25s is not installed.
    """

    id = "bm25"

    def __init__(self, corpus: Iterable[CorpusDocument]) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise UsageError("BM25 needs bm25s; install stopwise[bm25]") from error
        passages: list[list[int]] = []
        documents: list[Document] = []
        numbers: dict[str, int] = {}  # of words; a million passages of texts would take several times the memory
        for document in corpus:
            documents.append(as_result(document))
            passages.append([numbers.setdefault(word, len(numbers)) for word in words(document.passage)])
        if not documents:
            raise DataError("the corpus holds no documents; expected at least one")
        self._documents = tuple(documents)
        self._index = bm25s.BM25()
        self._index.index((passages, numbers), show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Document, ...]]:
        """For each query the `k` best documents that share a word with it; ties go to the earlier document."""
        k = min(k, len(self._documents))
        found: list[tuple[Document, ...]] = []
        for query in queries:
            known = [word for word in words(query) if word in self._index.vocab_dict]
            if not known:
                found.append(())
                continue
            scores = self._index.get_scores(known)
            best = _top(scores, k)
            best = best[scores[best] > 0]
            found.append(_results(self._documents, best, scores[best]))
        return found


def words(text: str) -> list[str]:
    """Lower-case words of a text, in order."""
    return re.findall(r"\w+", text.lower())


def as_result(document: CorpusDocument) -> Document:
    """A corpus document as a search result, without score and rank."""
    return Document(id=document.id, text=document.text, title=document.title)


def _top(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices of the `k` highest scores, highest first; ties go to the lower index."""
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:k]


def _results(documents: Sequence[Document], indices: NDArray[Any], scores: NDArray[Any]) -> tuple[Document, ...]:
    return tuple(
        Document(found.id, found.text, found.title, score=float(score), rank=rank)
        for rank, (found, score) in enumerate(
            zip((documents[int(index)] for index in indices), scores, strict=True), start=1
        )
    )


def _corpus_hash(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.id}\x1f{document.title}\x1f{document.text}\x1e".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
