"""A plan-and-write agent driven by a language model: it plans, searches, and works from its notes.

First it breaks the question into parts. After each search it writes what the results bring into a memory bank, adding
parts to the plan where they show that something else has to be found out. Documents are shown for that once: every
further turn, and the answer, is made from plan and notes alone: the outline-guided search around a memory bank of
*WebWeaver* ([RAAC] 2), in our own words. So its prompts stay short however long it searches.

What it wrote between two searches (plan, notes, thought) is the thought of the second one, with the log-probabilities
of all of it. Its prompts are its own, not the `stopwise.models.transcript.Transcript` in which logs are scored: scored
reasoning entropies of its runs are those of another conversation.
"""

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from stopwise.data.errors import UsageError
from stopwise.data.records import Document, Logprobs, Step
from stopwise.envs.arena.agents import SEARCH_CAP, Turn
from stopwise.envs.arena.llm_turns import (
    TOP_LOGPROBS,
    ReadTurn,
    last_sentence,
    made_turn,
    plain,
    read_candidate,
    read_turn,
    sample_of,
    thought_logprobs,
)
from stopwise.models.chat import ChatFailure, ChatReply, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt, quote
from stopwise.models.transcript import show_results

MAX_PARTS = 12  # of a plan; further ones are left out
NOTHING = ("nothing", "none")  # a note that says so is no note
_LINE = re.compile(
    r"^[ \t]*(?:[-*]|\d+[.)])?[ \t]*(?:\*\*)?(Part|Note)(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(.*)$",
    re.IGNORECASE | re.MULTILINE,
)


Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class PlanWriteConfig:
    """How a plan-and-write agent is run."""

    name: str = "plan_write"  # kind of agent in the logs
    max_searches: int = 40  # then it is cut
    max_tokens: int = 400  # of a reply
    max_parallel: int = 3  # queries of one turn, at most
    temperature: float = 0.0
    seed: int = 0
    document: int = 500  # characters of a document's text that notes are taken from
    bank: int = 8000  # characters of notes that it is shown, the latest
    trail: int = 30  # searches that it is shown, the latest
    # after a reply without a marked line the model is reminded once, then the run fails; or the reply is taken as it is
    # (its lines as parts, all of it as a note, its last sentence as a query), for models too small to follow a form
    unmarked: Literal["remind", "take"] = "remind"

    def __post_init__(self) -> None:
        if not 1 <= self.max_searches <= SEARCH_CAP:
            raise UsageError(f"agent {self.name}: max_searches {self.max_searches}; expected 1 to {SEARCH_CAP}")
        for field in ("max_tokens", "max_parallel", "document", "bank", "trail"):
            if getattr(self, field) < 1:
                raise UsageError(f"agent {self.name}: {field} {getattr(self, field)}; expected at least 1")


@dataclass(frozen=True, slots=True)
class _Results:
    """What searches brought and was not written up yet."""

    documents: tuple[Document, ...]
    seed: str  # of the run when it came: a fork takes the same notes


class Unmarked(ChatFailure):
    """A reply without a line of the form that was asked for, after a reminder."""


class PlanWriteAgent:
    """One run of the agent; see `stopwise.envs.arena.agents.Agent`.

    Args:
        client: calls the model.
        question: the question's text.
        config: how it is run.
        seed: of the run; matters where the temperature is above 0.

    Attributes:
        plan: the parts of the question; empty until the first turn.
        notes: the memory bank, oldest first.
    """

    def __init__(
        self, client: ChatClient, question: str, config: PlanWriteConfig | None = None, seed: str = ""
    ) -> None:
        self._config = config or PlanWriteConfig()
        self.kind = self._config.name
        self.plan: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._client = client
        self._question = question.strip()
        self._seed = seed
        self._trail: tuple[str, ...] = ()  # a row for each search or refused answer
        self._searches = 0
        self._turns = 0
        self._pending: Turn | None = None  # a search whose results it waits for, or a refused answer
        self._results: _Results | None = None
        self._wrote: tuple[ChatReply, ...] = ()  # replies since the last turn: they belong to the next one's thought
        self._paid: tuple[ChatReply, ...] = ()  # replies of these that were of no use

    def turn(self) -> Turn:
        """Write up what came, then ask the model for the next turn; a failed call ends the run."""
        if self._searches >= self._config.max_searches:
            return Turn("cut", "My budget is used up.")
        self._turns += 1
        replies: list[ChatReply] = []
        try:
            self._catch_up()
            text = load_prompt("plan_turn").fill(**self._state(), searches=self._shown_trail())
            reminder = load_prompt("turn_reminder").text
            read = self._ask(text, reminder, read_turn, replies, "turn", self._turns)
        except Unmarked as failure:
            return made_turn("failed", f"The model did not keep to the form: {failure}", self._spent(replies))
        except ChatFailure as failure:
            return made_turn("failed", f"The model did not answer: {failure.kind}.", self._spent(replies))
        if read is None:
            read = ReadTurn(replies[-1].text.rstrip(), (last_sentence(replies[-1].text),))
        parts = [(reply, reply.text.rstrip()) for reply in self._wrote] + [(replies[-1], read.thought)]
        thought = "\n".join(text for _, text in parts if text)
        logprobs, spent = _joined(parts), self._spent(replies)
        if read.answer is not None:
            turn = made_turn("answer", thought, spent, answer=read.answer, logprobs=logprobs)
        else:
            queries = tuple(dict.fromkeys(read.queries))[: self._config.max_parallel]
            turn = made_turn("search", thought, spent, queries=queries, logprobs=logprobs)
        self._wrote, self._paid, self._pending = (), (), turn
        return turn

    def observe(self, documents: Sequence[Document]) -> None:
        """Take what the last search brought; it is written up when the next reply is needed."""
        assert self._pending is not None
        self._take(f"Searched: {' | '.join(self._pending.queries)}", documents)
        self._pending = None

    def intervene(self, turn: Turn, documents: Sequence[Document], redirects: bool = True) -> None:
        """Take the results of an injected turn, whose thought it reads beside the searches ([RAAC] 4.2)."""
        self._pending = None
        self._take(" ".join(f"{turn.thought.strip()} Searched: {' | '.join(turn.queries)}".split()), documents)

    def probe(self, history: Sequence[Step]) -> str | None:
        """The answer that it would give now from its notes, on a branch that the run does not see ([RAAC] 3.2).

        Raises:
            ChatFailure: the model brought no answer, or could not write up what came before it.
        """
        self._catch_up()
        asked = Message("user", load_prompt("plan_answer").fill(**self._state()))
        request = self._request((asked,), "answer", self._turns, logprobs=False)
        return read_candidate(self._client.complete(request, "reader").text)

    def send_on(self) -> None:
        """Its attempt to answer was refused, and it is told so."""
        if self._pending is not None and self._pending.answer is not None:
            answer, self._pending = self._pending.answer, None
            self._trail = (*self._trail, f'Answered "{answer}". That is not enough yet: go on searching.')

    def fork(self, seed: str | None = None) -> "PlanWriteAgent":
        """See `Agent.fork`."""
        other = copy.copy(self)  # all that it remembers is immutable
        if seed is not None:
            other._seed = seed
        return other

    def _take(self, row: str, documents: Sequence[Document]) -> None:
        self._trail = (*self._trail, row if documents else f"{row} (nothing was found)")
        if documents:  # with an intervention there are results of two searches to write up
            before = () if self._results is None else self._results.documents
            distinct = {document.id: document for document in (*before, *documents)}
            self._results = _Results(tuple(distinct.values()), self._seed)
        self._searches += 1

    def _catch_up(self) -> None:
        """Plan and write up, where that is due."""
        replies: list[ChatReply] = []
        if not self.plan:
            text = load_prompt("plan_parts").fill(question=self._state()["question"])
            read = self._ask(text, _reminder("Part:"), _parts, replies, "plan")
            taken = replies[-1].text.splitlines() if read is None else read
            self.plan = _distinct(taken)[:MAX_PARTS] or (self._question,)
            self._keep(replies)
        if self._results is not None:
            results, replies = self._results, []
            shown = show_results(results.documents, None, self._config.document)
            text = load_prompt("plan_notes").fill(**self._state(), results=shown)
            read = self._ask(
                text, _reminder("Note: or Part:"), _marked, replies, "notes", self._searches, seed=results.seed
            )
            for mark, line in [("note", " ".join(replies[-1].text.split()))] if read is None else read:
                if mark == "part":
                    self.plan = _distinct((*self.plan, line))[:MAX_PARTS]
                elif line.casefold().strip(" .") not in NOTHING:
                    self.notes = _distinct((*self.notes, line))
            self._results = None
            self._keep(replies)

    def _keep(self, replies: Sequence[ChatReply]) -> None:
        self._wrote, self._paid = (*self._wrote, replies[-1]), (*self._paid, *replies[:-1])

    def _spent(self, replies: Sequence[ChatReply]) -> list[ChatReply]:
        return [*self._wrote, *self._paid, *replies]

    def _state(self) -> dict[str, str]:
        """Question, plan and notes as prompts quote them."""
        plan = "\n".join(f"{number}. {part}" for number, part in enumerate(self.plan, start=1))
        kept: list[str] = []
        for note in reversed(self.notes):
            if kept and sum(map(len, kept)) + len(note) > self._config.bank:
                break
            kept.insert(0, note[: self._config.bank])
        notes = "\n".join(f"- {note}" for note in kept) or "There are no notes yet."
        texts = {"question": self._question, "plan": plan, "notes": notes}
        return {tag: quote(tag, text) for tag, text in texts.items()}

    def _shown_trail(self) -> str:
        return quote("searches", "\n".join(self._trail[-self._config.trail :]) or "Nothing was searched yet.")

    def _ask(
        self,
        text: str,
        reminder: str,
        read: Callable[[str], Read | None],
        replies: list[ChatReply],
        *place: object,
        seed: str | None = None,
    ) -> Read | None:
        """A reply that can be read; None when none could and the last one shall be taken as it is.

        Raises:
            Unmarked: it could not be read, after a reminder.
            ChatFailure: no reply.
        """
        messages = (Message("user", text),)
        replies.append(self._client.complete(self._request(messages, *place, seed=seed), "agent"))
        found = read(replies[-1].text)
        if found is None and self._config.unmarked == "remind":
            messages = (*messages, Message("assistant", replies[-1].text), Message("user", reminder))
            replies.append(self._client.complete(self._request(messages, *place, seed=seed), "agent"))
            found = read(replies[-1].text)
            if found is None:
                self._paid = (*self._paid, *replies)
                replies.clear()
                raise Unmarked("wrong answer", " ".join(self._paid[-1].text.split()))
        return found

    def _request(
        self, messages: Sequence[Message], *place: object, seed: str | None = None, logprobs: bool = True
    ) -> ChatRequest:
        config = self._config
        hot = config.temperature > 0
        return ChatRequest(
            tuple(messages),
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            stop=("<results>",),  # a model that invents its results is stopped there
            seed=config.seed,
            sample=sample_of(self._seed if seed is None else seed, *place) if hot else 0,
            top_logprobs=min(TOP_LOGPROBS, self._client.abilities.top_logprobs) if logprobs else 0,
        )


def _parts(text: str) -> tuple[str, ...] | None:
    """The parts that a plan names; None when it names none."""
    return tuple(line for mark, line in _marked(text) or () if mark == "part") or None


def _marked(text: str) -> tuple[tuple[str, str], ...] | None:
    """Marks and lines of the notes and parts of a reply; None when there is none."""
    found = [(match[1].lower(), plain(match[2])) for match in _LINE.finditer(text)]
    return tuple((mark, line) for mark, line in found if line) or None


def _reminder(marks: str) -> str:
    return load_prompt("lines_reminder").fill(marks=marks)


def _distinct(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines without white space around them, each once, none empty."""
    return tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _joined(parts: Sequence[tuple[ChatReply, str]]) -> Logprobs | None:
    """Log-probabilities of all that was written, one text after the other; None where the model returns none."""
    found = [logprobs for reply, text in parts if (logprobs := thought_logprobs(reply, text)) is not None]
    return Logprobs(top=tuple(row for logprobs in found for row in logprobs.top or ())) if found else None
