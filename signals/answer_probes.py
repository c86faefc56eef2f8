"""Answer probes for logs that have none: a reader answers from what a run had seen by a step, a judge compares.

The reader is not the agent: its accuracy is that of the documents with this reader, and is reported under its name,
which stands in the run's ``meta``. Readers: `LLMReader`, and without a language model
`stopwise.signals.extractive_reader.ExtractiveReader`. Judges: `AnswerJudge`, and by the letters alone `MatchJudge`.
An LLM reader's reply has the form of BrowseComp-Plus answers (Explanation, Exact Answer, Confidence), which the judge
reads too.
"""

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stopwise.data.records import AnswerProbe, Document, Step, Trajectory
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt, quote

DOCUMENTS = 30  # that the reader is shown, the latest seen first
DOCUMENT_CHARS = 1000  # of a document's text
MAX_TOKENS = 400
NO_CANDIDATE = "no candidate"
PROBED_BY = "answer_probes"  # key of `Trajectory.meta`: the reader and the judge of probes that a run had not itself
_EXACT = re.compile(r"^[ \t*#-]*Exact Answer[ *]*:[ *]*(.+?)[ *]*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge replies."""

    extracted: str | None
    reasoning: str
    correct: bool


class Reader(Protocol):
    """Answers questions from documents."""

    @property
    def id(self) -> str:
        """Names it in results."""
        ...

    def read(self, question: str, documents: Sequence[Document]) -> str | None:
        """The answer, or None for "no candidate".

        Raises:
            ChatFailure: a language model brought none.
        """
        ...


class Judge(Protocol):
    """Compares answers with references."""

    @property
    def id(self) -> str:
        """Names it in results."""
        ...

    def judge(self, question: str, response: str, reference: str) -> Judged:
        """Say whether the response is the reference.

        Raises:
            ChatFailure: a language model brought no verdict.
        """
        ...


class LLMReader:
    """Answers a question from documents."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    @property
    def id(self) -> str:
        """Model and version of the prompt."""
        return f"{self._client.id} {load_prompt('read_answer').version}"

    def read(self, question: str, documents: Sequence[Document]) -> str | None:
        """The answer, or None for "no candidate"; without documents nothing is called.

        Args:
            question: its text.
            documents: what was seen, in the order of its coming.

        Raises:
            ChatFailure: no reply, or one without an exact answer.
        """
        if not documents:
            return None
        rows = [
            f"[{number}] {document.title or document.id}\n{(document.text or '')[:DOCUMENT_CHARS]}"
            for number, document in enumerate(list(reversed(documents))[:DOCUMENTS], start=1)
        ]
        text = load_prompt("read_answer").fill(
            question=quote("question", question), documents=quote("documents", "\n\n".join(rows))
        )
        reply = self._client.complete(ChatRequest((Message("user", text),), max_tokens=MAX_TOKENS), "reader")
        answer = exact_answer(reply.text)
        if answer is None:
            raise ChatFailure("wrong answer", f"{self._client.id}: the reply has no line 'Exact Answer: ...'")
        return None if answer.casefold().strip(" .\"'") == NO_CANDIDATE else answer


class AnswerJudge:
    """Says whether an answer is the reference."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    @property
    def id(self) -> str:
        """Model and version of the prompt."""
        return f"{self._client.id} {load_prompt('judge_answer').version}"

    def judge(self, question: str, response: str, reference: str) -> Judged:
        """Compare a response, an answer alone or one in the form of BrowseComp-Plus, with the reference.

        Raises:
            ChatFailure: no reply, or none that could be read.
        """
        text = load_prompt("judge_answer").fill(
            question=quote("question", question),
            reference=quote("reference", reference),
            response=quote("response", response),
        )
        request = ChatRequest((Message("user", text),), max_tokens=MAX_TOKENS)
        return self._client.ask(request, Judged, "judge").answer


class MatchJudge:
    """Says whether an answer is the reference but for case, punctuation, articles and white space (as in SQuAD)."""

    @property
    def id(self) -> str:
        """Its name."""
        return "match"

    def judge(self, question: str, response: str, reference: str) -> Judged:
        """Compare an answer alone with the reference."""
        same = normalised(response) == normalised(reference) != ""
        return Judged(response, "the same words" if same else "other words", same)


class AnswerProber:
    """Adds probes to the searches of logged runs. Safe to share between threads, a run each.

    Args:
        reader: answers.
        judge: compares the answers with references; None leaves them unjudged.
        anew: probe every search, in place of the probes that a run has; else only the searches that have none.

    Attributes:
        failures: by kind; a step whose reader failed has no probe, one whose judge failed has one that is not judged.
    """

    def __init__(self, reader: Reader, judge: Judge | None = None, *, anew: bool = False) -> None:
        self._reader = reader
        self._judge = judge
        self._anew = anew
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()

    def probe(self, run: Trajectory) -> Trajectory:
        """The run with probes; judged where ``meta`` holds a reference answer. Who probed is noted in ``meta``.

        Pages opened after a search count from the next search on, as they do for the signals.
        """
        reference = run.meta.get("reference_answer")
        seen: dict[str, Document] = {}
        steps: list[Step] = []
        asked = False
        for step in run.steps:
            seen |= {document.id: document for document in step.documents}
            probed = step
            if step.kind == "search" and (self._anew or step.answer_probe is None):
                probed = replace(step, answer_probe=self._probe(run.question, list(seen.values()), reference))
                asked = True
            steps.append(probed)
        if not asked:
            return run
        by = {"reader": self._reader.id, "judge": None if self._judge is None else self._judge.id}
        return replace(run, steps=tuple(steps), meta={**run.meta, PROBED_BY: by})

    def _probe(self, question: str, documents: Sequence[Document], reference: object) -> AnswerProbe | None:
        try:
            answer = self._reader.read(question, documents)
        except ChatFailure as failure:
            self._count(failure)
            return None
        if answer is None or self._judge is None or not isinstance(reference, str):
            return AnswerProbe(answer)
        try:
            return AnswerProbe(answer, self._judge.judge(question, answer, reference).correct)
        except ChatFailure as failure:
            self._count(failure)
            return AnswerProbe(answer)

    def _count(self, failure: ChatFailure) -> None:
        with self._lock:
            self.failures[failure.kind] += 1


def normalised(answer: str) -> str:
    """An answer without case, punctuation, articles and surplus white space."""
    plain = re.sub(r"[^\w\s]|_", " ", answer.casefold())
    return " ".join(word for word in plain.split() if word not in ("a", "an", "the"))


def exact_answer(text: str) -> str | None:
    """What stands behind the last "Exact Answer:" of a reply; None without one."""
    found = _EXACT.findall(text)
    return found[-1].strip() if found else None
