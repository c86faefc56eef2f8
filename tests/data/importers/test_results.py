import json

import pytest

from stopwise.data.importers.results import literal, parse_results, split_results
from stopwise.data.importers.toolbox import document_id
from stopwise.data.records import Document

NUMBERED = (
    '(1)Title: Ada Brook Text:  Ada "A." Brook (2) and\nmore.\n'
    '(2)"Title: Lenn (town) Text:  Lenn, called ""the Hill"", is a town."\n'
    '(3)"Title: ""Heroes"" (song) Text:  A song."\n'
    "(4)Brook   A brook is a small river.\n"
    "(9)Left over"
)


def test_result_lists_are_split_in_their_layouts():
    assert [(d.rank, d.title, d.text) for d in split_results(NUMBERED)] == [
        (1, "Ada Brook", 'Ada "A." Brook (2) and\nmore.'),
        (2, "Lenn (town)", 'Lenn, called "the Hill", is a town.'),
        (3, '"Heroes" (song)', "A song."),
        (4, "Brook", "A brook is a small river.\n(9)Left over"),
    ]
    assert [
        (d.title, d.text) for d in split_results('Doc 1(Title: "Ada ""B"" Brook") Text a\nDoc 2(Title: Lenn) b')
    ] == [
        ('Ada "B" Brook', "Text a"),
        ("Lenn", "b"),
    ]
    assert [(d.title, d.text) for d in split_results("Doc 1: plain\nDocument [2]: text")] == [
        (None, "plain"),
        (None, "text"),
    ]


def test_a_text_without_numbers_is_one_document_and_a_blank_one_is_none():
    assert split_results("Lenn is a town.") == (
        Document(document_id(text="Lenn is a town."), "Lenn is a town.", rank=1),  # pyright: ignore[reportArgumentType]
    )
    assert split_results(" \n") == ()


SECTIONS = """A Google search for 'ada' found 2 results:

## Web Results
1. [Ada Brook [1810] - Lexicon](https://lex.org/wiki/Ada_(engineer))
Date published: May 1, 2020

An engineer.

2. [Lenn](http://lenn.org/)

=======
A Google search for 'lenn' found 1 results:

## Web Results
1. [Lenn](https://www.lenn.org)

A town, see [map](https://map.org).
"""


def test_markdown_links_keep_each_lists_own_ranks():
    assert split_results(SECTIONS) == (
        Document(
            "url:lex.org/wiki/Ada_(engineer)",
            "Date published: May 1, 2020\n\nAn engineer.",
            "Ada Brook [1810] - Lexicon",
            "https://lex.org/wiki/Ada_(engineer)",
            rank=1,
        ),
        Document("url:lenn.org", None, "Lenn", "http://lenn.org/", rank=2),
        Document("url:lenn.org", "A town, see [map](https://map.org).", "Lenn", "https://www.lenn.org", rank=1),
    )
    assert [(d.title, d.rank) for d in split_results("## Search Results\n\n[A](http://a)\nx\n\n[B](http://b)\ny")] == [
        ("A", 1),
        ("B", 2),
    ]


def test_announced_results():
    text = "exitcode: 0\nCode output: \nSearch Result 1:\nLenn\nhttp://lenn.org\nA town.\nSearch Result 2:\nAda\nhttp://a.org\n"
    assert [(d.rank, d.id, d.title, d.text) for d in split_results(text)] == [
        (1, "url:lenn.org", "Lenn", "A town."),
        (2, "url:a.org", "Ada", None),
    ]


def test_labelled_lines():
    (first, second) = split_results("Title: A\nURL: http://a\nSnippet: x: y\n\nTitle: B\nURL: http://b\n")
    assert (first.title, first.url, first.text) == ("A", "http://a", "x: y")
    assert (second.text, second.rank) == (None, 2)


RESULTS = [{"docid": 7, "title": "Ada", "snippet": "x", "score": 0.5}, {"link": "http://b", "content": ["y", "z"]}]
DOCUMENTS = (Document("7", "x", "Ada", score=0.5, rank=1), Document("url:b", "y\nz", url="http://b", rank=2))


@pytest.mark.parametrize(
    "content",
    [
        RESULTS,
        json.dumps(RESULTS),
        json.dumps(RESULTS, indent=1),
        repr(RESULTS),
        {"query": "q", "results": RESULTS},
        {"data": {"results": RESULTS}},
        [{"type": "text", "text": json.dumps(RESULTS)}],
        [*RESULTS, {"type": "image", "image_url": "http://c"}],
        [{"document": {"id": "7", "content": "x", "title": "Ada"}, "score": 0.5}, RESULTS[1]],
        [{"page_content": "x", "metadata": {"title": "Ada", "id": 7, "score": 0.5}}, RESULTS[1]],
    ],
)
def test_one_list_in_the_shapes_that_tools_give_it(content):
    assert parse_results(content) == (DOCUMENTS, None)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "no results"),
        ([], "no results"),
        ("[]", "no results"),
        ("", "no results"),
        ({"results": []}, "no results"),
        ({"error": "quota"}, "quota"),
        ({"warning": "No results found. Check the page."}, "No results found. Check the page."),
        ("Error: 500", "Error: 500"),
    ],
)
def test_errors_and_empty_results_are_no_documents(content, error):
    assert parse_results(content) == ((), error)


def test_what_is_known_by_no_name_is_a_document_of_its_own():
    documents, _ = parse_results({"population": 7})
    assert [document.text for document in documents] == ['{"population": 7}']
    assert [document.text for document in parse_results("A town.")[0]] == ["A town."]
    assert [document.text for document in parse_results([" a ", 7, None])[0]] == ["a"]


def test_truncated_json_is_text():
    text = json.dumps(RESULTS)[:-9]
    assert parse_results(text)[0] == (Document(str(document_id(text=text)), text, rank=1),)


def test_literal():
    assert literal("{'a': None}") == {"a": None}
    assert literal("[1, ") is None
    assert literal("[" * 100_000 + "]") is None
    assert literal("text") is None
    assert literal("[f()]") is None
