"""Criteria coverage ([RAAC] 4.1): 0 uncovered, 0.5 partial, 1 full, for each criterion after a step."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stopwise.data.records import Criterion, Document
from stopwise.models.encoders import Encoder

MAX_SENTENCES = 40  # of one document; a whole web page would otherwise drown the step
_BOUNDARY = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class CoverageJudge(Protocol):
    """Follows one run and says how far each criterion is covered."""

    def update(self, documents: Sequence[Document]) -> NDArray[np.float64]:
        """Take in one step's documents and return the coverage of the C criteria, shape (C,), in {0, 0.5, 1}.

        C may change from step to step where a model keeps the list; 0 means that there is no list yet.
        """
        ...


MakeJudge = Callable[[str, Sequence[Criterion] | None], CoverageJudge]  # (question, criteria) -> judge of one run


@dataclass(frozen=True, slots=True)
class CoverageThresholds:
    """Cosines between a criterion and a document sentence from which it counts as partly or fully covered.

    The least squared error of the status against gold puts `full` where hardly a sentence gets to (0.98 for MiniLM on
    the generated world): sentences that state a criterion and sentences that state the like of another entity are as
    near to it, so that "partly" is the best guess for both. Such a judge ranks steps, and seldom says what gold says;
    `docs/LOG.md` has its agreement, and that of thresholds which are fitted to agree.
    """

    partial: float
    full: float


def document_sentences(document: Document) -> list[str]:
    """The sentences of a document's text, at most `MAX_SENTENCES`; its title where it has no text."""
    text = document.text or document.title or ""
    return [part.strip() for part in _BOUNDARY.split(text) if part.strip()][:MAX_SENTENCES]


class EncoderJudge:
    """Judge ``encoder``: the best cosine between a criterion and any sentence seen so far, against two thresholds."""

    def __init__(self, criteria: Sequence[Criterion], encoder: Encoder, thresholds: CoverageThresholds) -> None:
        """Embed the criteria; `encoder` should be a cached one."""
        self._encoder = encoder
        self._thresholds = thresholds
        self._criteria = encoder.encode([criterion.text for criterion in criteria])
        self.best = np.full(len(criteria), -1.0)  # best cosine so far, shape (C,)

    def update(self, documents: Sequence[Document]) -> NDArray[np.float64]:
        """See `CoverageJudge.update`."""
        sentences = [sentence for document in documents for sentence in document_sentences(document)]
        if sentences:
            cosines = self._criteria.astype(np.float64) @ self._encoder.encode(sentences).astype(np.float64).T
            self.best = np.maximum(self.best, cosines.max(axis=1))
        return 0.5 * (self.best >= self._thresholds.partial) + 0.5 * (self.best >= self._thresholds.full)


class GoldJudge:
    """Judge ``gold``, privileged: the data knows which documents cover a criterion; it all but equals the label."""

    def __init__(self, criteria: Sequence[Criterion]) -> None:
        """Take criteria that all have `gold_ids`."""
        self._gold = [frozenset(criterion.gold_ids or ()) for criterion in criteria]
        self._seen: set[str] = set()

    def update(self, documents: Sequence[Document]) -> NDArray[np.float64]:
        """See `CoverageJudge.update`."""
        self._seen.update(document.id for document in documents)
        found = [len(gold & self._seen) / len(gold) if gold else 0.0 for gold in self._gold]
        return np.array([0.0 if share == 0 else 1.0 if share == 1 else 0.5 for share in found])


def fit_thresholds(best: NDArray[np.float64], covered: NDArray[np.float64]) -> CoverageThresholds:
    """The two thresholds with the least squared error of the status against gold coverage.

    Args:
        best: best cosine so far of a criterion after a step, shape (n,); training questions only.
        covered: gold coverage of it then, in {0, 0.5, 1}, shape (n,).
    """
    candidates = np.unique(np.quantile(best, np.linspace(0.02, 0.98, 49)))
    errors = np.full((len(candidates), len(candidates)), np.inf)
    for row, partial in enumerate(candidates):
        for column, full in enumerate(candidates[row:], start=row):
            status = 0.5 * (best >= partial) + 0.5 * (best >= full)
            errors[row, column] = float(((status - covered) ** 2).mean())
    row, column = divmod(int(errors.argmin()), len(candidates))
    return CoverageThresholds(float(candidates[row]), float(candidates[column]))
