"""Composed questions: several questions of a shallow multi-hop set become one deep question.

The parts are the criteria, and the gold is their union. Questions are split first and joined within their split, so
that no part of a training question is asked in a test.
"""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from stopwise.data.corpus import Query, corpus_writer, read_corpus, read_queries
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Criterion
from stopwise.data.splits import SPLITS, Split, split_of

ANSWER_SEPARATOR = "; "  # between the answers of the parts


def compose(queries: Iterable[Query], parts: int, seed: int = 0) -> Iterator[Query]:
    """Join every `parts` questions of a split, in an order drawn by `seed`; each question is used at most once.

    Args:
        queries: with gold and answers; others are left out.
        parts: how many questions make one; 2 or more.
        seed: of the order.

    Yields:
        Questions whose id falls into the split of their parts, split by split.

    Raises:
        UsageError: `parts` is less than 2.
    """
    if parts < 2:
        raise UsageError(f"compose: {parts} parts; expected 2 or more")
    by_split: dict[Split, list[Query]] = {split: [] for split in SPLITS}
    for query in queries:
        if query.gold_ids and query.answer is not None:
            by_split[split_of(query.id)].append(query)
    number = 0
    for split, held in by_split.items():
        random.Random(f"compose/{seed}/{split}").shuffle(held)
        for start in range(0, len(held) - parts + 1, parts):
            yield _join(id_in_split(f"c{number:05d}", split), held[start : start + parts])
            number += 1


def write_composed(source: Path, target: Path, parts: int, seed: int = 0) -> int:
    """Copy the corpus of `source` to `target`, with its questions composed; returns how many there are.

    Raises:
        DataError: `source` is no corpus, or has too few questions with gold and an answer.
        UsageError: `parts` is less than 2.
    """
    composed = list(compose(read_queries(source), parts, seed))
    if not composed:
        raise DataError(f"{source}: no split has {parts} questions with gold and an answer; nothing to compose")
    with corpus_writer(target) as writer:
        for document in read_corpus(source):
            writer.add_document(document)
        for query in composed:
            writer.add_query(query)
    return len(composed)


def id_in_split(stem: str, split: Split) -> str:
    """`stem` with a letter, or two, so that its hash falls into `split`."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    for suffix in (*letters, *(first + second for first in letters for second in letters)):
        if split_of(stem + suffix) == split:
            return stem + suffix
    raise AssertionError(f"no suffix puts {stem} into {split}")  # 0.9 ** 702 for the smallest split


def _join(query_id: str, parts: list[Query]) -> Query:
    numbered = " ".join(f"({number}) {part.text.strip()}" for number, part in enumerate(parts, start=1))
    return Query(
        id=query_id,
        text=f"Answer all {len(parts)} of these questions. {numbered}",
        answer=ANSWER_SEPARATOR.join(part.answer or "" for part in parts),
        criteria=tuple(Criterion(part.text.strip(), part.gold_ids) for part in parts),
        gold_ids=tuple(sorted({document for part in parts for document in part.gold_ids or ()})),
        metadata={"parts": [{"id": part.id, "answer": part.answer} for part in parts]},
    )
