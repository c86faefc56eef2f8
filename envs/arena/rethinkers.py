"""Rethinkers: what is searched in the agent's place when a controller intervenes.

They see what a live one would see: the question, its criteria, and the run so far. No gold, no hidden belief.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stopwise.data.corpus import Query
from stopwise.data.errors import UsageError
from stopwise.data.records import Step
from stopwise.envs.arena.agents import Turn
from stopwise.envs.arena.chance import Chance
from stopwise.envs.arena.loop import Injection
from stopwise.envs.arena.moves import FUNCTION_WORDS

EXPLORED = 0.5  # share of a criterion's words that one query holds: that criterion was searched for


class Rethinker(Protocol):
    """Proposes a search."""

    @property
    def id(self) -> str:
        """Names it in results."""
        ...

    def propose(self, question: Query, steps: Sequence[Step], run_id: str) -> Injection | None:
        """The search to make next, or None when it knows none; `run_id` seeds its random numbers."""
        ...


@dataclass(frozen=True, slots=True)
class HeuristicRethinker:
    """Searches for the criterion that the run has looked at least, if possible beside a name not yet followed up.

    Attributes:
        quality: probability that it picks that criterion rather than any.
        harm: probability that it follows a name off the question instead.
        seed: of its random numbers.
    """

    quality: float = 0.8
    harm: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("quality", self.quality), ("harm", self.harm)):
            if not 0 <= value <= 1:
                raise UsageError(f"rethinker.{name}: {value}; expected a probability")

    @property
    def id(self) -> str:
        """Kind and parameters."""
        return f"heuristic(quality={self.quality:g}, harm={self.harm:g})"

    def propose(self, question: Query, steps: Sequence[Step], run_id: str) -> Injection:
        """See `Rethinker.propose`."""
        chance = Chance(f"rethink/{self.seed}/{run_id}/{len(steps)}")
        names = unexplored_names(steps)
        if names and chance.uniform("harm") < self.harm:
            name = names[int(chance.uniform("name") * len(names))]
            return _injection(f"Something else: what is known about {name}?", name)
        criteria = criteria_of(question)
        effort = [criterion_effort(criterion, steps) for criterion in criteria]
        if chance.uniform("quality") < self.quality:
            number = min(range(len(criteria)), key=lambda index: (effort[index], index))
        else:
            number = int(chance.uniform("criterion") * len(criteria))
        criterion = " ".join(content_words(criteria[number]))
        beside = [name for name in names if chance.uniform("beside", name) < 0.5][:1] if effort[number] else []
        thought = f"The search is stuck. '{criteria[number]}' has had too little attention, so I look for that now."
        return _injection(thought, " ".join([*beside, criterion]))


@dataclass(frozen=True, slots=True)
class RandomRethinker:
    """The control at equal cost: a query drawn from a fixed pool that has nothing to do with the run.

    It costs what an intervention costs, and tells the agent nothing.
    """

    pool: tuple[str, ...]  # queries
    seed: int = 0
    redirects: bool = False  # whether the agent is told to change course all the same

    def __post_init__(self) -> None:
        if not self.pool:
            raise UsageError("rethinker.pool: holds no queries; expected at least one")

    @property
    def id(self) -> str:
        """Kind and parameters."""
        return "random+redirect" if self.redirects else "random"

    def propose(self, question: Query, steps: Sequence[Step], run_id: str) -> Injection:
        """See `Rethinker.propose`."""
        number = int(Chance(f"random/{self.seed}/{run_id}/{len(steps)}").uniform("query") * len(self.pool))
        return Injection(Turn("search", "A random search.", (self.pool[number],)), self.redirects)


def criteria_of(question: Query) -> tuple[str, ...]:
    """The question's criteria as texts; without any, its sentences."""
    if question.criteria:
        return tuple(criterion.text for criterion in question.criteria)
    sentences = tuple(sentence for sentence in re.split(r"(?<=[.?!])\s+", question.text.strip()) if sentence)
    return sentences or (question.text,)


def criterion_effort(criterion: str, steps: Sequence[Step]) -> int:
    """How many searches of the run were about a criterion: those with half of its words."""
    wanted = set(content_words(criterion))
    return sum(
        any(len(wanted & set(content_words(query))) >= EXPLORED * len(wanted) for query in step.queries)
        for step in steps
        if step.kind == "search" and len(step.queries) and step.queries[0] != _whole_question(steps)
    )


def unexplored_names(steps: Sequence[Step]) -> list[str]:
    """Titles of results that no query has named, the most frequent first; ties in the order of their coming."""
    asked = " ".join(query for step in steps for query in step.queries).lower()
    counts: dict[str, int] = {}
    for step in steps:
        for document in step.documents:
            name = plain_title(document.title or "")
            if name and name.lower() not in asked:
                counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: -counts[name])


def plain_title(title: str) -> str:
    """What a title is about, as far as its form tells: without brackets and what follows a colon."""
    return re.sub(r"\s*\(.*?\)", "", title).split(":")[0].strip()


def content_words(text: str) -> list[str]:
    """Lower-case words that carry meaning, in order."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in FUNCTION_WORDS | {"asked"}]


def _whole_question(steps: Sequence[Step]) -> str:
    """The first query, which is the question itself for most agents and would count for every criterion."""
    return next((step.queries[0] for step in steps if step.queries), "")


def _injection(thought: str, query: str) -> Injection:
    return Injection(Turn("search", thought, (query,)))
