from pathlib import Path

import numpy as np
import pytest

from stopwise.controllers.memory.index import PoolIndex, list_count
from stopwise.controllers.memory.memory import unit


def drawn(count: int, seed: int = 0) -> np.ndarray:
    """Unit vectors around 50 centres, shape (count, 16)."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(50, 16))
    return unit(centres[generator.integers(50, size=count)] + 0.4 * generator.normal(size=(count, 16)))


def test_a_small_pool_is_searched_exactly() -> None:
    vectors, queries = drawn(500), drawn(20, seed=1)
    index = PoolIndex.build(np.arange(500) * 7, vectors)
    assert index.kind == "flat"
    cosines, ids = index.search(queries, 5)
    exact = queries @ vectors.T
    np.testing.assert_array_equal(ids, np.argsort(-exact, axis=1)[:, :5] * 7)
    np.testing.assert_allclose(cosines, -np.sort(-exact, axis=1)[:, :5], atol=1e-5)


def test_a_large_pool_is_searched_by_lists(tmp_path: Path) -> None:
    vectors, queries = drawn(6000), drawn(100, seed=1)
    index = PoolIndex.build(np.arange(5000), vectors[:5000], flat_limit=1000)
    index.add(np.arange(5000, 6000), vectors[5000:])
    assert (index.kind, len(index)) == ("ivf", 6000)
    _, ids = index.search(queries, 2)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :2]
    recall = np.mean([len(set(a) & set(b)) / 2 for a, b in zip(ids, exact, strict=True)])
    assert recall > 0.9
    index.save(tmp_path / "pool.faiss")
    again = PoolIndex.load(tmp_path / "pool.faiss")
    assert again.kind == "ivf"
    np.testing.assert_array_equal(again.search(queries, 2)[1], ids)


def test_equal_builds_give_equal_indexes() -> None:
    vectors, queries = drawn(3000), drawn(50, seed=1)
    one, other = (PoolIndex.build(np.arange(3000), vectors, flat_limit=1000, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.search(queries, 3)[1], other.search(queries, 3)[1])


def test_fewer_vectors_than_asked_for() -> None:
    cosines, ids = PoolIndex.build(np.array([5]), unit(np.ones((1, 4)))).search(unit(np.ones((1, 4))), 3)
    np.testing.assert_array_equal(ids, [[5, -1, -1]])
    np.testing.assert_allclose(cosines, [[1.0, -np.inf, -np.inf]], atol=1e-6)


@pytest.mark.parametrize(("vectors", "lists"), [(10_000, 512), (500_000, 2048), (1_000_000, 4096)])
def test_list_count(vectors: int, lists: int) -> None:
    # 4 sqrt(N): 400, 2828, 4000, to the nearest power of two by its logarithm
    assert list_count(vectors) == lists
