import pytest

from stopwise.data.compose import compose
from stopwise.data.corpus import CorpusDocument, Query
from stopwise.data.errors import DataError
from stopwise.envs.arena.belief import Belief
from stopwise.envs.arena.puzzle import Finding, GoldReader, WorldReader, make_reader, puzzle_of

DOCUMENTS = [
    CorpusDocument("d1", "It was directed by Ada Voss in Port Elm, not by Voss.", "Night Ferry (film)"),
    CorpusDocument("d2", "Born in Port Elm.", "Ada Voss"),
    CorpusDocument("d3", "A harbour.", "Port Elm"),
]
QUERY = Query("q", "Where was the director of Night Ferry born?", answer="Port Elm", gold_ids=("d1", "d2"))


def test_names_are_the_title_and_the_titles_in_the_text() -> None:
    reader = GoldReader(DOCUMENTS)
    assert reader.names("d1") == ("Night Ferry", "Ada Voss", "Port Elm")
    assert reader.names("d3") == ("Port Elm",)


def test_a_question_over_a_plain_corpus() -> None:
    puzzle = puzzle_of(QUERY)
    belief, reader = Belief.empty(puzzle), GoldReader(DOCUMENTS)
    assert reader.findings(puzzle, "d1") == (Finding(0, "Night Ferry", leads=("Ada Voss", "Port Elm")),)
    assert belief.update(reader.findings(puzzle, "d1"))
    assert belief.coverage == 0.5
    assert belief.answers() == []
    assert set(belief.candidates[1]) == {"Ada Voss", "Port Elm"}  # names to check for the other passage
    assert belief.update(reader.findings(puzzle, "d2"))
    assert belief.coverage == 1.0
    assert belief.answers() == [("Port Elm", 1.0)]


def test_a_composed_question_is_answered_part_by_part() -> None:
    parts = [Query(f"q{n}", f"Question {n}?", answer=f"a{n}", gold_ids=(f"d{n}",)) for n in range(60)]
    query = next(iter(compose(parts, 2)))
    puzzle = puzzle_of(query)
    assert len(puzzle.parts) == len(puzzle.clues) == 2
    belief = Belief.empty(puzzle)
    belief.update([Finding(1, "x")])
    assert belief.answers() == [(f"unknown; {puzzle.parts[1].answer}", 1.0)]


def test_a_question_without_gold_is_refused() -> None:
    with pytest.raises(DataError, match="query q: its criterion"):
        puzzle_of(Query("q", "Anything?"))


def test_a_broken_world_question_is_refused() -> None:
    with pytest.raises(DataError, match="query q: its metadata"):
        puzzle_of(Query("q", "Anything?", metadata={"clues": []}))


def test_the_reader_fits_the_corpus() -> None:
    stating = CorpusDocument("w", "text", metadata={"states": []})
    assert isinstance(make_reader(DOCUMENTS), GoldReader)
    assert isinstance(make_reader([stating]), WorldReader)
    with pytest.raises(DataError, match="3 of 4 documents"):
        make_reader([*DOCUMENTS, stating])
