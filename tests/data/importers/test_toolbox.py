import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.importers.toolbox import (
    answer_texts,
    clean_text,
    document_id,
    error_text,
    id_source,
    json_value,
    make_document,
    optional_count,
    optional_float,
    optional_text,
    question_id,
    verdict,
)


def test_surrogate_halves_and_nuls_become_replacement_characters():
    assert clean_text("a\ud800b\0c 😀 שלום") == "a\ufffdb\ufffdc 😀 שלום"


@given(st.text(st.characters()))
def test_clean_text_is_always_utf8(text):
    clean = clean_text(text)
    assert clean.encode("utf-8").decode() == clean
    assert clean_text(clean) == clean


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"log_id": 17, "url": "u"}, ("17", "log")),
        ({"log_id": " "}, (None, None)),
        ({"url": "https://www.Example.org/A_b/#top", "title": "T"}, ("url:example.org/A_b", "url")),
        ({"url": "http://example.org/A_b"}, ("url:example.org/A_b", "url")),
        ({"title": "Ada  Brook\n", "text": "x"}, ("title:ada brook", "title")),
        ({"title": "Ada_Brook"}, ("title:ada brook", "title")),
        ({"text": " x  y "}, (document_id(text="x y"), "text")),
        ({}, (None, None)),
    ],
)
def test_a_document_id_is_made_from_url_else_title_else_text_and_says_which(parts, expected):
    made = document_id(**parts)
    assert (made, made and id_source(made)) == expected


def test_chunks_of_one_page_share_its_id():
    first, second = (make_document(title="Lenn", text=text) for text in ("a", "b"))
    assert first is not None
    assert second is not None
    assert first.id == second.id
    assert first != second


def test_runs_of_one_question_share_its_id_when_the_log_has_none():
    assert question_id("Where  is it?") == question_id("where is IT? ") != question_id("Where was it?")
    assert question_id("Where is it?", 12) == "12"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "No results found.",
        "No relevant documents",
        "no results were returned for this query",
        "Error: 502 bad gateway",
        "[Search Error] timeout",
        "Search failed",
        "Tool call timed out after 30 s",
        "Invalid request: query is empty",
        "Could not find [tower]. Similar: []",
        "Maximum number of searches reached",
        "Rate limit exceeded, try later",
        "Traceback (most recent call last): x",
        "# Untitled\n\nNo content could be extracted from this page",
        '# None\n\n{"data":null,"code":402}',
    ],
)
def test_an_observation_that_is_an_error_is_no_document(text):
    assert error_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "Errors in measurement are common.",
        "Error analysis is the study of error.",
        "No results of the election were published.\nThe count went on.",
        "Invalidity pensions in Lenn",
        "Error: " + "a long page " * 200,
        "The search failed to find her.",
    ],
)
def test_a_document_that_speaks_of_errors_is_a_document(text):
    assert error_text(text) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        ("True", True),
        (" false ", False),
        (1, True),
        (0.0, False),
        ("unknown", None),
        (None, None),
        (0.5, None),
        (float("nan"), None),
        ([], None),
    ],
)
def test_a_third_label_is_no_failure(value, expected):
    assert verdict(value) is expected


def test_scalars():
    assert [optional_text(value) for value in (" a ", "", None, 7, 0.5, True, ["a"], float("nan"))] == [
        "a", None, None, "7", "0.5", None, None, None,
    ]  # fmt: skip
    assert [optional_float(value) for value in (1, 0.5, "1", True, None, 10**400)] == [1.0, 0.5, None, None, None, None]
    assert [optional_count(value) for value in (3, 3.0, 3.5, -1, True, float("inf"), 2**70)] == [
        3, 3, None, None, None, None, None,
    ]  # fmt: skip
    assert answer_texts([["a"], " b ", None, [7]]) == ["a", "b", "7"]


def test_meta_values_hold_in_strict_json():
    value = {1: float("nan"), "a": (float("inf"), "x\0"), "b": {"c": None, "d": True}, "e": {2}, "f": b"g"}
    assert json_value(value) == {
        "1": None, "a": [None, "x\ufffd"], "b": {"c": None, "d": True}, "e": [2], "f": "b'g'",
    }  # fmt: skip


@pytest.mark.parametrize("score", [float("inf"), float("-inf"), float("nan"), "high", True])
def test_a_score_that_is_no_finite_number_is_not_known(score):
    document = make_document(text="x", score=score)
    assert document is not None
    assert document.score is None
