"""A run as a conversation, in the one form in which language models read it: live agents and scorers alike.

The form only grows at its end, so that one forward pass over a run's conversation scores every thought in it, given
what the agent had read by then. Conversations longer than a window are cut by a rule that looks at the past only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stopwise.data.errors import UsageError
from stopwise.data.records import Document, Step
from stopwise.models.chat import Message
from stopwise.models.prompts import load_prompt, quote

MARKS = {"search": "Search", "open": "Open", "answer": "Answer", "other": "Answer"}  # "other": a refused attempt
NOTHING_FOUND = "Nothing was found."
GO_ON = "That is not enough yet. Go on searching."


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a run is shown. Counted in characters, so that it depends on no tokenizer."""

    document: int = 500  # of a document's text, at most
    conversation: int = 16_000  # of all messages; about 4,000 tokens of English

    def __post_init__(self) -> None:
        if self.document < 1 or self.conversation < 1:
            raise UsageError(f"window: {self.document} and {self.conversation} characters; expected at least 1 each")


WINDOW = Window()  # the default


@dataclass(frozen=True, slots=True)
class Thought:
    """Where a step's thought stands in a conversation."""

    step: int  # number of the step in its run
    message: int  # number of the message that begins with it
    length: int  # its characters, without white space around it


@dataclass(frozen=True, slots=True)
class Passage:
    """A conversation with the thoughts that are to be judged in it."""

    messages: tuple[Message, ...]
    thoughts: tuple[Thought, ...]


class Transcript:
    """The conversation of one run, as it grows.

    When it becomes longer than the window, it starts anew from the question and the latest exchanges that fill at most
    half of the window, the very last one in any case.
    """

    def __init__(self, question: str, window: Window = WINDOW) -> None:
        """Begin with the question."""
        self._window = window
        self._head = (
            Message("system", load_prompt("search_agent").text),
            Message("user", f"Question: {question.strip()}"),
        )
        self._exchanges: list[tuple[Message, Message]] = []  # what the agent said, and what it was shown
        self.restarts = 0  # times that the conversation was cut

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the agent has before it when it thinks next."""
        return (*self._head, *(message for exchange in self._exchanges for message in exchange))

    def add(self, step: Step) -> None:
        """Append a step: the agent's turn and what came back."""
        shown = GO_ON if step.kind == "other" else show_results(step.documents, step.error, self._window.document)
        self._exchanges.append((Message("assistant", turn_text(step)), Message("user", shown)))
        if _length(self.messages) <= self._window.conversation:
            return
        kept: list[tuple[Message, Message]] = []
        room = self._window.conversation // 2
        for exchange in reversed(self._exchanges):
            if kept and _length(self._head) + _length([m for e in (*kept, exchange) for m in e]) > room:
                break
            kept.insert(0, exchange)
        if len(kept) < len(self._exchanges):
            self._exchanges = kept
            self.restarts += 1


def passages(question: str, steps: Sequence[Step], window: Window = WINDOW) -> list[Passage]:
    """The conversations in which the thoughts of a run's searches stand, each thought in exactly one of them."""
    transcript = Transcript(question, window)
    found: list[Passage] = []
    thoughts: list[Thought] = []
    last: tuple[Message, ...] = ()  # up to the last thought
    restarts = 0
    for number, step in enumerate(steps):
        before = transcript.messages
        if transcript.restarts > restarts:
            restarts = transcript.restarts
            if thoughts:
                found.append(Passage(last, tuple(thoughts)))
                thoughts = []
        if step.kind == "search" and step.thought and step.thought.strip():
            thoughts.append(Thought(number, len(before), len(step.thought.strip())))
            last = (*before, Message("assistant", turn_text(step)))
        transcript.add(step)
    if thoughts:
        found.append(Passage(last, tuple(thoughts)))
    return found


def turn_text(step: Step) -> str:
    """A turn as the agent writes it: its thought, then a line for each query.

    White space before the thought stays, if there is any: it is part of what a model wrote, and of what it read next.
    """
    lines = [f"{MARKS[step.kind]}: {' '.join(query.split())}" for query in step.queries]
    thought = (step.thought or "").rstrip()
    return "\n".join([thought, *lines] if thought else lines)


def show_results(documents: Sequence[Document], error: str | None, limit: int) -> str:
    """What the agent is shown after a turn: numbered documents, each cut at `limit` characters."""
    if not documents:
        return f"The tool failed: {error.strip()}" if error else NOTHING_FOUND
    rows = []
    for number, document in enumerate(documents, start=1):
        text = " ".join((document.text or "").split())
        cut = text if len(text) <= limit else f"{text[:limit].rstrip()}..."
        rows.append("\n".join(part for part in (f"[{number}] {document.title or document.id}", cut) if part))
    return quote("results", "\n".join(rows))


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)
