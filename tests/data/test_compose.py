from pathlib import Path

import pytest

from stopwise.data.compose import compose, write_composed
from stopwise.data.corpus import CorpusDocument, Query, read_corpus, read_queries, write_corpus
from stopwise.data.errors import DataError, UsageError
from stopwise.data.splits import split_of

QUERIES = [Query(f"q{n}", f"Question {n}?", answer=f"a{n}", gold_ids=(f"d{n}", f"e{n}")) for n in range(100)]


def test_parts_stay_in_their_split_and_are_used_once() -> None:
    composed = list(compose(QUERIES, 4))
    used = [part["id"] for query in composed for part in query.metadata["parts"]]
    assert len(used) == len(set(used)) == 4 * len(composed)
    assert len(composed) >= 21  # at most 3 are left over in each split
    for query in composed:
        assert {split_of(part["id"]) for part in query.metadata["parts"]} == {split_of(query.id)}


def test_criteria_are_the_parts_and_gold_is_their_union() -> None:
    query = next(iter(compose(QUERIES, 3)))
    by_id = {part.id: part for part in QUERIES}
    parts = [by_id[part["id"]] for part in query.metadata["parts"]]
    assert query.criteria is not None
    assert [criterion.text for criterion in query.criteria] == [part.text for part in parts]
    assert [criterion.gold_ids for criterion in query.criteria] == [part.gold_ids for part in parts]
    assert set(query.gold_ids or ()) == {document for part in parts for document in part.gold_ids or ()}
    assert query.answer == "; ".join(part.answer or "" for part in parts)
    assert all(part.text in query.text for part in parts)


def test_same_seed_same_questions() -> None:
    assert list(compose(QUERIES, 4)) == list(compose(QUERIES, 4))
    assert list(compose(QUERIES, 4, seed=1)) != list(compose(QUERIES, 4))


def test_questions_without_gold_or_answer_are_left_out() -> None:
    poor = [Query("x", "No gold?", answer="a"), Query("y", "No answer?", gold_ids=("d",))]
    assert list(compose(poor * 50, 2)) == []


def test_write_and_refuse(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", [CorpusDocument("d1", "text")], QUERIES)
    assert write_composed(tmp_path / "c", tmp_path / "out", 4) == len(list(read_queries(tmp_path / "out")))
    assert [document.id for document in read_corpus(tmp_path / "out")] == ["d1"]
    with pytest.raises(UsageError, match="2 or more"):
        write_composed(tmp_path / "c", tmp_path / "no", 1)
    with pytest.raises(DataError, match="nothing to compose"):
        write_composed(tmp_path / "c", tmp_path / "no", 90)
    assert not (tmp_path / "no").exists()
