"""The critical re-thinker as a language model ([RAAC] 4.2): why is the search stuck, and what else could be tried?"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stopwise.data.corpus import Query
from stopwise.data.records import Step
from stopwise.envs.arena.agents import Turn
from stopwise.envs.arena.loop import Injection
from stopwise.envs.arena.rethinkers import content_words
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt, quote

ALIKE = 0.8  # Jaccard similarity of the content words from which two queries are the same search
TURNS = 30  # of the trail that the model is shown, the latest
MAX_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Rethought:
    """What the model replies."""

    critique: str
    query: str


class LLMRethinker:
    """A `Rethinker`. When the model brings no usable query, there is no injection, and the failure is counted.

    Attributes:
        failures: by kind.
    """

    def __init__(self, client: ChatClient, temperature: float = 0.0) -> None:
        self._client = client
        self._temperature = temperature
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()

    @property
    def id(self) -> str:
        """Model and version of the prompt."""
        return f"llm({self._client.id} {load_prompt('rethink').version})"

    def propose(self, question: Query, steps: Sequence[Step], run_id: str) -> Injection | None:
        """See `Rethinker.propose`; nothing depends on `run_id`: equal histories get equal proposals."""
        earlier = [query for step in steps if step.kind == "search" for query in step.queries]

        def check(answer: Rethought) -> str | None:
            if not answer.query.strip():
                return "the query is empty"
            same = next((query for query in earlier if alike(query, answer.query)), None)
            return None if same is None else f"the query {answer.query!r} is too much like {same!r}, tried before"

        text = load_prompt("rethink").fill(
            question=quote("question", question.text), trail=quote("trail", trail_of(steps))
        )
        request = ChatRequest((Message("user", text),), max_tokens=MAX_TOKENS, temperature=self._temperature)
        try:
            answer = self._client.ask(request, Rethought, "rethinker", check).answer
        except ChatFailure as failure:
            with self._lock:
                self.failures[failure.kind] += 1
            return None
        return Injection(Turn("search", answer.critique.strip(), (" ".join(answer.query.split()),)))


def trail_of(steps: Sequence[Step]) -> str:
    """The latest turns: what was thought, what was searched, and the titles that came back."""
    rows = []
    searches = [step for step in steps if step.kind == "search"]
    for number, step in enumerate(searches, start=1):
        titles = "; ".join(document.title or document.id for document in step.documents) or "nothing"
        thought = f"{step.thought.strip()} " if step.thought else ""
        rows.append(f"{number}. {thought}Searched: {' | '.join(step.queries)}. Found: {titles}")
    return "\n".join(rows[-TURNS:]) or "Nothing was searched yet."


def alike(one: str, other: str) -> bool:
    """Whether two queries are the same search in other order or with other small words."""
    first, second = set(content_words(one)), set(content_words(other))
    if not first or not second:
        return one.strip().casefold() == other.strip().casefold()
    return len(first & second) >= ALIKE * len(first | second)
