"""Answer probes for logs that have none: a reader answers from what a run had seen by a step, a judge compares.

The reader is not the agent: its accuracy is that of the documents with this reader, and is reported under its name.
The reply has the form of BrowseComp-Plus answers (Explanation, Exact Answer, Confidence), which the judge reads too.
"""

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stopwise.data.records import AnswerProbe, Document, Step, Trajectory
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt, quote

DOCUMENTS = 30  # that the reader is shown, the latest seen first
DOCUMENT_CHARS = 1000  # of a document's text
MAX_TOKENS = 400
NO_CANDIDATE = "no candidate"
_EXACT = re.compile(r"^[ \t*#-]*Exact Answer[ *]*:[ *]*(.+?)[ *]*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge replies."""

    extracted: str | None
    reasoning: str
    correct: bool


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


class AnswerProber:
    """Adds probes to the searches of logged runs that have none.

    Attributes:
        failures: by kind; a step whose reader failed has no probe, one whose judge failed has one that is not judged.
    """

    def __init__(self, reader: LLMReader, judge: AnswerJudge | None = None) -> None:
        self._reader = reader
        self._judge = judge
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()

    def probe(self, run: Trajectory) -> Trajectory:
        """The run with a probe at each search that had none; judged where ``meta`` holds a reference answer.

        Pages opened after a search count from the next search on, as they do for the signals.
        """
        reference = run.meta.get("reference_answer")
        seen: dict[str, Document] = {}
        steps: list[Step] = []
        for step in run.steps:
            seen |= {document.id: document for document in step.documents}
            probed = step
            if step.kind == "search" and step.answer_probe is None:
                probed = replace(step, answer_probe=self._probe(run.question, list(seen.values()), reference))
            steps.append(probed)
        return replace(run, steps=tuple(steps))

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


def exact_answer(text: str) -> str | None:
    """What stands behind the last "Exact Answer:" of a reply; None without one."""
    found = _EXACT.findall(text)
    return found[-1].strip() if found else None
