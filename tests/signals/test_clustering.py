import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from stopwise.signals.clustering import average_linkage, by_first_appearance, cosine_distances, fit_cut, hdbscan


def _unit_rows(seed, count, dimension, spread):
    """Unit rows around a few centres; a continuous draw has no exact ties."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(3, dimension))
    rows = centres[generator.integers(0, 3, count)] + spread * generator.normal(size=(count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_cosine_distances_by_hand(compass):
    found = cosine_distances(compass.encode(["0", "60", "180"]))
    np.testing.assert_allclose(found, [[0, 0.5, 2], [0.5, 0, 1.5], [2, 1.5, 0]], atol=1e-6)
    assert (found == found.T).all()
    assert (np.diag(found) == 0).all()
    assert ((found >= 0) & (found <= 2)).all()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 20), st.sampled_from([0.05, 0.4, 1.5]), st.floats(0.001, 1.9))
def test_average_linkage_equals_scipy_label_for_label(seed, count, spread, threshold):
    distances = cosine_distances(_unit_rows(seed, count, 8, spread))
    merges = linkage(squareform(distances), "average")
    if np.abs(merges[:, 2] - threshold).min() < 1e-9:
        return  # a cut exactly at a merge is a matter of rounding
    expected = by_first_appearance(fcluster(merges, threshold, "distance"))
    np.testing.assert_array_equal(average_linkage(distances, threshold), expected)


def test_average_linkage_by_hand():
    # 0 and 1 merge at 0.1; 2 joins them at the mean of 0.3 and 0.5, where single linkage had 0.3 and complete 0.5
    distances = np.array([[0, 0.1, 0.3], [0.1, 0, 0.5], [0.3, 0.5, 0]])
    assert average_linkage(distances, 0.09).tolist() == [0, 1, 2]
    assert average_linkage(distances, 0.1).tolist() == [0, 0, 1]
    assert average_linkage(distances, 0.39).tolist() == [0, 0, 1]
    assert average_linkage(distances, 0.4 + 1e-12).tolist() == [0, 0, 0]


def test_the_mean_is_over_documents_and_not_over_clusters():
    # {0, 1, 2} is built in two merges; 3 is at 0.6, 0.6, 0.3 of its documents: mean 0.5, where halving gives 0.45
    distances = np.array([[0, 0.1, 0.2, 0.6], [0.1, 0, 0.2, 0.6], [0.2, 0.2, 0, 0.3], [0.6, 0.6, 0.3, 0]])
    assert average_linkage(distances, 0.49).tolist() == [0, 0, 0, 1]
    assert average_linkage(distances, 0.51).tolist() == [0, 0, 0, 0]


def test_linkage_leaves_its_argument_alone_and_takes_few_documents():
    distances = np.array([[0.0, 0.1], [0.1, 0.0]])
    before = distances.copy()
    average_linkage(distances, 0.5)
    np.testing.assert_array_equal(distances, before)
    assert average_linkage(np.zeros((1, 1)), 0.5).tolist() == [0]
    assert average_linkage(np.zeros((0, 0)), 0.5).tolist() == []


def test_labels_are_numbered_by_first_appearance():
    assert by_first_appearance(np.array([7, 2, 7, 0, 2])).tolist() == [0, 1, 0, 2, 1]


def test_hdbscan_gives_each_noise_document_a_cluster_of_its_own():
    rows = np.concatenate([_unit_rows(1, 1, 8, 0.0).repeat(6, 0), np.eye(8, dtype=np.float32)[:2]])
    rows[:6] += 0.01 * np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = hdbscan(rows)
    assert labels.shape == (8,)
    assert labels[6] != labels[7]
    assert set(labels[6:]).isdisjoint(labels[:6])


def test_hdbscan_keeps_two_groups_apart(compass):
    texts = [str(angle) for angle in (0, 1, 2, 3, 90, 91, 92, 93)]
    assert hdbscan(compass.encode(texts)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_hdbscan_takes_few_documents(count):
    labels = hdbscan(np.eye(4, dtype=np.float32)[:count])
    assert labels.tolist() == ([0] if count == 1 else list(range(count)))


_DISTANCES = st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=1, max_size=12)


@given(_DISTANCES, _DISTANCES)
def test_the_cut_is_the_best_of_all_by_brute_force(within, across):
    cut = fit_cut(np.array(within), np.array(across))

    def youden(threshold):
        return sum(d <= threshold for d in within) / len(within) - sum(d <= threshold for d in across) / len(across)

    best = max(youden(threshold) for threshold in itertools.chain(within, across))
    assert youden(cut) == pytest.approx(best, abs=1e-12)
    assert cut in within or cut in across


def test_the_cut_stands_between_two_groups():
    assert fit_cut(np.array([0.1, 0.2, 0.3]), np.array([0.7, 0.8])) == 0.3
