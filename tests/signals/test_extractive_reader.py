import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.records import Document
from stopwise.signals.extractive_reader import ExtractiveReader, focus_clauses, focus_word, names_in

DOCUMENTS = (
    Document("a", "The town Alba grew rich on salt. A tower was built by Ada Brook.", "A note on Alba"),
    Document("b", "The town of Solm built a maze. It traded in wool.", "Solm: an outline"),
    Document("c", "Salt is a mineral.", "Of minerals"),
)


def test_the_name_that_the_documents_speak_of_most_like_the_question():
    reader = ExtractiveReader(0.5)
    assert reader.read("Which town grew rich on salt?", DOCUMENTS) == "Alba"
    assert reader.read("Which town built a maze?", DOCUMENTS) == "Solm"
    assert reader.read("Which person built a tower?", DOCUMENTS[:1]) is None  # nobody calls Ada Brook a person
    assert ExtractiveReader(0).read("Which person built a tower?", DOCUMENTS[:1]) == "Alba"  # half of a better support


def test_no_candidate():
    reader = ExtractiveReader()
    assert reader.read("Which town grew rich on salt?", []) is None
    assert reader.read("Which town grew rich on salt?", DOCUMENTS[2:]) is None  # no name in it
    assert reader.read("Which ship crossed an ocean twice?", DOCUMENTS) is None
    assert reader.read("", DOCUMENTS) is None
    assert reader.id == "extractive(support=0.5)"


def test_names_of_the_question_are_no_answers():
    assert "Alba" not in ExtractiveReader(0).supports("Who built a tower in Alba, which grew rich on salt?", DOCUMENTS)


def test_support_by_hand():
    """Two sentences of one document; "salt" stands in one of them, "mine" in none."""
    documents = [Document("a", "The town Alba sold salt. The town Alba is old.")]
    (support,) = ExtractiveReader().supports("Which town had a salt mine?", documents).values()
    # the clause is {town, had?: function word, salt, mine}; rarity is log(3 / (1 + count)), of a word unseen log(3)
    town, salt, mine = math.log(3 / 3) + 1e-9, math.log(3 / 2) + 1e-9, math.log(3) + 1e-9
    assert support == pytest.approx((town + salt) / (town + salt + mine))


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("Which town is meant?", "town"),
        ("What is the name of the person asked for?", "person"),
        ("Name the book that fits all of this.", "book"),
        ("I am trying to identify a company. It was old.", "company"),
        ("Who was it?", None),
    ],
)
def test_the_kind_of_thing_that_is_asked_for(question, word):
    assert focus_word(question) == word


def test_only_clauses_about_it_count_where_there_are_any():
    clauses = focus_clauses("Which town is meant? The town grew rich. The person built a tower there.")
    assert clauses == [frozenset({"town", "grew", "rich"})]
    assert focus_clauses("Who built it? He sold old salt.") == [frozenset({"sold", "old", "salt"})]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The town Alba grew.", ["Alba"]),
        ("Alba grew. In Solm nothing did.", ["Solm"]),
        ("It is told that Fenn & Sons closed.", ["Fenn & Sons"]),
        ("Bank of Lower Solm's house", ["Bank of Lower Solm"]),
        ("Yarkemyx-on-Sea is old, says Ada Brook.", ["Ada Brook"]),
        ("nothing here", []),
    ],
)
def test_names(text, names):
    assert names_in(text) == names


@given(st.text(max_size=200), st.lists(st.text(max_size=200), max_size=4))
def test_support_is_a_share_for_any_text(question, texts):
    documents = [Document(str(number), text, text[:20]) for number, text in enumerate(texts)]
    reader = ExtractiveReader(0)
    supports = reader.supports(question, documents)
    assert all(0 <= value <= 1 + 1e-9 for value in supports.values())
    answer = reader.read(question, documents)
    assert answer is None or answer in supports
