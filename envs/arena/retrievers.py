"""Retrievers over a corpus: queries in, ranked documents out."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import CorpusDocument
from stopwise.data.errors import DataError
from stopwise.data.records import Document
from stopwise.models.encoders import Encoder

ENCODE_BATCH = 256  # passages embedded at a time


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
    """Exact inner product between query and passage embeddings.

    Args:
        documents: ids, titles and texts, in corpus order.
        vectors: (n, d) float32, rows L2-normalised: embeddings of the documents' passages.
        encoder: embeds the queries; must be the one that embedded the passages.
    """

    def __init__(self, documents: Sequence[Document], vectors: NDArray[np.float32], encoder: Encoder) -> None:
        if len(documents) != len(vectors):
            raise DataError(f"{len(vectors)} vectors for {len(documents)} documents; build the index again")
        self._documents = tuple(documents)
        self._vectors = vectors  # (n, d)
        self._encoder = encoder

    @classmethod
    def build(cls, corpus: Iterable[CorpusDocument], encoder: Encoder) -> "DenseRetriever":
        """Embed a corpus, a batch at a time."""
        documents: list[Document] = []
        vectors: list[NDArray[np.float32]] = []
        batch: list[str] = []
        for document in corpus:
            documents.append(Document(id=document.id, text=document.text, title=document.title))
            batch.append(document.passage)
            if len(batch) == ENCODE_BATCH:
                vectors.append(encoder.encode(batch))
                batch = []
        if batch:
            vectors.append(encoder.encode(batch))
        if not vectors:
            raise DataError("the corpus holds no documents; expected at least one")
        return cls(documents, np.concatenate(vectors), encoder)

    @property
    def id(self) -> str:
        """Method and encoder."""
        return f"dense:{self._encoder.id}"

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Document, ...]]:
        """For each query the `k` documents with the highest inner product; ties go to the earlier document."""
        if not queries:
            return []
        k = min(k, len(self._documents))
        found: list[tuple[Document, ...]] = []
        for query in self._encoder.encode(list(queries)):
            row = self._vectors @ query  # (n,); one query at a time, so that scores do not depend on the company
            threshold = np.partition(row, len(row) - k)[len(row) - k]
            candidates = np.flatnonzero(row >= threshold)
            best = candidates[np.argsort(-row[candidates], kind="stable")][:k]
            found.append(tuple(self._ranked(int(index), float(row[index]), rank) for rank, index in enumerate(best, 1)))
        return found

    def _ranked(self, index: int, score: float, rank: int) -> Document:
        document = self._documents[index]
        return Document(id=document.id, text=document.text, title=document.title, score=score, rank=rank)
