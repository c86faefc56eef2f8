"""Coverage judged by a language model ([RAAC] appendix A).

Criteria are taken from the run where it has them, else listed by the model from the question: those that the question
states (*static*), or those that a complete answer has to cover (*dynamic*), which the model may add to and remove from
as documents come in, until the list has been stable for a while; then it is frozen, and the model is told so.

After each step the model sees that step's documents and says which statuses they change. A status never falls: the
model does not see the earlier documents again, so their silence now means nothing.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stopwise.data.records import Criterion, Document
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt, quote
from stopwise.models.structured import schema_of

STABLE = 3  # updates without a change after which a dynamic list is frozen
MAX_CRITERIA = 12  # a longer list is no list of separate pieces of information
DOCUMENT_CHARS = 1500  # of a document's text that the model is shown
MAX_TOKENS = 512  # of a reply

Status = Literal["uncovered", "partial", "full"]
COVERAGE: dict[str, float] = {"uncovered": 0.0, "partial": 0.5, "full": 1.0}

_MAY_CHANGE = (
    'You may also change the list: "add" holds the texts of criteria that the documents show to be missing, "remove" '
    "the numbers of criteria that turn out not to be asked for. Change it only for a good reason."
)
_FIXED = 'The list of criteria is final: "add" and "remove" stay empty.'


@dataclass(frozen=True, slots=True)
class CriteriaList:
    """What the model replies when it is asked for criteria."""

    criteria: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One criterion's new status."""

    number: int  # from 1
    status: Status


@dataclass(frozen=True, slots=True)
class CoverageUpdate:
    """What the model replies after a step."""

    statuses: tuple[StatusChange, ...]
    add: tuple[str, ...] = ()
    remove: tuple[int, ...] = ()


@dataclass(slots=True)
class CoverageCounts:
    """What a judge's calls came to; shared by the judges of many runs."""

    updates: int = 0  # steps that were judged
    failures: Counter[str] = field(default_factory=Counter)  # by kind; the state before was kept
    lock: threading.Lock = field(default_factory=threading.Lock)


class LLMCoverage:
    """Makes the judges of many runs; itself a `MakeJudge`.

    Args:
        client: calls the model.
        dynamic: how criteria are listed for runs that have none.
        max_tokens: of a reply.
    """

    def __init__(self, client: ChatClient, *, dynamic: bool = False, max_tokens: int = MAX_TOKENS) -> None:
        self._client = client
        self._dynamic = dynamic
        self._max_tokens = max_tokens
        self.counts = CoverageCounts()

    @property
    def id(self) -> str:
        """The model, how criteria are listed, and the versions of the prompts."""
        listing = load_prompt("criteria_inferred" if self._dynamic else "criteria_stated")
        kind = "dynamic" if self._dynamic else "static"
        return f"{self._client.id} {kind} {listing.version} {load_prompt('coverage_update').version}"

    @property
    def model(self) -> str:
        """The model's id alone."""
        return self._client.id

    @property
    def parallel(self) -> int:
        """Runs that it is worth judging at a time."""
        return self._client.parallel

    def report(self) -> dict[str, Any]:
        """JSON-able: the model, what was judged, what failed and why, and the bill."""
        return {
            "coverage_model": self.id,
            "served_model": self._client.served_model,
            "judged": self.counts.updates,
            "failed": sum(self.counts.failures.values()),
            "failures": dict(sorted(self.counts.failures.items())),
            "cost": self._client.ledger.report(),
        }

    def __call__(self, question: str, criteria: Sequence[Criterion] | None) -> "LLMJudge":
        """The judge of one run; given criteria are never changed."""
        return LLMJudge(
            self._client,
            question,
            criteria,
            dynamic=self._dynamic,
            max_tokens=self._max_tokens,
            counts=self.counts,
        )


class LLMJudge:
    """Judge ``llm`` of one run. A failed call leaves everything as it was and is counted.

    Attributes:
        criteria: the list as it is now; empty until the model has made it.
        frozen: whether it is final.
    """

    def __init__(
        self,
        client: ChatClient,
        question: str,
        criteria: Sequence[Criterion] | None = None,
        *,
        dynamic: bool = False,
        max_tokens: int = MAX_TOKENS,
        counts: CoverageCounts | None = None,
    ) -> None:
        """Begin a run; nothing is called yet. Arguments as in `LLMCoverage`."""
        self._client = client
        self._question = question
        self._dynamic = dynamic
        self._max_tokens = max_tokens
        self._counts = counts or CoverageCounts()
        self._listings = 0  # attempts to list the criteria
        self._stable = 0  # updates since the list changed
        self._coverage: list[float] = []
        self.criteria: list[str] = []
        self.frozen = not dynamic
        if criteria:
            self.frozen = True
            self._set([criterion.text for criterion in criteria])

    def update(self, documents: Sequence[Document]) -> NDArray[np.float64]:
        """See `CoverageJudge.update`. Without documents nothing is called, and nothing changes."""
        try:
            if not self.criteria:
                self._set(self._list())
            if documents:
                self._take(self._judge(documents))
        except ChatFailure as failure:
            with self._counts.lock:
                self._counts.failures[failure.kind] += 1
        return np.array(self._coverage, dtype=np.float64)

    def _list(self) -> list[str]:
        prompt = load_prompt("criteria_inferred" if self._dynamic else "criteria_stated")
        request = ChatRequest(
            (Message("user", prompt.fill(question=quote("question", self._question))),),
            max_tokens=self._max_tokens,
            sample=self._listings,  # the reply to the first attempt is cached, however useless
        )
        self._listings += 1

        def check(answer: CriteriaList) -> str | None:
            texts = _distinct(answer.criteria)
            return None if 1 <= len(texts) <= MAX_CRITERIA else f"{len(texts)} criteria; give 1 to {MAX_CRITERIA}"

        return _distinct(self._client.ask(request, CriteriaList, "coverage", check).answer.criteria)

    def _judge(self, documents: Sequence[Document]) -> CoverageUpdate:
        rows = [
            f"{number}. [{_status(coverage)}] {text}"
            for number, (text, coverage) in enumerate(zip(self.criteria, self._coverage, strict=True), start=1)
        ]
        shown = "\n\n".join(
            f"[{document.title or document.id}]\n{(document.text or '')[:DOCUMENT_CHARS]}" for document in documents
        )
        text = load_prompt("coverage_update").fill(
            question=quote("question", self._question),
            criteria=quote("criteria", "\n".join(rows)),
            documents=quote("documents", shown),
            change=_FIXED if self.frozen else _MAY_CHANGE,
        )
        request = ChatRequest((Message("user", text),), max_tokens=self._max_tokens)
        return self._client.ask(request, CoverageUpdate, "coverage", self._check, self._possible()).answer

    def _possible(self) -> dict[str, Any]:
        """What `_check` lets through, as JSON schemas of fields."""
        most = len(self.criteria)
        added, removed = (0, 0) if self.frozen else (MAX_CRITERIA - most, most - 1)
        numbers = {"type": "integer", "minimum": 1, "maximum": most}
        change = schema_of(StatusChange)
        change["properties"]["number"] = numbers
        return {
            "statuses": {"type": "array", "items": change, "maxItems": most},
            "add": {"type": "array", "items": {"type": "string"}, "maxItems": added},
            "remove": {"type": "array", "items": numbers, "maxItems": removed},
        }

    def _check(self, update: CoverageUpdate) -> str | None:
        numbers = [change.number for change in update.statuses] + list(update.remove)
        wrong = [number for number in numbers if not 1 <= number <= len(self.criteria)]
        if wrong:
            return f"there is no criterion {wrong[0]}; they are numbered 1 to {len(self.criteria)}"
        if self.frozen and (update.add or update.remove):
            return "the list of criteria is final"
        left = len(self.criteria) - len(set(update.remove)) + len(_distinct(update.add))
        return None if 1 <= left <= MAX_CRITERIA else f"{left} criteria would be left; keep 1 to {MAX_CRITERIA}"

    def _take(self, update: CoverageUpdate) -> None:
        with self._counts.lock:
            self._counts.updates += 1
        for change in update.statuses:
            index = change.number - 1
            self._coverage[index] = max(self._coverage[index], COVERAGE[change.status])
        removed = {number - 1 for number in update.remove}
        kept = [index for index in range(len(self.criteria)) if index not in removed]
        added = [text for text in _distinct(update.add) if text.casefold() not in map(str.casefold, self.criteria)]
        self.criteria = [self.criteria[index] for index in kept] + added
        self._coverage = [self._coverage[index] for index in kept] + [0.0] * len(added)
        if self._dynamic and not self.frozen:
            self._stable = 0 if removed or added else self._stable + 1
            self.frozen = self._stable >= STABLE

    def _set(self, criteria: list[str]) -> None:
        self.criteria = criteria
        self._coverage = [0.0] * len(criteria)


def _status(coverage: float) -> str:
    return next(name for name, value in COVERAGE.items() if value == coverage)


def _distinct(texts: Sequence[str]) -> list[str]:
    """Texts without white space around them, each once, none empty."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(text.strip().casefold(), text.strip())
    return [text for text in first.values() if text]
