"""Searching Entropy and Reasoning Entropy ([DS-MCM] 3.2). Logarithms are natural: values are in nats."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stopwise.data.records import Logprobs

TOP_K = 20  # next-token candidates that count; servers return at most 20


def searching_entropy(labels: NDArray[np.int64], scores: NDArray[np.float64] | None = None) -> float:
    """Shannon entropy of the clusters of one step's documents ([DS-MCM] eq. 4 and 5).

    K documents of one meaning give 0, K of K meanings give log K.

    Args:
        labels: cluster of each document, shape (K,), K at least 1.
        scores: retrieval scores (K,); a document then contributes its softmax share, else 1/K.
    """
    if scores is None:
        share = np.full(len(labels), 1.0 / len(labels))
    else:
        exponentials = np.exp(scores - scores.max())
        share = exponentials / exponentials.sum()
    mass = np.bincount(labels, weights=share)
    mass = mass[mass > 0]
    mass /= mass.sum()  # a single cluster must give 0.0: K times 1/K need not be 1
    return max(0.0, float(-(mass * np.log(mass)).sum()))  # and not -0.0


def position_entropy(logprobs: Sequence[float], top_k: int = TOP_K) -> float:
    """Entropy of one position's top-K next-token distribution, renormalised on those K; ``-inf`` counts as 0."""
    top = np.sort(np.asarray(logprobs, dtype=np.float64))[::-1][:top_k]
    top = top[top > -np.inf]
    if len(top) == 0:
        return 0.0
    share = np.exp(top - top[0])
    share /= share.sum()
    share = share[share > 0]
    return max(0.0, float(-(share * np.log(share)).sum()))


def reasoning_entropy(logprobs: Logprobs | None, top_k: int = TOP_K) -> tuple[float | None, str | None]:
    """Mean entropy over the reasoning's positions ([DS-MCM] 3.2.2).

    A log with only the chosen token's probability says nothing about the alternatives: that is a null, not an
    entropy of zero. Where k differs by position, positions with a single candidate are left out, and so are those
    whose candidates all have no probability.

    Entropies that are no numbers make it null too.

    Returns:
        (value, None), or (None, reason).
    """
    if logprobs is None:
        return None, "no logprobs"
    if logprobs.entropies is not None:
        entropies = logprobs.entropies
        usable = len(entropies) > 0 and bool(np.isfinite(entropies).all())
        return (float(np.mean(entropies)), None) if usable else (None, "no logprobs")
    positions = [position for position in logprobs.top or () if position and max(position) > -np.inf]
    if not positions:
        return None, "no logprobs"
    several = [position for position in positions if len(position) > 1]
    if not several:
        return None, "chosen token only"
    return float(np.mean([position_entropy(position, top_k) for position in several])), None
