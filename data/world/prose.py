"""Documents of the generated world: one fact each, in several forms, among documents that state nothing new."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stopwise.data.corpus import CorpusDocument
from stopwise.data.world.graph import Block, Entity, Fact, draw_circumstance
from stopwise.data.world.vocabulary import Form, Vocabulary

LIST_LENGTH = 6  # names in a list


@dataclass(frozen=True, slots=True)
class ProseConfig:
    """How documents speak."""

    overlap: float = 0.8  # probability that a document also says its fact in the words of the clue
    reprint_share: float = 0.08  # probability that a second document states the fact too


@dataclass(frozen=True, slots=True)
class WorldDocument:
    """A document, and the facts that it truly states."""

    document: CorpusDocument
    states: tuple[tuple[int, str], ...]  # (entity's index, fact's key); empty for distractors
    frame: tuple[str, ...] = ()  # its sentences that state no fact


def write_block(
    block: Block, distractors: int, rng: random.Random, config: ProseConfig, vocabulary: Vocabulary
) -> list[WorldDocument]:
    """All documents of a block, in random order and without ids (the caller numbers them).

    Every fact has a document that states it, some have two. A distractor is a near duplicate of such a document with
    the fact left out, an outdated one that states a wrong value, or a list of names; those are never gold.

    Args:
        block: the entities.
        distractors: how many documents without a true fact to add.
        rng: source of all choices.
        config: how documents speak.
        vocabulary: the words.
    """
    writer = _Writer(block, rng, config, vocabulary)
    documents = [document for entity in block.entities for document in writer.fact_documents(entity)]
    stating = list(documents)
    for number in range(distractors):
        kind = number % 5
        if kind == 4:
            documents.append(writer.name_list(rng.choice(block.entities)))
        elif kind in (1, 3):
            documents.append(writer.outdated(rng.choice(block.entities)))
        else:
            documents.append(writer.near_duplicate(rng.choice(stating)))
    rng.shuffle(documents)
    return documents


class _Writer:
    def __init__(self, block: Block, rng: random.Random, config: ProseConfig, vocabulary: Vocabulary) -> None:
        self._block = block
        self._rng = rng
        self._config = config
        self._vocabulary = vocabulary

    def fact_documents(self, entity: Entity) -> Iterator[WorldDocument]:
        for fact in entity.facts.values():
            for _ in range(2 if self._rng.random() < self._config.reprint_share else 1):
                yield self._document(entity, fact, "fact", true=True)

    def outdated(self, entity: Entity) -> WorldDocument:
        """A document that states a value which is not, or no longer, true."""
        fact = self._rng.choice([fact for fact in entity.facts.values() if fact.object is None])
        return self._document(entity, self._wrong(entity, fact), "outdated", true=False)

    def near_duplicate(self, original: WorldDocument) -> WorldDocument:
        """The same title and frame as `original`, abridged: the sentences that state its fact are gone."""
        metadata = dict(original.document.metadata)
        metadata |= {"kind": "near duplicate", "states": []}
        text = " ".join([*original.frame, "The rest of the text is not preserved."])
        return WorldDocument(CorpusDocument("", text, original.document.title, metadata), ())

    def name_list(self, entity: Entity) -> WorldDocument:
        """A list that names many entities of one type and states nothing about them."""
        same = [other.name for other in self._block.entities if other.type is entity.type]
        names = self._rng.sample(same, min(LIST_LENGTH, len(same)))
        noun = entity.type.noun
        title = f"List of {noun} names, part {self._rng.randrange(1, 100)}"
        text = f"This list gives names only. {noun.capitalize()} entries: {', '.join(names)}. Additions are welcome."
        metadata = {"kind": "list", "form": "list", "about": None, "type": entity.type.key, "mentions": names}
        return WorldDocument(CorpusDocument("", text, title, {**metadata, "states": []}), ())

    def _document(self, entity: Entity, fact: Fact, kind: str, *, true: bool) -> WorldDocument:
        rng = self._rng
        form = rng.choice(self._vocabulary.forms)
        other = rng.choice(self._block.entities)
        title, opening, closing = self._frame(entity, form, other)
        mentions = [other.name] if other.name in closing and other is not entity else []
        object_name = None if fact.object is None else self._block.entities[fact.object].name
        sentences = self._fact_sentences(entity, fact, object_name)
        if kind == "outdated":
            sentences = [f"A directory that has since been corrected has this: {sentences[0]}", *sentences[1:]]
        frame = [opening, closing] if rng.random() < 0.7 else [opening]
        text = " ".join([opening, *sentences, *frame[1:]])
        metadata: dict[str, Any] = {
            "kind": kind,
            "form": form.key,
            "about": entity.name,
            "type": entity.type.key,
            "mentions": mentions if len(frame) > 1 else [],
            "states": [[fact.key, fact.value, fact.circumstance, object_name]],
        }
        states = ((entity.index, fact.key),) if true else ()
        return WorldDocument(CorpusDocument("", text, title, metadata), states, tuple(frame))

    def _frame(self, entity: Entity, form: Form, other: Entity) -> tuple[str, str, str]:
        words = {"name": entity.name, "noun": entity.type.noun, "other": other.name}
        return (
            self._rng.choice(form.titles).format(**words),
            self._rng.choice(form.openings).format(**words),
            self._rng.choice(form.closings).format(**words),
        )

    def _fact_sentences(self, entity: Entity, fact: Fact, object_name: str | None) -> list[str]:
        rng = self._rng
        kind = entity.type
        subject = rng.choice((entity.name, entity.name, f"The {kind.noun}"))  # the opening has named it
        called = rng.choice((entity.name, f"the {kind.noun}"))
        restated = rng.random() < self._config.overlap
        again = rng.choice(("In short, {}.", "It is told that {}.", "Most sources agree that {}.", "Briefly, {}."))
        if object_name is not None:
            relation = kind.relations[fact.key]
            sentence = f"{subject} {rng.choice(relation.documents).format(object=object_name)}."
            plain = f"{called} {relation.clue} {object_name}"
        elif fact.key in kind.years:
            attribute = kind.years[fact.key]
            assert fact.value is not None
            sentence = f"{subject} {rng.choice(attribute.documents).format(year=fact.value)}."
            plain = f"{called} {attribute.clue.format(decade=fact.value // 10 * 10)}"
        else:
            assert fact.value is not None
            assert fact.circumstance is not None
            wording = kind.topics[fact.key][fact.value]
            said, paraphrased = self._vocabulary.circumstance(fact.circumstance)
            circumstance = said if rng.random() < 0.5 else paraphrased
            sentence = f"{subject} {rng.choice(wording.documents)}, {circumstance}."
            plain = f"{called} {wording.clue}" + (f" {said}" if rng.random() < 0.5 else "")
        return [sentence, again.format(plain)] if restated else [sentence]

    def _wrong(self, entity: Entity, fact: Fact) -> Fact:
        rng = self._rng
        assert fact.value is not None
        if fact.key in entity.type.years:
            return Fact(fact.key, fact.value + rng.choice((-40, -30, -20, 20, 30, 40)))
        values = [value for value in range(len(entity.type.topics[fact.key])) if value != fact.value]
        assert fact.circumstance is not None
        paired = fact.circumstance >= len(self._vocabulary.circumstances)
        return Fact(fact.key, rng.choice(values), draw_circumstance(rng, paired, self._vocabulary))
