import json
from pathlib import Path

import pytest

from stopwise.data.corpus import CorpusDocument, Query, read_corpus, read_qrels, read_queries, write_corpus
from stopwise.data.errors import DataError
from stopwise.data.records import Criterion
from stopwise.data.splits import split_of

DOCUMENTS = [
    CorpusDocument("d1", "Alba is a town.", "Alba", {"states": [["craft", 1, None, None]]}),
    CorpusDocument("d2", "Naïve text – with “quotes”."),
]
QUERIES = [
    Query(
        "q1",
        "Which town?",
        answer="Alba",
        criteria=(Criterion("It is a town.", ("d1",)), Criterion("It is old.", None)),
        gold_ids=("d1", "d2"),
        metadata={"level": 2},
    ),
    Query("q2", "And which other?"),
]


def test_write_and_read_back(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", DOCUMENTS, QUERIES)
    assert list(read_corpus(tmp_path / "c")) == DOCUMENTS
    assert list(read_queries(tmp_path / "c")) == QUERIES
    assert list(read_qrels(tmp_path / "c" / "qrels" / f"{split_of('q1')}.tsv")) == [("q1", "d1", 1), ("q1", "d2", 1)]


def test_passage_is_title_and_text() -> None:
    assert DOCUMENTS[0].passage == "Alba. Alba is a town."
    assert CorpusDocument("d", "Text.").passage == "Text."


def test_failed_write_leaves_the_old_corpus(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", DOCUMENTS, QUERIES)

    def broken():
        yield DOCUMENTS[0]
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_corpus(tmp_path / "c", broken(), QUERIES)
    assert list(read_corpus(tmp_path / "c")) == DOCUMENTS
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "corpus.jsonl: line 2, column 2"),
        ("[" * 100_000, "corpus.jsonl: line 2: maximum recursion"),
        ("9" * 5000, "corpus.jsonl: line 2: Exceeds the limit"),
        ("[1]", "corpus.jsonl: line 2: found a list; expected a JSON object"),
        ('{"_id": "d2"}', "corpus.jsonl: line 2: 'text' is missing"),
        ('{"_id": 2, "text": "x"}', "corpus.jsonl: line 2: '_id' is a int"),
        ('{"_id": "d2", "text": "x", "metadata": 3}', "corpus.jsonl: line 2: 'metadata' is a int"),
    ],
)
def test_bad_document_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(read_corpus(tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize("criteria", [3, ["text"], [{"text": 1}], [{"text": "x", "gold": "d1"}]])
def test_bad_criteria_name_file_and_line(tmp_path: Path, criteria: object) -> None:
    record = {"_id": "q", "text": "x", "metadata": {"criteria": criteria}}
    (tmp_path / "queries.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"queries\.jsonl: line 1"):
        list(read_queries(tmp_path))


def test_bad_qrels_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1 d2 1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"dev\.tsv: line 3"):
        list(read_qrels(path))


def test_missing_folder_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(read_corpus(tmp_path / "nowhere"))


def test_zero_scores_are_not_gold(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", DOCUMENTS, [Query("q1", "x")])
    (tmp_path / "c" / "qrels" / "extra.tsv").write_text("q1\td1\t0\nq1\td2\t2\n", encoding="utf-8")
    assert next(read_queries(tmp_path / "c")).gold_ids == ("d2",)
