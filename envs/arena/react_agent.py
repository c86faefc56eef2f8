"""A ReAct agent driven by a language model: it thinks, searches, reads, and answers when it is ready.

Its conversation is a `stopwise.models.transcript.Transcript`, the same form in which logged thoughts are scored. How a
turn is read stands in `stopwise.envs.arena.llm_turns`.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from stopwise.data.errors import UsageError
from stopwise.data.records import Document, Step
from stopwise.envs.arena.agents import SEARCH_CAP, Turn
from stopwise.envs.arena.llm_turns import (
    TOP_LOGPROBS,
    ReadTurn,
    last_sentence,
    made_turn,
    read_candidate,
    read_turn,
    sample_of,
    thought_logprobs,
)
from stopwise.models.chat import ChatFailure, ChatReply, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt
from stopwise.models.transcript import Transcript, Window


@dataclass(frozen=True, slots=True)
class ReactConfig:
    """How a ReAct agent is run."""

    name: str = "react"  # kind of agent in the logs
    max_searches: int = 40  # then it is cut
    max_tokens: int = 400  # of a turn
    max_parallel: int = 3  # queries of one turn, at most
    temperature: float = 0.0
    seed: int = 0
    window: Window = field(default_factory=Window)
    # after a turn without a marked line the model is reminded once, then the run fails; or the turn's last sentence
    # is searched for, so that models too small to follow a form can be run
    unmarked: Literal["remind", "search"] = "remind"

    def __post_init__(self) -> None:
        if not 1 <= self.max_searches <= SEARCH_CAP:
            raise UsageError(f"agent {self.name}: max_searches {self.max_searches}; expected 1 to {SEARCH_CAP}")
        if self.max_tokens < 1 or self.max_parallel < 1:
            raise UsageError(f"agent {self.name}: max_tokens and max_parallel; expected at least 1 each")


class ReactAgent:
    """One run of the agent; see `stopwise.envs.arena.agents.Agent`.

    Args:
        client: calls the model.
        question: the question's text.
        config: how it is run.
        seed: of the run; matters where the temperature is above 0.
    """

    def __init__(self, client: ChatClient, question: str, config: ReactConfig | None = None, seed: str = "") -> None:
        self._config = config or ReactConfig()
        self.kind = self._config.name
        self._client = client
        self._seed = seed
        self._transcript = Transcript(question, self._config.window)
        self._searches = 0
        self._turns = 0
        self._pending: Turn | None = None  # a search whose results it waits for, or a refused answer

    def turn(self) -> Turn:
        """Ask the model for the next turn; a failed call ends the run."""
        if self._searches >= self._config.max_searches:
            return Turn("cut", "My budget is used up.")
        self._turns += 1
        messages = self._transcript.messages
        replies: list[ChatReply] = []
        try:
            read = self._ask(messages, replies)
            if read is None and self._config.unmarked == "remind":
                reminder = Message("user", load_prompt("turn_reminder").text)
                read = self._ask((*messages, Message("assistant", replies[-1].text), reminder), replies)
        except ChatFailure as failure:
            return made_turn("failed", f"The model did not answer: {failure.kind}.", replies)
        if read is None:
            text = replies[-1].text
            if self._config.unmarked == "remind":
                return made_turn(
                    "failed", f"The model said neither what to search nor an answer: {text.strip()}", replies
                )
            read = ReadTurn(text.rstrip(), (last_sentence(text),))
        logprobs = thought_logprobs(replies[-1], read.thought)
        if read.answer is not None:
            turn = made_turn("answer", read.thought, replies, answer=read.answer, logprobs=logprobs)
        else:
            queries = tuple(dict.fromkeys(read.queries))[: self._config.max_parallel]
            turn = made_turn("search", read.thought, replies, queries=queries, logprobs=logprobs)
        self._pending = turn
        return turn

    def observe(self, documents: Sequence[Document]) -> None:
        """Read what the last search brought."""
        assert self._pending is not None
        self._add(self._pending, documents)
        self._pending = None

    def intervene(self, turn: Turn, documents: Sequence[Document], redirects: bool = True) -> None:
        """Read the injected turn and its results as if they were its own ([RAAC] 4.2)."""
        self._pending = None
        self._add(turn, documents)

    def probe(self, history: Sequence[Step]) -> str | None:
        """The answer that it would give now, asked on a branch that the run does not see ([RAAC] 3.2).

        Raises:
            ChatFailure: the model brought no answer.
        """
        *before, last = self._transcript.messages
        asked = Message(last.role, f"{last.content}\n\n{load_prompt('answer_now').text}")
        reply = self._client.complete(self._request((*before, asked), logprobs=False), "reader")
        return read_candidate(reply.text)

    def send_on(self) -> None:
        """Its attempt to answer was refused, and it is told so."""
        if self._pending is not None and self._pending.answer is not None:
            turn, self._pending = self._pending, None
            self._transcript.add(Step("other", turn.thought, (turn.answer or "",)))

    def fork(self, seed: str | None = None) -> "ReactAgent":
        """See `Agent.fork`."""
        other = copy.copy(self)
        other._transcript = self._transcript.copy()
        if seed is not None:
            other._seed = seed
        return other

    def _add(self, turn: Turn, documents: Sequence[Document]) -> None:
        self._transcript.add(Step("search", turn.thought, turn.queries, tuple(documents)))
        self._searches += 1

    def _ask(self, messages: Sequence[Message], replies: list[ChatReply]) -> ReadTurn | None:
        replies.append(self._client.complete(self._request(messages, logprobs=True), "agent"))
        return read_turn(replies[-1].text)

    def _request(self, messages: Sequence[Message], *, logprobs: bool) -> ChatRequest:
        config = self._config
        hot = config.temperature > 0
        return ChatRequest(
            tuple(messages),
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            stop=("<results>",),  # a model that invents its results is stopped there
            seed=config.seed,
            sample=sample_of(self._seed, self._turns) if hot else 0,  # greedy runs with one past share their replies
            top_logprobs=min(TOP_LOGPROBS, self._client.abilities.top_logprobs) if logprobs else 0,
        )
