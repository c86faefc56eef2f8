"""Questions of the generated world: unnamed entities, joined by relations, told only by clues.

A question asks for one of 3 to 5 *variables*. Its clues are relations between them and attributes of them, and every
clue is a criterion whose gold is the documents that state it. How many entities fit an attribute clue is its
ambiguity, known exactly from a count over the whole world.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stopwise.data.world.graph import Block, Entity, Fact
from stopwise.data.world.vocabulary import Vocabulary

# Key of an attribute clue in the count: type, attribute, value (or decade), circumstance or None.
ClueKey = tuple[str, str, int, int | None]


@dataclass(frozen=True, slots=True)
class QuestionConfig:
    """What questions look like."""

    specific_share: float = 0.8  # probability that a topic clue names its circumstance too
    max_ambiguity: int = 40  # entities that may fit a clue; broader clues are made specific or dropped
    anchor_ambiguity: int = 3  # every question has a topic clue that at most so many entities fit
    max_clues: int = 8
    forward_share: float = 0.6  # probability that the next variable is an object rather than a subject


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing that the question says of a variable."""

    variable: int  # the subject; variable 0 is asked for
    fact: Fact  # of the subject's entity
    specific: bool  # for topics: the circumstance is told too
    to: int | None  # variable that a relation points to
    ambiguity: int | None  # entities in the world that fit an attribute clue; None for relations


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A question over one block."""

    variables: tuple[Entity, ...]  # the hidden entities; the first is asked for
    clues: tuple[Clue, ...]

    @property
    def signature(self) -> tuple[tuple[int, str, bool], ...]:
        """Equal for questions that tell the same facts as precisely, in the same order."""
        return tuple((self.variables[clue.variable].index, clue.fact.key, clue.specific) for clue in self.clues)


def clue_keys(entity: Entity) -> Iterator[ClueKey]:
    """The attribute clues that fit an entity, for the count over the world."""
    for fact in entity.facts.values():
        if fact.value is None:
            continue
        if fact.circumstance is None:
            yield entity.type.key, fact.key, fact.value // 10 * 10, None
        else:
            yield entity.type.key, fact.key, fact.value, None
            yield entity.type.key, fact.key, fact.value, fact.circumstance


def draw_question(
    block: Block, counts: Mapping[ClueKey, int], rng: random.Random, config: QuestionConfig
) -> DrawnQuestion | None:
    """Draw one question; None when the draw made none that is well formed and has a single answer in its block.

    Args:
        block: where its variables come from.
        counts: how many entities of the world fit each attribute clue.
        rng: source of all choices.
        config: shares and limits.
    """
    variables = [rng.choice(block.entities)]
    clues: list[Clue] = []
    for _ in range(rng.choice((2, 2, 3, 3, 4))):
        subject_or_object = rng.choice(variables[-2:])
        step = _hop(block, variables, subject_or_object, rng, config)
        if step is not None:
            clues.append(step)
    if len(variables) < 3:
        return None
    for number, entity in enumerate(variables):
        clues.extend(_attribute_clues(number, entity, counts, rng, config))
    # a year is no anchor, however few entities share it: hardly any retriever finds a decade
    anchored = any(
        clue.specific and clue.ambiguity is not None and clue.ambiguity <= config.anchor_ambiguity for clue in clues
    )
    clues = _in_order(clues)
    if not anchored or not 3 <= len(clues) <= config.max_clues:
        return None
    question = DrawnQuestion(tuple(variables), tuple(clues))
    return question if _answers(block, question) == {variables[0].index} else None


def _hop(
    block: Block, variables: list[Entity], start: Entity, rng: random.Random, config: QuestionConfig
) -> Clue | None:
    """Add a variable that a relation joins to `start`, either way; None when there is none left."""
    position = variables.index(start)
    forward = [
        fact
        for fact in start.facts.values()
        if fact.object is not None and block.entities[fact.object] not in variables
    ]
    backward = [
        (entity, fact)
        for entity in block.entities
        for fact in entity.facts.values()
        if fact.object == start.index and entity not in variables
    ]
    if forward and (not backward or rng.random() < config.forward_share):
        fact = rng.choice(forward)
        assert fact.object is not None
        variables.append(block.entities[fact.object])
        return Clue(position, fact, False, len(variables) - 1, None)
    if backward:
        entity, fact = rng.choice(backward)
        variables.append(entity)
        return Clue(len(variables) - 1, fact, False, position, None)
    return None


def _attribute_clues(
    number: int, entity: Entity, counts: Mapping[ClueKey, int], rng: random.Random, config: QuestionConfig
) -> Iterator[Clue]:
    facts = [fact for fact in entity.facts.values() if fact.value is not None]
    wanted = rng.choice((0, 1)) if number == 0 else rng.choice((1, 1, 2))
    for fact in rng.sample(facts, min(wanted, len(facts))):
        assert fact.value is not None
        kind = entity.type.key
        if fact.circumstance is None:
            specific, ambiguity = False, counts[kind, fact.key, fact.value // 10 * 10, None]
        else:
            broad = counts[kind, fact.key, fact.value, None]
            specific = rng.random() < config.specific_share or broad > config.max_ambiguity
            ambiguity = counts[kind, fact.key, fact.value, fact.circumstance] if specific else broad
        if ambiguity <= config.max_ambiguity:
            yield Clue(number, fact, specific, None, ambiguity)


def _in_order(clues: list[Clue]) -> list[Clue]:
    """Tell the relation that introduces a variable first, then what is known of it."""
    hops = [clue for clue in clues if clue.to is not None]
    told: list[Clue] = [clue for clue in clues if clue.to is None and clue.variable == 0]
    for number, hop in enumerate(hops, start=1):
        told.append(hop)
        told.extend(clue for clue in clues if clue.to is None and clue.variable == number)
    return told


def _answers(block: Block, question: DrawnQuestion) -> set[int]:
    """Indices of the entities of the block that could be variable 0 (backtracking over the clues)."""
    fitting: list[list[Entity]] = []
    for number, variable in enumerate(question.variables):
        own = [clue for clue in question.clues if clue.variable == number and clue.to is None]
        same = (entity for entity in block.entities if entity.type is variable.type)
        fitting.append([entity for entity in same if all(_fits(entity, clue) for clue in own)])
    hops = [clue for clue in question.clues if clue.to is not None]

    def complete(chosen: tuple[Entity, ...]) -> bool:
        number = len(chosen)
        for hop in hops:
            assert hop.to is not None
            if max(hop.variable, hop.to) == number - 1:  # both ends are chosen now
                fact = chosen[hop.variable].facts.get(hop.fact.key)
                if fact is None or fact.object != chosen[hop.to].index:
                    return False
        if number == len(fitting):
            return True
        return any(complete((*chosen, entity)) for entity in fitting[number])

    return {entity.index for entity in fitting[0] if complete((entity,))}


def _fits(entity: Entity, clue: Clue) -> bool:
    fact, wanted = entity.facts.get(clue.fact.key), clue.fact
    if fact is None or fact.value is None or wanted.value is None:
        return False
    if wanted.circumstance is None:
        return fact.value // 10 == wanted.value // 10
    return fact.value == wanted.value and (not clue.specific or fact.circumstance == wanted.circumstance)


def clue_phrase(clue: Clue, entity: Entity, vocabulary: Vocabulary) -> str:
    """The clue as a predicate without its subject; for a relation, the verb that stands before the object."""
    kind = entity.type
    if clue.to is not None:
        return kind.relations[clue.fact.key].clue
    assert clue.fact.value is not None
    if clue.fact.circumstance is None:
        return kind.years[clue.fact.key].clue.format(decade=clue.fact.value // 10 * 10)
    phrase = kind.topics[clue.fact.key][clue.fact.value].clue
    return f"{phrase} {vocabulary.circumstance(clue.fact.circumstance)[0]}" if clue.specific else phrase


def labels(variables: tuple[Entity, ...]) -> tuple[str, ...]:
    """How the question calls its variables: "the person asked for", "the town", "the second film"."""
    totals = Counter(entity.type.noun for entity in variables[1:])
    seen: Counter[str] = Counter()
    names = [f"the {variables[0].type.noun} asked for"]
    for entity in variables[1:]:
        noun = entity.type.noun
        seen[noun] += 1
        if totals[noun] > 1:
            names.append(f"the {('first', 'second', 'third', 'fourth')[seen[noun] - 1]} {noun}")
        elif noun == variables[0].type.noun:
            names.append(f"the other {noun}")
        else:
            names.append(f"the {noun}")
    return tuple(names)
