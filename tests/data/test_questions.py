import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.gold import load_gold
from stopwise.data.importers.toolbox import normalise_question, question_id
from stopwise.data.questions import QuestionReport, settle_question_ids
from stopwise.data.records import Trajectory


def run(id, question, dataset=None):
    return Trajectory("t", id, question, dataset=dataset)


def settled(*runs):
    report = QuestionReport()
    return [found.question_id for found in settle_question_ids(runs, report)], report


def test_a_bare_number_is_an_id_only_within_its_dataset():
    ids, report = settled(run("1", "Who?", "hotpotqa"), run("1", "Where?", "musique"), run("1", "When?"))
    assert ids == ["hotpotqa:1", "musique:1", question_id("When?")]
    assert (report.numbered, report.merged, report.parted, report.reworded_count) == (3, 0, 0, 0)


def test_the_logs_own_id_is_kept_and_still_finds_gold(tmp_path):
    (found,) = settle_question_ids([run("17", "query 17", "browsecomp_plus")], QuestionReport())
    assert (found.question_id, found.meta) == ("browsecomp_plus:17", {"log_question_id": "17"})
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("17 0 d7 1\n")
    entry = load_gold(qrels).find(found)
    assert entry is not None
    assert entry.gold_ids == ("d7",)
    assert load_gold(qrels).find(replace(found, meta={"log_question_id": ["17"]})) is None


def test_one_text_has_one_id_whatever_its_logs_call_it():
    by_text = question_id("Who was first?")
    ids, report = settled(run("5a7b", "Who was first?"), run(by_text, "who  was First?"), run("3", "Who was first?"))
    assert ids == ["5a7b"] * 3
    assert report.merged == 2


@pytest.mark.parametrize("id", ["q1", "row-17", "mine:3"])
def test_a_counted_id_is_not_shared_by_different_questions(id):
    ids, report = settled(run(id, "Who?"), run(id, "Where?"), run(id, "Who?"), run(id, "Where?"))
    assert ids == [id, question_id("Where?"), id, question_id("Where?")]
    assert (report.parted, report.merged, report.reworded_count) == (2, 0, 0)


def test_numbers_that_come_twice_in_one_dataset_are_parted_too():
    assert settled(run("1", "Who?", "d"), run("1", "Where?", "d"))[0] == ["d:1", question_id("Where?")]


def test_an_id_that_does_not_count_may_be_put_in_several_ways():
    name = "5a7b1c2d3e4f"
    ids, report = settled(run(name, "Who?"), run(name, "Answer briefly: Who?"))
    assert ids == [name, name]
    assert (report.reworded, report.reworded_count) == ({name: "Answer briefly: Who?"}, 1)


def test_empty_and_strange_questions():
    assert settled(run("1", ""), run("2", ""), run("a", "\u202e؟"))[0] == [question_id("")] * 2 + ["a"]


_RUNS = st.lists(
    st.builds(
        run,
        st.sampled_from(["1", "2", "q1", "a-hash-id", "d:1", "q:1"]),
        st.sampled_from(["Who?", "who?", "Where?", "When?"]),
        st.sampled_from([None, "d", "e"]),
    ),
    max_size=12,
)


@given(_RUNS)
def test_a_text_never_has_two_ids_and_settling_twice_changes_nothing(runs):
    once = list(settle_question_ids(runs, QuestionReport()))
    names: dict[str, set[str]] = {}
    texts: dict[str, set[str]] = {}
    for found in once:
        names.setdefault(normalise_question(found.question), set()).add(found.question_id)
        texts.setdefault(found.question_id, set()).add(normalise_question(found.question))
    assert all(len(ids) == 1 for ids in names.values())
    assert all(len(found) == 1 for id, found in texts.items() if id != "a-hash-id")
    assert list(settle_question_ids(once, QuestionReport())) == once
    assert [replace(found, question_id="", meta={}) for found in once] == [replace(r, question_id="") for r in runs]
    json.dumps([found.meta for found in once])
