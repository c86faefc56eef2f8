"""Clustering of one step's documents, by which Searching Entropy counts meanings."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def cosine_distances(embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
    """Pairwise 1 - cos of unit rows (K, d): shape (K, K), in [0, 2], zero diagonal, symmetric."""
    wide = embeddings.astype(np.float64)
    distances = np.clip(1.0 - wide @ wide.T, 0.0, 2.0)
    distances = (distances + distances.T) / 2.0
    np.fill_diagonal(distances, 0.0)
    return distances


def average_linkage(distances: NDArray[np.float64], threshold: float) -> Labels:
    """Agglomerative clustering with average linkage (UPGMA), cut at a distance.

    The same partition as ``scipy.cluster.hierarchy.fcluster(linkage(d, "average"), threshold, "distance")``,
    without scipy in the agent: for K up to about 20 a plain loop over a small matrix is enough.

    Args:
        distances: symmetric (K, K), zero diagonal.
        threshold: clusters whose mean distance is at most this are merged.

    Returns:
        Labels of shape (K,), numbered from 0 by first appearance.
    """
    count = len(distances)
    labels = np.arange(count)
    sizes = np.ones(count)
    merged = distances.astype(np.float64, copy=True)
    np.fill_diagonal(merged, np.inf)
    while count > 1:
        flat = int(merged.argmin())
        keep, drop = sorted(divmod(flat, len(merged)))
        if not merged[keep, drop] <= threshold:
            break
        total = sizes[keep] + sizes[drop]
        row = (sizes[keep] * merged[keep] + sizes[drop] * merged[drop]) / total  # Lance-Williams for the mean
        row[[keep, drop]] = np.inf
        merged[keep], merged[:, keep] = row, row
        merged[drop], merged[:, drop] = np.inf, np.inf
        sizes[keep] = total
        labels[labels == drop] = keep
        count -= 1
    return by_first_appearance(labels)


def hdbscan(embeddings: NDArray[np.float32]) -> Labels:
    """HDBSCAN (Campello et al. 2013, which [DS-MCM] cites) with every noise document a cluster of its own.

    Not the default: on a handful of near-identical documents it calls all of them noise, so that consensus becomes
    maximal entropy; and it needs scikit-learn in the agent.

    Args:
        embeddings: unit rows (K, d).

    Returns:
        Labels of shape (K,), numbered from 0 by first appearance.
    """
    count = len(embeddings)
    if count < 2:
        return np.zeros(count, dtype=np.int64)
    from sklearn.cluster import HDBSCAN

    arguments: Any = {"min_cluster_size": 2, "metric": "precomputed", "copy": True}
    model = HDBSCAN(**arguments)
    labels = np.asarray(model.fit_predict(cosine_distances(embeddings)), dtype=np.int64)
    noise = labels < 0
    labels[noise] = labels.max(initial=-1) + 1 + np.arange(noise.sum())
    return by_first_appearance(labels)


def by_first_appearance(labels: NDArray[np.int64]) -> Labels:
    """Renumber labels 0, 1, ... in the order in which they first occur."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(int(label), len(numbers)) for label in labels], dtype=np.int64)


def fit_cut(within: NDArray[np.float64], across: NDArray[np.float64]) -> float:
    """The distance that best tells documents of one result list from documents of different questions.

    Args:
        within: distances between two documents of the same step.
        across: distances between documents of different questions.

    Returns:
        The threshold that maximises Youden's J = P(within <= threshold) - P(across <= threshold).
    """
    within, across = np.sort(within), np.sort(across)
    candidates = np.unique(np.concatenate([within, across]))
    quality = np.searchsorted(within, candidates, "right") / len(within)
    quality = quality - np.searchsorted(across, candidates, "right") / len(across)
    return float(candidates[int(quality.argmax())])
