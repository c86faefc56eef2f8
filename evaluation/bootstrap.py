"""Resampling by question: the one source of the intervals in every table.

Runs and steps of one question are not independent, so what is drawn with replacement is questions. A draw is kept as a
multiplicity for each question and enters an estimate as a weight: rows are never copied. All estimates of one table
share one `QuestionBootstrap`, so that they can be compared resample by resample.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class QuestionBootstrap:
    """Multiplicities of `n_questions` questions in `n_resamples` draws with replacement."""

    n_questions: int  # question codes are 0 .. n_questions - 1
    n_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_questions < 1 or self.n_resamples < 1:
            raise ValueError(
                f"a bootstrap needs questions and resamples, got {self.n_questions} and {self.n_resamples}"
            )

    @cached_property
    def weights(self) -> NDArray[np.int32]:
        """Multiplicity of each question in each resample, shape (n_resamples, n_questions); rows sum to n_questions."""
        rng = np.random.default_rng(self.seed)
        weights = np.empty((self.n_resamples, self.n_questions), dtype=np.int32)
        for resample in weights:
            drawn = rng.integers(0, self.n_questions, size=self.n_questions)
            resample[:] = np.bincount(drawn, minlength=self.n_questions)
        return weights

    def check(self, questions: NDArray[np.integer[Any]]) -> None:
        """Raise ValueError unless every code in `questions`, any shape, is one of this bootstrap's questions."""
        if questions.size and (questions.min() < 0 or questions.max() >= self.n_questions):
            raise ValueError(
                f"question codes run from {questions.min()} to {questions.max()}, "
                f"but the bootstrap was made for 0 to {self.n_questions - 1}"
            )


def percentile_interval(resamples: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """The central `level` interval of the resampled estimates, shape (R,), by percentiles.

    Raises:
        ValueError: when an estimate is NaN, or there is none.
    """
    if not resamples.size or np.isnan(resamples).any():
        raise ValueError("a percentile interval needs estimates, none of them NaN")
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
