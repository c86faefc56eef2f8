"""Do two raters agree: share of equal answers and Cohen's kappa, with intervals over questions.

Kappa is one minus the disagreement that was found over the one that the raters' own habits would bring by chance. On a
scale with an order, an answer one place off weighs less than one four places off (linear weights); without an order
every disagreement weighs the same. Where both gave one and the same answer everywhere there is no disagreement to
expect, and no kappa: that is said instead of a number.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval

Weights = Literal["none", "linear"]


def agreement(
    first: NDArray[np.integer[Any]],
    second: NDArray[np.integer[Any]],
    questions: NDArray[np.integer[Any]],
    answers: Sequence[int],
    weights: Weights = "none",
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Agreement of two raters over the same items.

    Args:
        first: one rater's answers, shape (N,).
        second: the other's, shape (N,).
        questions: question code of each item, shape (N,), from 0 without gaps: what the intervals resample.
        answers: all that could be given, in their order.
        weights: of kappa; linear for an ordered scale.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Returns:
        JSON-able: ``items``, ``questions``, ``agreement`` and ``kappa`` with ``value`` and ``ci`` (null with fewer than
        two questions), and the ``confusion`` matrix, first rater by rows. A ``value`` that is null has a ``reason``.

    Raises:
        ValueError: shapes that differ, or an answer that could not be given.
    """
    if not first.shape == second.shape == questions.shape or first.ndim != 1:
        raise ValueError(f"needs flat arrays of one length, got {first.shape}, {second.shape}, {questions.shape}")
    if not np.isin(first, answers).all() or not np.isin(second, answers).all():
        raise ValueError(f"an answer is none of {list(answers)}")
    count = int(questions.max()) + 1 if questions.size else 0
    tables = confusions(np.searchsorted(answers, first), np.searchsorted(answers, second), questions, len(answers))
    whole = tables.sum(axis=0)
    found = {"items": int(questions.size), "questions": count, "weights": weights, "confusion": whole.tolist()}
    if not questions.size:
        nothing = {"value": None, "ci": None, "reason": "no item was judged by both"}
        return found | {"agreement": nothing, "kappa": nothing}
    cost = disagreement(len(answers), weights)
    resampled = np.zeros((0, *whole.shape))
    if count > 1:
        resampled = np.einsum("rq,qij->rij", QuestionBootstrap(count, resamples, seed).weights, tables)
    kappa = with_interval(lambda table: weighted_kappa(table, cost), whole, resampled)
    if kappa["value"] is None:
        kappa["reason"] = "both gave one and the same answer everywhere"
    else:
        kappa["value"] = _published_kappa(first, second, answers, weights)
    return found | {"agreement": with_interval(share_equal, whole, resampled), "kappa": kappa}


def confusions(
    rows: NDArray[np.integer[Any]], columns: NDArray[np.integer[Any]], questions: NDArray[np.integer[Any]], size: int
) -> NDArray[np.int64]:
    """Counts of pairs of answers, given by their places, for each question; shape (questions, size, size)."""
    count = int(questions.max()) + 1 if questions.size else 0
    tables = np.zeros((count, size, size), dtype=np.int64)
    np.add.at(tables, (questions, rows, columns), 1)
    return tables


def disagreement(size: int, weights: Weights) -> NDArray[np.float64]:
    """What a pair of answers costs, shape (size, size): 0 for equal ones, 1 for the ends of the scale."""
    if weights == "none":
        return 1.0 - np.eye(size)
    places = np.arange(size)
    return np.abs(places[:, None] - places) / (size - 1)


def share_equal(table: NDArray[Any]) -> float:
    """Share of equal answers in a confusion matrix."""
    return float(np.trace(table) / table.sum())


def weighted_kappa(table: NDArray[Any], cost: NDArray[np.float64]) -> float:
    """Cohen's kappa of a confusion matrix; NaN where by chance no disagreement is to be expected."""
    share = table / table.sum()
    by_chance = float((cost * np.outer(share.sum(axis=1), share.sum(axis=0))).sum())
    return 1 - float((cost * share).sum()) / by_chance if by_chance > 0 else float("nan")


def with_interval(
    measure: Callable[[NDArray[Any]], float], whole: NDArray[Any], resampled: NDArray[Any]
) -> dict[str, Any]:
    """A measure of confusion matrices with its 95% interval; null where it is not defined.

    Resamples in which it is not defined are left out of the interval, and counted if there are any.

    Args:
        measure: of one matrix; NaN where it is not defined.
        whole: of all items, shape (K, K).
        resampled: shape (R, K, K).
    """
    value = measure(whole)
    values = np.array([measure(table) for table in resampled])
    known = values[~np.isnan(values)]
    found: dict[str, Any] = {
        "value": None if np.isnan(value) else value,
        "ci": list(percentile_interval(known)) if len(known) and not np.isnan(value) else None,
    }
    if len(known) < len(values):
        found["undefined_resamples"] = len(values) - len(known)
    return found


def _published_kappa(
    first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]], answers: Sequence[int], weights: Weights
) -> float:
    """Scikit-learn's, as everybody computes it; `weighted_kappa` is its equal, fast enough to be resampled."""
    from sklearn.metrics import cohen_kappa_score

    kind = None if weights == "none" else weights
    return float(cohen_kappa_score(first, second, labels=list(answers), weights=kind))
