"""Chat with a language model: the records of a call, what a model can do, and how a call can fail.

A chat model is anything with an ``id``, ``abilities`` and ``complete(request)``: an endpoint over HTTP
(`stopwise.models.endpoints`) or a network in this process (`stopwise.models.local_lm`). What every call needs beside
that, the cache, the bounds and the bill, is `stopwise.models.chat_client`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stopwise.data.errors import StopwiseError, UsageError

Role = Literal["system", "user", "assistant"]
Purpose = Literal["agent", "coverage", "controller", "rethinker", "reader", "judge"]

FailureKind = Literal[
    "rate limited",  # 429 until patience ran out
    "server error",  # 5xx
    "timeout",  # no whole answer in time
    "connection",  # nobody there, or the line broke before an answer
    "cut",  # the answer broke off
    "bad JSON",  # the HTTP body is not JSON, or not a chat completion
    "empty choice",  # a completion without text and without tool calls
    "no log-probabilities",  # the server left them out although it is declared to return them
    "refused",  # 4xx: the request itself is wrong, or the key is
    "changed model",  # another model than the one that answered before
    "no JSON in reply",  # the text holds no JSON object
    "wrong schema",  # the JSON object is not what was asked for
    "wrong answer",  # it has the right shape and cannot be meant
]


class ChatFailure(StopwiseError):
    """A call that brought no usable reply.

    Attributes:
        kind: what went wrong; counted by those who go on without the reply.
        usage: tokens that were paid all the same.
        attempts: calls on the wire that it took.
        seconds: wall-clock time that they took when they were really made.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        usage: "Usage | None" = None,
        attempts: int = 0,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.usage = usage or Usage()
        self.attempts = attempts
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call instead of answering in words."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema of its arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model makes."""

    name: str
    arguments: str  # as the model wrote it; meant to be JSON, by no means always is


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call. Two equal requests to one model have one reply: draw another by another `sample`."""

    messages: tuple[Message, ...]
    max_tokens: int = 512  # generated at most
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    stop: tuple[str, ...] = ()  # texts that end the generation; they are not part of the reply
    seed: int = 0  # of sampling, where the model takes one
    sample: int = 0  # number of the draw
    top_logprobs: int = 0  # log-probabilities a position to return; 0 asks for none
    schema: Mapping[str, Any] | None = (
        None  # JSON schema that the reply shall follow, for models that can be held to it
    )
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One generated position."""

    token: str  # its text
    logprob: float  # natural log of its probability
    top: tuple[float, ...]  # natural logs of the most probable tokens' probabilities, highest first


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call."""

    prompt: int = 0  # prompt tokens, cached ones included
    cached: int = 0  # of these, read from the server's prompt cache, which is usually priced lower
    completion: int = 0  # generated tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What came back."""

    text: str
    finish: str  # why it ended: "stop", "length", "tool_calls" or the server's own word
    model: str  # name that the server gives to what answered
    usage: Usage = Usage()
    reasoning: str | None = None  # thinking that the server returns apart from the text
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one a position of `text`; None when not asked for
    seconds: float = 0.0  # wall-clock time of the call when it was really made
    attempts: int = 1  # calls on the wire that it took


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model's server can do beyond messages in, text out. A request that asks for more is refused by name."""

    top_logprobs: int = 0  # log-probabilities a position at most; 0: none
    structured: Literal["schema", "object", "none"] = "none"  # replies held to a JSON schema, to any object, to nothing
    bounded: bool = False  # schemas get bounds of texts and lists, since the model may find no end by itself
    tools: bool = False
    seed: bool = False  # takes a seed of sampling


class ChatModel(Protocol):
    """What the rest of stopwise needs of a language model."""

    @property
    def id(self) -> str:
        """Identifies the model and where it runs; part of every cache key and of every result. Holds no secret."""
        ...

    @property
    def abilities(self) -> Abilities:
        """What may be asked of it."""
        ...

    def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call.

        Raises:
            ChatFailure: it brought no usable reply.
            UsageError: the request needs an ability that the model lacks.
        """
        ...


def check_request(model: ChatModel, request: ChatRequest) -> None:
    """Refuse what the model's server would refuse or, worse, leave out in silence.

    Raises:
        UsageError: the request needs an ability that the model lacks.
    """
    can = model.abilities
    lacking = None
    if request.top_logprobs > can.top_logprobs:
        lacking = f"{request.top_logprobs} log-probabilities a position (it returns {can.top_logprobs})"
    elif request.schema is not None and can.structured == "none":
        lacking = "replies held to a JSON schema"
    elif request.tools and not can.tools:
        lacking = "tools"
    if lacking is not None:
        raise UsageError(
            f"model {model.id}: does not offer {lacking}; set the endpoint's `server` or `abilities` if it does"
        )


def logprobs_between(logprobs: Sequence[TokenLogprobs], start: int, end: int) -> tuple[TokenLogprobs, ...]:
    """The positions of a reply whose tokens share a character with ``text[start:end]``.

    A position without text of its own is a further piece of the character before it.
    """
    kept: list[TokenLogprobs] = []
    reached, inside = 0, False
    for position in logprobs:
        if position.token:
            inside = reached < end and reached + len(position.token) > start
        if inside:
            kept.append(position)
        reached += len(position.token)
    return tuple(kept)
