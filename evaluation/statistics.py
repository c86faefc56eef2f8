"""Is one controller better than another: comparisons paired by question, and the number of questions that they need.

The unit is the question. Runs of one question depend on each other, so they are first averaged within the question and
each question counts once. The tests are those that the field reports: the t-test on recall and McNemar's on accuracy
([RAAC] *When Deep Research Agents Stagnate*, arXiv 2608.15191, 4.3), and the permutation test with 10,000 trials
([DS-MCM] *Deep Search with Hierarchical Meta-Cognitive Monitoring*, arXiv 2601.23188, table 1).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

ROUNDING = 1e-12  # relative; differences that should be equal or tied differ by this much in floating point
BLOCK_CELLS = 1 << 21  # sign flips are drawn in blocks of at most this many (trial, question) cells


@dataclass(frozen=True, slots=True)
class Significance:
    """One significance test, two-sided."""

    p: float | None  # None: see `reason`
    statistic: float | None  # its meaning is the test's
    reason: str | None = None  # why there is no p


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """A treatment against a baseline over the same questions; differences are treatment - baseline."""

    questions: int
    treatment: float  # mean over questions
    baseline: float  # mean over questions
    difference: float  # mean over questions
    ci: tuple[float, float] | None  # 95% percentile interval of the difference; None with a single question
    sd: float | None  # standard deviation of the differences over questions; None with a single question
    wins: int  # questions where the treatment is higher
    ties: int
    losses: int
    t_test: Significance  # Student's t, questions - 1 degrees of freedom
    permutation: Significance  # statistic: number of sign flips compared with
    mcnemar: Significance  # statistic: questions that differ

    def not_inferior(self, margin: float) -> bool | None:
        """Whether the interval lies above -margin (one-sided, 2.5%); None without an interval.

        Raises:
            ValueError: a negative margin.
        """
        if margin < 0:
            raise ValueError(f"margin must not be negative, got {margin}")
        return None if self.ci is None else self.ci[0] > -margin

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"ci": None if self.ci is None else list(self.ci)}


def question_means(values: Floats, questions: Ints) -> tuple[Ints, Floats]:
    """Mean of each question's runs: the distinct codes (Q,), ascending, and their means (Q,).

    Args:
        values: one number a run, shape (N,).
        questions: question codes, shape (N,).

    Raises:
        ValueError: shapes that differ, no runs, or values that are not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape != questions.shape or values.ndim != 1 or not values.size:
        raise ValueError(f"values and questions must be flat and of one length, got {values.shape}, {questions.shape}")
    if not np.isfinite(values).all():
        raise ValueError("values are not all finite: leave out runs whose outcome is unknown, in both arms")
    codes, position = np.unique(questions, return_inverse=True)
    return codes, np.bincount(position, weights=values) / np.bincount(position)


def compare(
    treatment: Floats,
    baseline: Floats,
    treatment_questions: Ints,
    baseline_questions: Ints | None = None,
    *,
    resamples: int = 1000,
    trials: int = 10_000,
    seed: int = 0,
) -> PairedComparison:
    """Compare two arms by question: mean difference with bootstrap interval, tests, wins, ties and losses.

    Args:
        treatment: one number a run, such as recall or correctness as 0 and 1, shape (N,).
        baseline: the same for the other arm, shape (M,).
        treatment_questions: question code of each run, shape (N,).
        baseline_questions: question code of each run, shape (M,); None: those of the treatment.
        resamples: bootstrap resamples; with one seed, all comparisons over the same questions share them.
        trials: sign flips of the permutation test.
        seed: of the bootstrap and the permutation test.

    Raises:
        ValueError: shapes that differ, values that are not finite, or arms that do not have the same questions.
    """
    codes, treated = question_means(treatment, treatment_questions)
    other, base = question_means(baseline, treatment_questions if baseline_questions is None else baseline_questions)
    if not np.array_equal(codes, other):
        apart = len(np.setxor1d(codes, other))
        raise ValueError(f"{apart} questions are in one arm only: a paired comparison needs the same in both")
    differences = treated - base
    differences[np.abs(differences) <= ROUNDING * np.maximum(np.abs(treated), np.abs(base))] = 0.0
    n = len(differences)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    ci = None
    if n > 1:
        weights = QuestionBootstrap(n, resamples, seed).weights
        ci = percentile_interval(weights @ differences / n)
    return PairedComparison(
        questions=n,
        treatment=float(treated.mean()),
        baseline=float(base.mean()),
        difference=float(differences.mean()),
        ci=ci,
        sd=float(differences.std(ddof=1)) if n > 1 else None,
        wins=wins,
        ties=n - wins - losses,
        losses=losses,
        t_test=paired_t(differences),
        permutation=sign_flip(differences, trials=trials, seed=seed),
        mcnemar=mcnemar(wins, losses),
    )


def paired_t(differences: Floats) -> Significance:
    """Student's paired t-test of a zero mean, two-sided; `differences` has shape (Q,).

    Differences that are all equal have no variance to judge their mean by: no p, with the reason.
    """
    n = len(differences)
    if n < 2:
        return Significance(None, None, "a t-test needs two questions")
    deviation = differences.std(ddof=1)
    if deviation <= ROUNDING * np.abs(differences).max():
        return Significance(None, None, "all differences are equal")
    t = float(differences.mean() / (deviation / math.sqrt(n)))
    return Significance(float(2 * stats.t.sf(abs(t), n - 1)), t)


def sign_flip(differences: Floats, *, trials: int = 10_000, seed: int = 0) -> Significance:
    """Permutation test of differences that are symmetric about zero, two-sided: signs are flipped at random.

    p is the share of sign flips whose absolute mean is at least the observed one. All 2^k flips of the k differences
    that are not zero are taken where that is no more than `trials`; else `trials` random ones, and the observed
    signs count as one more, so that p is never 0.

    Args:
        differences: shape (Q,).
        trials: number of random flips.
        seed: of the random flips.
    """
    moving = differences[differences != 0]
    observed = abs(moving.sum()) - ROUNDING * np.abs(moving).sum()
    if 2 ** len(moving) <= trials:
        negative = np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving)) & 1
        flips = moving.sum() - 2 * (negative @ moving)
        return Significance(float((np.abs(flips) >= observed).mean()), float(len(flips)))
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK_CELLS // len(moving))
    reached = 0
    for first in range(0, trials, block):
        negative = rng.integers(0, 2, size=(min(block, trials - first), len(moving)), dtype=np.int8)
        flips = moving.sum() - 2 * (negative @ moving)
        reached += int((np.abs(flips) >= observed).sum())
    return Significance((reached + 1) / (trials + 1), float(trials))


def mcnemar(wins: int, losses: int) -> Significance:
    """McNemar's exact test, two-sided: are questions that differ as likely to be won as lost?

    With one run a question and outcomes of 0 and 1 this is McNemar's test. With several runs the question's mean
    decides who wins it, and it is the sign test, of which McNemar's is the special case: counting runs instead would
    take runs of one question for independent.
    """
    differing = wins + losses
    if not differing:
        return Significance(1.0, 0.0)
    return Significance(float(stats.binomtest(wins, differing, 0.5).pvalue), float(differing))


def questions_needed(
    sd: float, *, difference: float = 0.0, margin: float = 0.0, power: float = 0.8, alpha: float = 0.025
) -> int:
    """Questions for a paired comparison to succeed with the given power, by the normal approximation.

    n = ((z_{1-alpha} + z_{power}) sd / (difference + margin))^2. It covers superiority (margin 0: the lower end of the
    95% interval above 0 at a true `difference`) and non-inferiority (the lower end above -margin).

    Args:
        sd: standard deviation over questions of the difference of question means.
        difference: the true mean difference that is supposed, treatment - baseline.
        margin: non-inferiority margin; 0 asks for superiority.
        power: probability of success wanted.
        alpha: one-sided level; 0.025 is the lower end of a 95% interval.

    Raises:
        ValueError: difference + margin not above 0 (no number of questions suffices), or figures out of range.
    """
    distance = _distance(sd, difference, margin, alpha)
    if not 0 < power < 1:
        raise ValueError(f"power must be between 0 and 1, got {power}")
    if distance <= 0:
        raise ValueError(f"no number of questions shows it: difference {difference} + margin {margin} is not above 0")
    spread = stats.norm.isf(alpha) + stats.norm.ppf(power)
    return max(2, math.ceil((max(spread, 0.0) * sd / distance) ** 2))


def power_of(questions: int, sd: float, *, difference: float = 0.0, margin: float = 0.0, alpha: float = 0.025) -> float:
    """Probability that so many questions suffice: the converse of `questions_needed`, same arguments and errors."""
    distance = _distance(sd, difference, margin, alpha)
    if questions < 2:
        raise ValueError(f"a comparison needs two questions, got {questions}")
    return float(stats.norm.cdf(distance * math.sqrt(questions) / sd - stats.norm.isf(alpha)))


def _distance(sd: float, difference: float, margin: float, alpha: float) -> float:
    if not sd > 0 or margin < 0 or not 0 < alpha < 1:
        raise ValueError(f"needs sd > 0, margin >= 0 and alpha in (0, 1), got {sd}, {margin}, {alpha}")
    return difference + margin
