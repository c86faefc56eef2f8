import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stopwise.data.corpus import CorpusDocument
from stopwise.data.errors import DataError
from stopwise.data.records import Document
from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever, as_result
from stopwise.envs.arena.vector_index import cells_of, read_index


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


def test_faiss_finds_what_exact_finds() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    corpus = [CorpusDocument(f"d{n}", f"{x} {y}") for n, (x, y) in enumerate(rng.normal(size=(200, 2)))]
    exact, faiss = (DenseRetriever.build(corpus, Axes(), backend) for backend in ("exact", "faiss"))
    queries = [f"{x} {y}" for x, y in rng.normal(size=(20, 2))]
    for ours, theirs in zip(exact.search(queries, 7), faiss.search(queries, 7), strict=True):
        assert [document.id for document in ours] == [document.id for document in theirs]
        assert [document.score for document in ours] == pytest.approx([document.score for document in theirs], abs=1e-6)
    assert faiss.id == "dense:axes:faiss"


def _ring() -> list[CorpusDocument]:
    """Four clusters of 40 documents: directions within two degrees of 0, 90, 180 and 270 degrees."""
    degrees = [90 * cluster - 2 + 4 * number / 39 for cluster in range(4) for number in range(40)]
    return [CorpusDocument(f"{d:.3f}", f"{math.cos(math.radians(d))} {math.sin(math.radians(d))}") for d in degrees]


def test_cells_of_an_inverted_file() -> None:
    assert [cells_of(count) for count in (1, 38, 78, 160, 10_000, 1_000_000)] == [1, 1, 2, 4, 256, 4000]


def test_ivf_compares_with_the_nearest_cells_only() -> None:
    pytest.importorskip("faiss")
    vectors = Axes().encode([document.text for document in _ring()])
    documents = [as_result(document) for document in _ring()]
    query = f"{math.cos(math.radians(30))} {math.sin(math.radians(30))}"
    (flat,) = DenseRetriever(documents, vectors, Axes(), "faiss").search([query], 50)
    assert [document.id for document in flat[:2]] == ["2.000", "1.897"]
    assert [document.id for document in flat[40:42]] == ["88.000", "88.103"]  # the first cluster is exhausted
    one = DenseRetriever(documents, vectors, Axes(), "ivf", probes=1)  # four clusters, four cells
    two = DenseRetriever(documents, vectors, Axes(), "ivf", probes=2)
    assert one.search([query], 50) == [flat[:40]]
    assert two.search([query], 50) == [flat]
    assert one.id == "dense:axes:ivf1"


def test_ivf_of_many_probes_finds_what_exact_finds() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    corpus = [CorpusDocument(f"d{n}", f"{x} {y}") for n, (x, y) in enumerate(rng.normal(size=(200, 2)))]
    exact, ivf = (DenseRetriever.build(corpus, Axes(), backend) for backend in ("exact", "ivf"))
    queries = [f"{x} {y}" for x, y in rng.normal(size=(20, 2))]
    for ours, theirs in zip(exact.search(queries, 7), ivf.search(queries, 7), strict=True):
        assert [document.id for document in ours] == [document.id for document in theirs]


def test_cells_are_saved_and_checked(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    built = DenseRetriever.build(_ring(), Axes(), "ivf")
    built.save(tmp_path / "ivf")
    loaded = DenseRetriever.load(tmp_path / "ivf", _ring(), Axes(), "ivf")
    assert loaded.search(["1 2"], 4) == built.search(["1 2"], 4)
    assert loaded.id == built.id
    loaded.save(tmp_path / "ivf")  # over an earlier one
    exact = DenseRetriever.load(tmp_path / "ivf", _ring(), Axes())
    assert exact.search(["1 2"], 4) == DenseRetriever.build(_ring(), Axes()).search(["1 2"], 4)
    (tmp_path / "ivf" / "ivf.faiss").write_bytes(b"x")
    with pytest.raises(DataError, match=r"ivf\.faiss: its bytes"):
        DenseRetriever.load(tmp_path / "ivf", _ring(), Axes(), "ivf")
    exact.save(tmp_path / "plain")
    with pytest.raises(DataError, match="saved without cells"):
        DenseRetriever.load(tmp_path / "plain", _ring(), Axes(), "ivf")


def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    (tmp_path / "ivf.faiss").write_bytes(b"not an index at all")
    with pytest.raises(DataError, match="is no FAISS index"):
        read_index(tmp_path / "ivf.faiss")


def test_save_and_load(tmp_path: Path) -> None:
    built = DenseRetriever.build(CORPUS, Axes())
    built.save(tmp_path / "index")
    loaded = DenseRetriever.load(tmp_path / "index", CORPUS, Axes())
    assert loaded.search(["1 2"], 4) == built.search(["1 2"], 4)


def test_an_index_of_another_encoder_or_corpus_is_refused(tmp_path: Path) -> None:
    class Other(Axes):
        id = "other"

    DenseRetriever.build(CORPUS, Axes()).save(tmp_path / "index")
    with pytest.raises(DataError, match="encoder is 'axes', expected 'other'"):
        DenseRetriever.load(tmp_path / "index", CORPUS, Other())
    changed = [*CORPUS[:-1], CorpusDocument("d4", "-1 0.5")]
    with pytest.raises(DataError, match="corpus_sha256"):
        DenseRetriever.load(tmp_path / "index", changed, Axes())
    vectors = tmp_path / "index" / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="its bytes"):
        DenseRetriever.load(tmp_path / "index", CORPUS, Axes())


def test_bm25_against_the_formula() -> None:
    """Lucene's BM25, k1 = 1.5, b = 0.75: idf * tf / (tf + k1 (1 - b + b length / mean length))."""
    pytest.importorskip("bm25s")
    texts = ["salt and glass", "salt salt salt trade of the town", "a quiet town"]
    retriever = BM25Retriever([CorpusDocument(f"d{n}", text) for n, text in enumerate(texts)])
    (found,) = retriever.search(["SALT"], 3)
    mean = sum(len(text.split()) for text in texts) / 3
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))

    def score(times: int, length: int) -> float:
        return idf * times / (times + 1.5 * (1 - 0.75 + 0.75 * length / mean))

    assert [document.id for document in found] == ["d1", "d0"]
    assert [document.score for document in found] == pytest.approx([score(3, 7), score(1, 3)], rel=1e-5)


def test_bm25_without_a_known_word_finds_nothing() -> None:
    pytest.importorskip("bm25s")
    assert BM25Retriever(CORPUS).search(["unheard"], 3) == [()]
