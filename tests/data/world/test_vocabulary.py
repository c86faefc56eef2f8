import pytest

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
