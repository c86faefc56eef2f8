"""Entities and facts of the generated world, in blocks that can each be made again from their number alone.

A block is a small neighbourhood: its relations stay inside it, and it belongs to one split, so that no two splits
share an entity or a gold document. Blocks make the world's memory constant: one is held at a time.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from stopwise.data.splits import Split
from stopwise.data.world.vocabulary import EntityType, Vocabulary


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is true of an entity. Exactly one of ``value`` and ``object`` is set."""

    key: str  # name of the topic, year attribute or relation
    value: int | None = None  # number of the topic's wording, or the year
    circumstance: int | None = None  # number of the circumstance (`Vocabulary.circumstance`); topics only
    object: int | None = None  # index, within the block, of the entity that a relation points to


@dataclass(frozen=True, slots=True)
class Entity:
    """A named thing of the world."""

    index: int  # position within its block
    type: EntityType
    name: str
    facts: Mapping[str, Fact]  # by key


@dataclass(frozen=True, slots=True)
class Block:
    """A neighbourhood of entities, all of one split."""

    number: int
    split: Split
    entities: tuple[Entity, ...]


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """What the entity graph looks like."""

    seed: int = 0
    topic_share: float = 0.85  # probability that an entity has a given topic
    relation_share: float = 0.85  # probability that an entity has a given relation
    namesake_share: float = 0.12  # probability that an entity borrows its base name from another of its block
    paired: bool = False  # circumstances come in pairs, as large worlds need; set by the world's size
    twin_share: float = 0.25  # probability that a person who borrows a surname borrows the given name too


def expected_facts(config: GraphConfig, vocabulary: Vocabulary) -> float:
    """Mean number of facts an entity."""
    types = vocabulary.types.values()
    total = sum(
        kind.share
        * (len(kind.topics) * config.topic_share + len(kind.years) + len(kind.relations) * config.relation_share)
        for kind in types
    )
    return total / sum(kind.share for kind in types)


def make_block(number: int, split: Split, size: int, config: GraphConfig, vocabulary: Vocabulary) -> Block:
    """Make one block; the same arguments give the same block.

    Args:
        number: the block's number, from 0.
        split: the split that its questions belong to.
        size: entities in it; at least one of every type is made, so that every relation finds an object.
        config: shares and seed.
        vocabulary: the words.
    """
    rng = random.Random(f"block/{config.seed}/{number}")
    types = _types_of_block(size, vocabulary)
    by_type: dict[str, list[int]] = {}
    for index, kind in enumerate(types):
        by_type.setdefault(kind.key, []).append(index)
    bases = [vocabulary.base_name(number * size + index) for index in range(size)]
    entities: list[Entity] = []
    for index, kind in enumerate(types):
        name = _name(index, kind, entities, bases, rng, config, vocabulary)
        facts: dict[str, Fact] = {}
        for key, wordings in kind.topics.items():
            if rng.random() < config.topic_share:
                facts[key] = Fact(key, rng.randrange(len(wordings)), draw_circumstance(rng, config.paired, vocabulary))
        for key, attribute in kind.years.items():
            facts[key] = Fact(key, rng.randrange(attribute.first, attribute.last))
        for key, relation in kind.relations.items():
            others = [other for other in by_type[relation.to] if other != index]
            if others and rng.random() < config.relation_share:
                facts[key] = Fact(key, object=rng.choice(others))
        entities.append(Entity(index, kind, name, facts))
    return Block(number, split, tuple(entities))


def draw_circumstance(rng: random.Random, paired: bool, vocabulary: Vocabulary) -> int:
    """The number of a circumstance, or of a pair of different ones."""
    single = len(vocabulary.circumstances)
    if not paired:
        return rng.randrange(single)
    first, second = rng.sample(range(single), 2)
    return single + first * single + second


def _types_of_block(size: int, vocabulary: Vocabulary) -> list[EntityType]:
    """One entity of every type, then the type that is furthest below its share."""
    types = list(vocabulary.types.values())
    total = sum(kind.share for kind in types)
    chosen = types[:size]
    counts = {kind.key: 1 for kind in chosen}
    while len(chosen) < size:
        kind = max(types, key=lambda kind: kind.share / total * size - counts.get(kind.key, 0))
        counts[kind.key] = counts.get(kind.key, 0) + 1
        chosen.append(kind)
    return chosen


def _name(
    index: int,
    kind: EntityType,
    earlier: list[Entity],
    bases: list[str],
    rng: random.Random,
    config: GraphConfig,
    vocabulary: Vocabulary,
) -> str:
    base = bases[index]
    if earlier and rng.random() < config.namesake_share:
        model = rng.choice(earlier)
        if kind.key == model.type.key == "person" and rng.random() < config.twin_share:
            return model.name
        base = bases[model.index]
    taken = {entity.name for entity in earlier}
    while True:
        pattern = rng.choice(kind.names)
        name = pattern.format(
            base=base, given=rng.choice(vocabulary.given_names), word=rng.choice(vocabulary.title_words)
        )
        if name not in taken:  # only the twins above share a full name
            return name
        base = bases[index]
