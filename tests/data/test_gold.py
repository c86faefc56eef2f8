import json

import pytest

from stopwise.data.errors import DataError
from stopwise.data.gold import GoldReport, join_gold, load_gold
from stopwise.data.importers import react
from stopwise.data.importers.toolbox import make_document
from stopwise.data.records import Document, Step, Trajectory

QUESTION = "Where was Ada Brook born?"
PAIRS = {"_id": "5a", "question": QUESTION, "answer": "Lenn town", "supporting_facts": [["Ada Brook", 0], ["Lenn", 1]]}
COLUMNS = {
    "id": "5a",
    "question": "where was  ADA Brook born?",
    "answer": "Lenn town",
    "supporting_facts": {"title": ["Ada Brook", "Lenn", "Lenn"], "sent_id": [0, 1, 2]},
}


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _join(trajectories, gold):
    report = GoldReport()
    return list(join_gold(trajectories, gold, report)), report


@pytest.mark.parametrize("row", [PAIRS, COLUMNS])
def test_hotpotqa_gold_in_both_shapes_is_in_the_id_space_of_the_log(tmp_path, knowagent_log, row):
    gold = load_gold(_write(tmp_path / "gold.json", [row]))
    runs = [run for run in react.read(knowagent_log) if isinstance(run, Trajectory)]
    joined, report = _join(runs, gold)
    assert [run.gold_ids for run in joined] == [("title:ada brook", "title:lenn")] * 2
    assert {document.id for step in joined[0].steps for document in step.documents} == set(joined[0].gold_ids or ())
    assert joined[0].meta == {"reward": 1.0, "reference_answer": "Lenn town"}
    assert report.as_dict(gold) == {
        "file": str(tmp_path / "gold.json"),
        "questions": 1,
        "questions_matched": 1,
        "trajectories_without": 0,
        "documents_matched_by": "title",
    }


def test_gold_titles_become_the_ids_that_the_log_gave(tmp_path):
    step = Step("search", documents=(Document("d17", title="LENN"), Document("d18", title="Lenn")))
    gold = load_gold(_write(tmp_path / "gold.jsonl", json.dumps(PAIRS) + "\n"))
    (run,), _ = _join([Trajectory("t", "5a", "another wording", steps=(step,))], gold)
    assert run.gold_ids == ("title:ada brook", "d17")


def test_trec_qrels_are_matched_by_question_id(tmp_path):
    gold = load_gold(_write(tmp_path / "qrels.txt", "769 Q0 18639 1\n769 0 41759\t1\n\n769 Q0 5 0\n770 Q0 6 0\n"))
    joined, report = _join([Trajectory("a", "769", "?"), Trajectory("b", "770", "?")], gold)
    assert [run.gold_ids for run in joined] == [("18639", "41759"), None]
    assert (report.trajectories, report.without) == (1, 1)
    assert gold.documents_by == "id"


@pytest.mark.parametrize("place", ["queries.jsonl", "../queries.jsonl"])
def test_beir_qrels_are_matched_by_question_text_when_ids_differ(tmp_path, place):
    folder = tmp_path / "qrels"
    path = _write(folder / "test.tsv", "query-id\tcorpus-id\tscore\nq1\tdoc 1\t1\nq1\tdoc2\t2\nq2\tx\t1\n")
    _write(folder / place, json.dumps({"_id": "q1", "text": QUESTION}) + "\n")
    joined, _ = _join([Trajectory("a", "mine", f" {QUESTION.upper()}")], load_gold(path))
    assert joined[0].gold_ids == ("doc 1", "doc2")
    assert "reference_answer" not in joined[0].meta


def test_one_document_by_text_id(tmp_path):
    document = make_document(text="Lenn is a town.")
    assert document is not None
    gold = load_gold(_write(tmp_path / "qrels.tsv", f"q\t{document.id}\t1\n"))
    assert _join([Trajectory("t", "q", "?")], gold)[0][0].gold_ids == (document.id,)


def test_gold_that_matches_no_question_is_an_error(tmp_path):
    gold = load_gold(_write(tmp_path / "gold.json", [PAIRS]))
    with pytest.raises(DataError, match=r"matches no question of the logs.*'Another question\?'"):
        _join([Trajectory("t", "q", "Another question?")], gold)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("q Q0 d 0\n", "holds no question with a relevant document"),
        ("q Q0 d 1\nq Q0 d\n\n", "line 2: found 'q Q0 d'; expected TREC qrels"),
        ("q Q0 d high\n", "line 1: found 'q Q0 d high'"),
        ('[{"question": "a"}]', "record 1: found an object without supporting_facts"),
        ('[{"supporting_facts": 7}]', "supporting_facts: expected pairs of title and sentence"),
        ('[{"question": ', "not JSON"),
    ],
)
def test_what_is_no_gold_is_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        load_gold(_write(tmp_path / "gold", content))


def test_queries_that_cannot_be_read_are_named(tmp_path):
    path = _write(tmp_path / "test.tsv", "q1\td\t1\n")
    _write(tmp_path / "queries.jsonl", '{"id": "q1"}\n')
    with pytest.raises(DataError, match="line 1: expected an object with _id and text"):
        load_gold(path)
