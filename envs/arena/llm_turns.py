"""What agents that a language model drives have in common: reading a turn, and making the loop's record of it.

A turn is read by this rule: the first line that begins with "Search:" or "Answer:" says what is done, further "Search:"
lines right below it are sent in parallel, what stands above is the thought, and the rest is left out.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stopwise.data.records import Logprobs
from stopwise.envs.arena.agents import Turn
from stopwise.models.chat import ChatReply, logprobs_between

TOP_LOGPROBS = 20  # a position, where the model returns that many
NO_CANDIDATE = "no candidate"
_LINE = re.compile(r"^[ \t]*(?:\*\*)?(Search|Answer)(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn as it was read."""

    thought: str  # without white space behind it
    queries: tuple[str, ...] = ()
    answer: str | None = None


def read_turn(text: str) -> ReadTurn | None:
    """Read a turn by the rule above; None when it has no marked line with something on it."""
    marked = [match for match in _LINE.finditer(text) if plain(match[2])]
    if not marked:
        return None
    first = marked[0]
    thought = text[: first.start()].rstrip()
    if first[1].lower() == "answer":
        return ReadTurn(thought, answer=plain(first[2]))
    queries, reached = [], first.start()
    for match in marked:
        if match[1].lower() != "search" or text[reached : match.start()].strip():
            break
        queries.append(plain(match[2]))
        reached = match.end()
    return ReadTurn(thought, tuple(queries))


def plain(text: str) -> str:
    """Without the decoration that models like to put around a line."""
    bare = text.strip().strip("*").strip()
    return bare[1:-1].strip() if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'`" else bare


def last_sentence(text: str) -> str:
    """The last sentence or line of a text, at most 200 characters of it."""
    sentences = [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text.strip()) if part.strip()]
    return sentences[-1][:200]


def thought_logprobs(reply: ChatReply, thought: str) -> Logprobs | None:
    """Log-probabilities of the thought's tokens; None where the model returns none, or there is no thought."""
    if reply.logprobs is None:
        return None
    start = len(thought) - len(thought.lstrip())
    kept = logprobs_between(reply.logprobs, start, len(thought))
    return Logprobs(top=tuple(position.top for position in kept)) if kept else None


def made_turn(
    kind: Literal["search", "answer", "failed"],
    thought: str,
    replies: Sequence[ChatReply],
    queries: tuple[str, ...] = (),
    answer: str | None = None,
    logprobs: Logprobs | None = None,
) -> Turn:
    """A turn with what its replies cost."""
    return Turn(
        kind,
        thought,
        queries,
        answer,
        logprobs,
        tokens_in=sum(reply.usage.prompt for reply in replies),
        tokens_out=sum(reply.usage.completion for reply in replies),
        seconds=sum(reply.seconds for reply in replies),
    )


def read_candidate(text: str) -> str | None:
    """The answer of the last "Answer:" line; None for "no candidate", and without such a line."""
    answers = [match[2] for match in _LINE.finditer(text) if match[1].lower() == "answer"]
    answer = plain(answers[-1]) if answers else ""
    return None if not answer or answer.casefold().rstrip(".") == NO_CANDIDATE else answer


def sample_of(*place: object) -> int:
    """The number of a draw, from where in which run it is made."""
    digest = hashlib.sha256("/".join(map(str, place)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:3], "big")
