"""How well a signal ranks the steps that bring new evidence: AUROC, pooled and within strata, with question bootstrap.

An AUROC is the share of (positive, negative) pairs of steps in which the positive one has the higher value, a tie
counting half. Which pairs are compared decides what it means:

- *pooled*: any two steps. Signals and label both fall as a run goes on, so a high value may only say "early or late".
- *turn-matched*: two steps at the same turn, of any question. It still credits telling easy questions from hard ones.
- *within-question*: two steps of one question, of any of its runs.

The step labels (NiR > 0) and signals are those of [RAAC] *When Deep Research Agents Stagnate*, arXiv 2608.15191, 4.1.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval

AurocKind = Literal["pooled", "turn_matched", "within_question"]

AUROC_KINDS: tuple[AurocKind, ...] = get_args(AurocKind)
MIN_TURN_PAIRS = 10  # a turn with fewer pairs is noise, and is dropped and counted
BLOCK_CELLS = 1 << 21  # resamples are worked off in blocks of at most this many (resample, row) cells: 16 MiB each

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AurocResult:
    """One AUROC with its interval, and what it rests on."""

    value: float | None  # in [0, 1]; above 0.5: a higher signal goes with a gain; None: see `reason`
    ci: tuple[float, float] | None  # 95% percentile interval over questions; None: see `reason`, or no bootstrap given
    pairs: int  # (positive, negative) pairs compared, in the strata that were kept
    reason: str | None  # why value or ci is None
    rows: int  # steps with a value, before strata are dropped
    positives: int  # of those, how many have a true label
    nulls: int  # steps without a value
    strata: int  # strata kept: turns, questions, or 1 when pooled
    strata_dropped: int  # strata with too few pairs, those with a single class included
    pairs_dropped: int  # pairs in the dropped strata
    resamples: int  # resamples that the interval rests on: those in which some pair was drawn

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"ci": None if self.ci is None else list(self.ci)}


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The pairs to compare, laid out so that any weighting of the questions needs only one cumulative sum.

    Rows of the larger class are sorted by (stratum, value); each row of the smaller class points into that order.
    """

    by_question: bool  # the stratum is the question
    smaller: Ints  # (P,) question code of each row of the smaller class
    larger: Ints  # (M,) question code of each row of the larger class, in sorted order
    start: Ints  # (P,) where the row's stratum begins among the larger class
    low: Ints  # (P,) end of the rows that it beats
    high: Ints  # (P,) end of the rows that it beats or ties with
    stop: Ints  # (P,) where its stratum ends
    strata: int
    strata_dropped: int
    pairs_dropped: int

    def counts(self, weights: NDArray[Any]) -> tuple[Floats, Floats]:
        """Weighted pairs won (ties count half) and weighted pairs, for question weights (B, Q): two arrays (B,)."""
        before = np.zeros((len(weights), len(self.larger) + 1))
        np.cumsum(weights.take(self.larger, axis=1), axis=1, out=before[:, 1:])
        start = before.take(self.start, axis=1)
        won = 0.5 * (before.take(self.low, axis=1) + before.take(self.high, axis=1)) - start
        pairs = before.take(self.stop, axis=1) - start
        weight = weights.take(self.smaller, axis=1).astype(np.float64)
        return np.einsum("bp,bp->b", weight, won), np.einsum("bp,bp->b", weight, pairs)

    def counts_by_question(self, n_questions: int) -> tuple[Floats, Floats]:
        """Pairs won and pairs within each question, two arrays (Q,); for strata that are questions."""
        won, pairs = np.zeros(n_questions), np.zeros(n_questions)
        np.add.at(won, self.smaller, 0.5 * (self.low + self.high) - self.start)
        np.add.at(pairs, self.smaller, self.stop - self.start)
        return won, pairs

    def resampled(self, bootstrap: QuestionBootstrap) -> Floats:
        """The estimate in each resample, shape (R,); NaN where no pair was drawn."""
        if self.by_question:
            # A question drawn m times is m questions, each compared with itself only: weight m, where pairs across
            # its copies would make it m * m and the interval too wide.
            won, pairs = (bootstrap.weights @ count for count in self.counts_by_question(bootstrap.n_questions))
        else:
            block = max(1, BLOCK_CELLS // (len(self.larger) + 1))
            counted = [
                self.counts(bootstrap.weights[first : first + block])
                for first in range(0, bootstrap.n_resamples, block)
            ]
            won, pairs = (np.concatenate(parts) for parts in zip(*counted, strict=True))
        return np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)


def _layout(values: Floats, labels: Bools, strata: Ints, questions: Ints, by_question: bool, min_pairs: int) -> _Pairs:
    """Arrange rows without nulls for comparison within strata; a stratum is dropped by its unweighted pairs."""
    names, stratum = np.unique(strata, return_inverse=True)
    positives = np.bincount(stratum, weights=labels, minlength=len(names)).astype(np.int64)
    pairs = positives * (np.bincount(stratum, minlength=len(names)) - positives)
    keep = pairs >= max(min_pairs, 1)
    kept = keep[stratum]
    values, labels, stratum, questions = values[kept], labels[kept], stratum[kept], questions[kept]
    if 2 * labels.sum() > len(labels):  # the smaller class is the one looked up; both signs flipped, pairs are the same
        values, labels = -values, ~labels
    distinct, rank = np.unique(values, return_inverse=True)
    span = max(len(distinct), 1)
    key = stratum * span + rank  # orders by stratum, then value; equal values have equal keys
    order = np.flatnonzero(~labels)[np.argsort(key[~labels], kind="stable")]
    ordered, looked_up = key[order], key[labels]
    floor = stratum[labels] * span
    return _Pairs(
        by_question=by_question,
        smaller=questions[labels],
        larger=questions[order],
        start=np.searchsorted(ordered, floor, side="left"),
        low=np.searchsorted(ordered, looked_up, side="left"),
        high=np.searchsorted(ordered, looked_up, side="right"),
        stop=np.searchsorted(ordered, floor + span, side="left"),
        strata=int(keep.sum()),
        strata_dropped=int((~keep).sum()),
        pairs_dropped=int(pairs[~keep].sum()),
    )


def _estimate(
    values: Floats,
    labels: Bools,
    strata: Ints,
    questions: Ints,
    bootstrap: QuestionBootstrap | None,
    *,
    by_question: bool,
    min_pairs: int,
) -> AurocResult:
    """The AUROC within strata; all arrays have shape (N,), NaN in `values` is a null."""
    if not values.shape == labels.shape == strata.shape == questions.shape or values.ndim != 1:
        raise ValueError(
            "values, labels, strata and questions must be flat and of one length, got shapes "
            f"{values.shape}, {labels.shape}, {strata.shape}, {questions.shape}"
        )
    if labels.dtype != np.bool_:
        raise ValueError(f"labels must be boolean, got {labels.dtype}")
    if bootstrap is not None:
        bootstrap.check(questions)
    present = ~np.isnan(values)
    layout = _layout(values[present], labels[present], strata[present], questions[present], by_question, min_pairs)
    rows, positives = int(present.sum()), int(labels[present].sum())
    pairs = int((layout.stop - layout.start).sum())
    value, ci, reason, resamples = None, None, None, 0
    if not rows:
        reason = "no values"
    elif positives in (0, rows):
        reason = f"one class only: every label is {'true' if positives else 'false'}"
    elif not pairs:
        reason = f"no stratum has {max(min_pairs, 1)} pairs"
    else:
        won = float((0.5 * (layout.low + layout.high) - layout.start).sum())
        # `low` and `high` count for the smaller class; when that is the negatives, values were negated as well, so
        # a pair that it wins is a pair that the positive wins.
        value = won / pairs
        if np.ptp(np.concatenate([layout.smaller, layout.larger])) == 0:
            reason = "no interval: every pair is of one question"
        elif bootstrap is not None:
            estimates = layout.resampled(bootstrap)
            estimates = estimates[~np.isnan(estimates)]
            resamples = len(estimates)
            if resamples:
                ci = percentile_interval(estimates)
            else:
                reason = "no interval: no resample drew a pair"
    return AurocResult(
        value=value,
        ci=ci,
        pairs=pairs,
        reason=reason,
        rows=rows,
        positives=positives,
        nulls=len(values) - rows,
        strata=layout.strata,
        strata_dropped=layout.strata_dropped,
        pairs_dropped=layout.pairs_dropped,
        resamples=resamples,
    )


def pooled(values: Floats, labels: Bools, questions: Ints, bootstrap: QuestionBootstrap | None = None) -> AurocResult:
    """AUROC over all pairs of steps.

    In a resample a row weighs its question's multiplicity and a pair the product of the two, as if rows were copied.

    Args:
        values: the signal, shape (N,); NaN is a null, and its row takes no part.
        labels: whether the step brought new evidence, shape (N,), boolean.
        questions: question codes, shape (N,); with a bootstrap, in 0 .. n_questions - 1.
        bootstrap: the resamples for the interval, shared by all signals; None gives no interval.

    Raises:
        ValueError: arrays of different lengths, labels that are not boolean, or question codes out of range.
    """
    strata = np.zeros(len(values), dtype=np.int64)
    return _estimate(values, labels, strata, questions, bootstrap, by_question=False, min_pairs=1)


def turn_matched(
    values: Floats,
    labels: Bools,
    turns: Ints,
    questions: Ints,
    bootstrap: QuestionBootstrap | None = None,
    min_pairs: int = MIN_TURN_PAIRS,
) -> AurocResult:
    """AUROC over pairs of steps at the same turn: pairs won and half the ties, summed over turns, by the sum of pairs.

    Turns with under `min_pairs` pairs are dropped and counted. That is decided once, on the data as they are, so that
    every resample estimates the same quantity.

    Args:
        values: the signal, shape (N,); NaN is a null, and its row takes no part.
        labels: whether the step brought new evidence, shape (N,), boolean.
        turns: index of the decision point in its run, shape (N,).
        questions: question codes, shape (N,); with a bootstrap, in 0 .. n_questions - 1.
        bootstrap: the resamples for the interval, shared by all signals; None gives no interval.
        min_pairs: the fewest pairs that a turn may have.

    Raises:
        ValueError: arrays of different lengths, labels that are not boolean, or question codes out of range.
    """
    return _estimate(values, labels, turns, questions, bootstrap, by_question=False, min_pairs=min_pairs)


def within_question(
    values: Floats, labels: Bools, questions: Ints, bootstrap: QuestionBootstrap | None = None
) -> AurocResult:
    """AUROC over pairs of steps of the same question: pairs won and half the ties over questions, by the sum of pairs.

    There is no minimum of pairs here: a question has few steps, a minimum would leave out short runs, and the sum
    weighs a question by its pairs anyway. Questions with one class have no pair and are counted as dropped.
    In a resample, a question drawn m times counts as m questions, each compared with itself only.

    Args:
        values: the signal, shape (N,); NaN is a null, and its row takes no part.
        labels: whether the step brought new evidence, shape (N,), boolean.
        questions: question codes, shape (N,); with a bootstrap, in 0 .. n_questions - 1.
        bootstrap: the resamples for the interval, shared by all signals; None gives no interval.

    Raises:
        ValueError: arrays of different lengths, labels that are not boolean, or question codes out of range.
    """
    return _estimate(values, labels, questions, questions, bootstrap, by_question=True, min_pairs=1)


def auroc_table(
    signals: Mapping[str, Floats],
    labels: Bools,
    turns: Ints,
    questions: Ints,
    bootstrap: QuestionBootstrap | None = None,
) -> dict[str, dict[AurocKind, AurocResult]]:
    """All three AUROCs of every signal: `table[signal][kind]`.

    Args:
        signals: name to values, each of shape (N,); NaN is a null.
        labels: whether the step brought new evidence, shape (N,), boolean.
        turns: index of the decision point in its run, shape (N,).
        questions: question codes, shape (N,); with a bootstrap, in 0 .. n_questions - 1.
        bootstrap: the resamples for the intervals, shared by all signals; None gives no intervals.

    Raises:
        ValueError: arrays of different lengths, labels that are not boolean, or question codes out of range.
    """
    return {
        name: {
            "pooled": pooled(values, labels, questions, bootstrap),
            "turn_matched": turn_matched(values, labels, turns, questions, bootstrap),
            "within_question": within_question(values, labels, questions, bootstrap),
        }
        for name, values in signals.items()
    }


def predictive_labels(gain: Floats, offsets: Ints, horizon: int = 3, *, whole: bool = False) -> tuple[Bools, Bools]:
    """Whether steps t+1 .. t+horizon of the same run bring some gain, and which rows can be asked.

    A run's last row is left out: nothing follows in the log, and its label would say that the agent stopped, not that
    nothing was left to find. Rows with one to horizon - 1 steps ahead are kept and judged by those: it is what going on
    brings in this log. Keeping such rows only when a gain was seen would choose them by their label. Which rows are
    kept thus depends on the run's length alone.

    Args:
        gain: new recall that each step brings (NiR), shape (N,).
        offsets: run e has rows offsets[e] .. offsets[e + 1] - 1, shape (E + 1,).
        horizon: how many steps to look ahead, at least 1.
        whole: keep only rows with all `horizon` steps ahead of them in the log.

    Returns:
        labels: shape (N,), False where not kept.
        kept: shape (N,), the rows to evaluate on.

    Raises:
        ValueError: a gain that is NaN, offsets that do not cover the rows, or a horizon below 1.
    """
    gain, offsets = np.asarray(gain, dtype=np.float64), np.asarray(offsets)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    if np.isnan(gain).any():
        raise ValueError("gain has NaN: leave out runs without gold")
    if offsets[0] != 0 or offsets[-1] != len(gain) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must rise from 0 to the number of rows, {len(gain)}")
    row = np.arange(len(gain))
    end = np.repeat(offsets[1:], np.diff(offsets))
    gains_before = np.concatenate([[0], np.cumsum(gain > 0)])
    labels = gains_before[np.minimum(row + 1 + horizon, end)] > gains_before[row + 1]
    return labels, end - row - 1 >= (horizon if whole else 1)
