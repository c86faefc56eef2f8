"""Making a generated world: a corpus in BEIR layout with questions, criteria and gold, from a seed.

Two passes over the blocks, each holding one block: the first counts how many entities fit each clue, the second
writes documents and questions. Memory is that of one block and of the vocabulary's clues, whatever the world's size.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stopwise.data.compose import id_in_split
from stopwise.data.corpus import CorpusDocument, CorpusWriter, Query, corpus_writer
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Criterion
from stopwise.data.splits import SHARES, SPLITS, Split
from stopwise.data.world.graph import Block, Entity, GraphConfig, expected_facts, make_block
from stopwise.data.world.prose import ProseConfig, write_block
from stopwise.data.world.questions import (
    Clue,
    ClueKey,
    DrawnQuestion,
    QuestionConfig,
    clue_keys,
    clue_phrase,
    draw_question,
    labels,
)
from stopwise.data.world.vocabulary import Vocabulary, load_vocabulary

SMALLEST_BLOCK, LARGEST_BLOCK = 24, 240  # entities
MAX_BLOCKS_PER_CYCLE = 20  # blocks after which the pattern of splits repeats
PAIRED_FROM = 6000  # entities above which a single circumstance would leave too many that fit
MIN_GOLD, MAX_GOLD = 3, 12  # documents a question
DRAWS_PER_QUESTION = 400  # before the block is called too poor


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """A generated world. The same config gives the same bytes."""

    documents: int = 5000  # exact size of the corpus
    questions: int = 1000
    seed: int = 0
    stating_share: float = 0.84  # of the documents: those that state a fact; the rest are distractors
    graph: GraphConfig = field(default_factory=GraphConfig)  # its seed and pairing are set from `seed` and the size
    prose: ProseConfig = field(default_factory=ProseConfig)
    question: QuestionConfig = field(default_factory=QuestionConfig)


@dataclass(frozen=True, slots=True)
class _Plan:
    graph: GraphConfig
    block_size: int  # entities a block
    splits: tuple[Split, ...]  # of each block
    questions: tuple[int, ...]  # of each block
    distractors: tuple[int, ...]  # documents of each block without a fact
    counts: Counter[ClueKey]


def write_world(folder: Path, config: WorldConfig, progress: Callable[[int, int], None] | None = None) -> None:
    """Write a world to `folder` (BEIR layout), atomically.

    Document metadata holds what the document states, for scripted readers; a query's metadata holds its reference
    answer, its criteria with gold ids, and the structure of its clues. None of it is part of the indexed text.

    Args:
        folder: must not be a file.
        config: size, seed and shape.
        progress: called with (documents written, documents in all) after each block.

    Raises:
        UsageError: the config is out of range, or the folder cannot be written.
        DataError: the world is too small for so many different questions.
    """
    with corpus_writer(folder) as writer:
        _fill(writer, config, progress)


def _fill(writer: CorpusWriter, config: WorldConfig, progress: Callable[[int, int], None] | None) -> None:
    vocabulary = load_vocabulary()
    plan = _plan(config, vocabulary)
    for number in range(len(plan.splits)):
        block = make_block(number, plan.splits[number], plan.block_size, plan.graph, vocabulary)
        rng = random.Random(f"documents/{config.seed}/{number}")
        gold: dict[tuple[int, str], list[str]] = {}
        for written in write_block(block, plan.distractors[number], rng, config.prose, vocabulary):
            document_id = f"d{writer.document_count:06d}"
            for fact in written.states:
                gold.setdefault(fact, []).append(document_id)
            document = written.document
            writer.add_document(CorpusDocument(document_id, document.text, document.title, document.metadata))
        for query in _questions(block, plan, gold, sum(plan.questions[:number]), config, vocabulary):
            writer.add_query(query)
        if progress is not None:
            progress(writer.document_count, config.documents)


def _plan(config: WorldConfig, vocabulary: Vocabulary) -> _Plan:
    """Count the world: entities, blocks, clues, and what each block contributes."""
    if config.documents < 1 or config.questions < 0:
        raise UsageError(f"{config.documents} documents and {config.questions} questions; expected positive numbers")
    per_entity = expected_facts(config.graph, vocabulary) * (1 + config.prose.reprint_share)
    entities = int(config.documents * config.stating_share / per_entity)
    blocks = min(MAX_BLOCKS_PER_CYCLE, entities // SMALLEST_BLOCK)
    while blocks and entities // blocks > LARGEST_BLOCK:
        blocks += MAX_BLOCKS_PER_CYCLE
    if blocks < len(SPLITS):
        smallest = int(len(SPLITS) * SMALLEST_BLOCK * per_entity / config.stating_share) + 1
        raise UsageError(f"{config.documents} documents are too few for a world with all splits; at least {smallest}")
    size = entities // blocks
    if size * blocks > vocabulary.base_names:
        largest = int(vocabulary.base_names * per_entity / config.stating_share)
        raise UsageError(f"{config.documents} documents need more names than there are; at most about {largest}")
    graph = replace(config.graph, seed=config.seed, paired=size * blocks > PAIRED_FROM)
    splits = _splits_of_blocks(blocks)
    counts: Counter[ClueKey] = Counter()
    stating: list[int] = []
    for number, split in enumerate(splits):
        block = make_block(number, split, size, graph, vocabulary)
        counts.update(key for entity in block.entities for key in clue_keys(entity))
        rng = random.Random(f"documents/{config.seed}/{number}")
        stating.append(len(write_block(block, 0, rng, config.prose, vocabulary)))
    spare = config.documents - sum(stating)
    if spare < 0:
        raise DataError(f"the facts fill {sum(stating)} documents, more than the {config.documents} asked for")
    return _Plan(graph, size, splits, _questions_of_blocks(config.questions, splits), _spread(spare, blocks), counts)


def _splits_of_blocks(blocks: int) -> tuple[Split, ...]:
    """Give each split its share of the blocks, at least one, interleaved."""
    pattern: list[Split] = []
    for _ in range(blocks):
        missing: list[Split] = [split for split in SPLITS if split not in pattern]
        if len(missing) >= blocks - len(pattern):
            pattern.append(missing[0])
        else:
            deficits = [SHARES[split] * (len(pattern) + 1) - pattern.count(split) for split in SPLITS]
            pattern.append(SPLITS[deficits.index(max(deficits))])
    return tuple(pattern)


def _questions_of_blocks(questions: int, splits: tuple[Split, ...]) -> tuple[int, ...]:
    """Share the questions among the splits as `SHARES` says, then among the blocks of a split evenly."""
    targets = {split: int(questions * SHARES[split]) for split in SPLITS}
    targets["train"] += questions - sum(targets.values())
    shares = {split: iter(_spread(targets[split], splits.count(split))) for split in SPLITS}
    return tuple(next(shares[split]) for split in splits)


def _spread(total: int, parts: int) -> tuple[int, ...]:
    return tuple(total * (part + 1) // parts - total * part // parts for part in range(parts))


def _questions(
    block: Block,
    plan: _Plan,
    gold: dict[tuple[int, str], list[str]],
    first_number: int,
    config: WorldConfig,
    vocabulary: Vocabulary,
) -> Iterator[Query]:
    rng = random.Random(f"questions/{config.seed}/{block.number}")
    asked: set[tuple[tuple[int, str, bool], ...]] = set()
    for number in range(first_number, first_number + plan.questions[block.number]):
        for _ in range(DRAWS_PER_QUESTION):
            question = draw_question(block, plan.counts, rng, config.question)
            if question is None or question.signature in asked or not _gold_fits(question, gold):
                continue
            asked.add(question.signature)
            yield _query(id_in_split(f"w{number:05d}", block.split), question, gold, rng, vocabulary)
            break
        else:
            raise DataError(
                f"{config.documents} documents do not give {config.questions} different questions; "
                "ask for fewer questions or more documents"
            )


def _gold_fits(question: DrawnQuestion, gold: dict[tuple[int, str], list[str]]) -> bool:
    return MIN_GOLD <= sum(len(_clue_gold(clue, question, gold)) for clue in question.clues) <= MAX_GOLD


def _clue_gold(clue: Clue, question: DrawnQuestion, gold: dict[tuple[int, str], list[str]]) -> list[str]:
    return gold[question.variables[clue.variable].index, clue.fact.key]


def _query(
    question_id: str,
    question: DrawnQuestion,
    gold: dict[tuple[int, str], list[str]],
    rng: random.Random,
    vocabulary: Vocabulary,
) -> Query:
    called = labels(question.variables)
    criteria: list[Criterion] = []
    clues: list[dict[str, Any]] = []
    for clue in question.clues:
        subject = question.variables[clue.variable]
        phrase = clue_phrase(clue, subject, vocabulary)
        sentence = f"{called[clue.variable]} {phrase}" + (f" {called[clue.to]}" if clue.to is not None else "")
        documents = tuple(sorted(_clue_gold(clue, question, gold)))
        criteria.append(Criterion(sentence[0].upper() + sentence[1:] + ".", documents))
        clues.append(_clue_record(clue, phrase))
    answer = question.variables[0]
    lead = rng.choice(
        (
            "Which {noun} is meant?",
            "What is the name of the {noun} asked for?",
            "Name the {noun} that fits all of this.",
            "I am trying to identify a {noun}.",
        )
    ).format(noun=answer.type.noun)
    return Query(
        id=question_id,
        text=" ".join([lead, *(criterion.text for criterion in criteria)]),
        answer=answer.name,
        criteria=tuple(criteria),
        gold_ids=tuple(sorted({document for criterion in criteria for document in criterion.gold_ids or ()})),
        metadata={"variables": [_variable_record(entity) for entity in question.variables], "clues": clues},
    )


def _variable_record(entity: Entity) -> dict[str, str]:
    return {"type": entity.type.key, "noun": entity.type.noun, "name": entity.name}


def _clue_record(clue: Clue, phrase: str) -> dict[str, Any]:
    value = clue.fact.value
    if value is not None and clue.fact.circumstance is None:
        value = value // 10 * 10
    return {
        "variable": clue.variable,
        "key": clue.fact.key,
        "value": value,
        "circumstance": clue.fact.circumstance if clue.specific else None,
        "to": clue.to,
        "ambiguity": clue.ambiguity,
        "phrase": phrase,
    }
