from stopwise.data.corpus import Query
from stopwise.envs.arena.belief import Belief
from stopwise.envs.arena.puzzle import Finding, WorldReader, puzzle_of


def test_reader_sees_matches_of_value_circumstance_and_type(mini_query: Query, mini_reader: WorldReader) -> None:
    puzzle = puzzle_of(mini_query)
    assert mini_reader.findings(puzzle, "bees") == (Finding(0, "Ida Brun"),)
    assert mini_reader.findings(puzzle, "birth") == (Finding(1, "Ida Brun", "Alba"),)
    assert mini_reader.findings(puzzle, "other") == ()  # same hobby, other circumstance
    assert mini_reader.findings(puzzle, "namesake") == ()  # a ship of the town's name
    assert mini_reader.names("birth") == ("Ida Brun", "Alba", "Old Mill")


def test_a_relation_counts_only_beside_a_candidate(mini_query: Query) -> None:
    belief = Belief.empty(puzzle_of(mini_query))
    link = Finding(1, "Ida Brun", "Alba")
    assert not belief.update([link])
    assert belief.best(0) is None
    assert belief.update([Finding(0, "Ida Brun")])
    assert belief.update([link])
    assert belief.best(0) == "Alba"
    assert not belief.update([link])  # no news
    assert belief.coverage == 2 / 3


def test_a_known_object_makes_its_subject_a_candidate(mini_query: Query) -> None:
    belief = Belief.empty(puzzle_of(mini_query))
    belief.update([Finding(2, "Alba"), Finding(1, "Ida Brun", "Alba")])
    assert belief.best(1) == "Ida Brun"


def test_copy_is_independent(mini_query: Query) -> None:
    belief = Belief.empty(puzzle_of(mini_query))
    belief.update([Finding(2, "Alba")])
    other = belief.copy()
    other.update([Finding(0, "Ida Brun"), Finding(2, "Solm")])
    assert belief.best(1) is None
    assert set(belief.candidates[0]) == {"Alba"}
