from collections.abc import Sequence

import numpy as np
import pytest

from stopwise.data.corpus import CorpusDocument
from stopwise.data.errors import DataError
from stopwise.data.records import Document
from stopwise.envs.arena.retrievers import DenseRetriever


class Axes:
    """Texts are numbers "x y"."""

    id = "axes"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.array([[float(part) for part in text.split()] for text in texts], dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


CORPUS = [CorpusDocument(f"d{number}", text) for number, text in enumerate(["1 0", "1 1", "0 1", "0 2", "-1 0"])]


def test_ranks_by_inner_product_and_breaks_ties_by_corpus_order() -> None:
    retriever = DenseRetriever.build(CORPUS, Axes())
    (first, second) = retriever.search(["0 3", "1 0"], 3)
    assert [document.id for document in first] == ["d2", "d3", "d1"]
    assert [document.id for document in second] == ["d0", "d1", "d2"]
    assert [document.rank for document in first] == [1, 2, 3]
    assert first[2].score == pytest.approx(2**-0.5)
    assert first[0].text == "0 1"
    assert retriever.id == "dense:axes"


def test_k_beyond_the_corpus_gives_all() -> None:
    assert len(DenseRetriever.build(CORPUS, Axes()).search(["1 0"], 50)[0]) == 5


def test_empty_corpus_and_wrong_vectors_are_refused() -> None:
    with pytest.raises(DataError, match="no documents"):
        DenseRetriever.build([], Axes())
    with pytest.raises(DataError, match="2 vectors for 1 documents"):
        DenseRetriever([Document(id="d")], np.eye(2, dtype=np.float32), Axes())
