import random
from pathlib import Path

import pytest

from stopwise.data.corpus import read_queries
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.data.world.graph import draw_circumstance
from stopwise.data.world.vocabulary import load_vocabulary


def test_base_names_are_all_different() -> None:
    vocabulary = load_vocabulary()
    names = {vocabulary.base_name(number) for number in range(vocabulary.base_names)}
    assert len(names) == vocabulary.base_names


def test_base_names_end() -> None:
    vocabulary = load_vocabulary()
    with pytest.raises(IndexError):
        vocabulary.base_name(vocabulary.base_names)


def test_relations_point_to_known_types_and_patterns_have_their_fields() -> None:
    vocabulary = load_vocabulary()
    assert len(vocabulary.types) == 12
    for kind in vocabulary.types.values():
        assert all("{base}" in pattern for pattern in kind.names)
        for relation in kind.relations.values():
            assert relation.to in vocabulary.types
            assert all("{object}" in wording for wording in relation.documents)
        for attribute in kind.years.values():
            assert "{decade}" in attribute.clue
            assert all("{year}" in wording for wording in attribute.documents)
        for wordings in kind.topics.values():
            clues = [wording.clue for wording in wordings]
            assert len(set(clues)) == len(clues) >= 6


def test_circumstances_and_their_pairs_have_numbers_of_their_own() -> None:
    vocabulary = load_vocabulary()
    single = len(vocabulary.circumstances)
    assert vocabulary.circumstance(3) == vocabulary.circumstances[3]
    said, paraphrased = vocabulary.circumstance(single + 2 * single + 5)
    assert said == f"{vocabulary.circumstances[2][0]} and {vocabulary.circumstances[5][0]}"
    assert paraphrased == f"{vocabulary.circumstances[2][1]}, and {vocabulary.circumstances[5][1]}"
    rng = random.Random(0)
    assert all(draw_circumstance(rng, False, vocabulary) < single for _ in range(200))
    pairs = {draw_circumstance(rng, True, vocabulary) for _ in range(20_000)}
    assert len(pairs) == single * (single - 1)
    assert min(pairs) > single


@pytest.mark.slow
def test_a_large_world_keeps_its_clues_sharp(tmp_path: Path) -> None:
    write_world(tmp_path / "w", WorldConfig(documents=60_000, questions=200))
    ambiguities = [
        clue["ambiguity"]
        for query in read_queries(tmp_path / "w")
        for clue in query.metadata["clues"]
        if clue["ambiguity"] is not None
    ]
    assert max(ambiguities) <= 40
    assert sum(ambiguity <= 3 for ambiguity in ambiguities) > len(ambiguities) / 2
