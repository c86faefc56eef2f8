import pytest

from stopwise.data.errors import DataError
from stopwise.data.importers.sources import JsonValue, json_values, open_text, read_text
from stopwise.data.importers.toolbox import ImportProblem


@pytest.fixture
def values(tmp_path):
    def read(content: bytes | str):
        path = tmp_path / "log.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [
            (found.where, found.value) if isinstance(found, JsonValue) else f"{found.where}: {found.reason}"
            for found in json_values(path)
        ]

    return read


def test_one_value_several_values_and_lines(values):
    assert values('[\n {"a": 1}\n]') == [("", [{"a": 1}])]
    assert values('{\n "a": 1\n}\n{\n "a": 2\n}\n') == [("value 1", {"a": 1}), ("value 2", {"a": 2})]
    assert values('{"a": 1}\n\n{"a": 2}') == [("line 1", {"a": 1}), ("line 3", {"a": 2})]
    assert values('{"a": 1}') == [("line 1", {"a": 1})]


def test_byte_order_mark_crlf_and_bytes_that_are_no_text(values):
    assert values(b'\xef\xbb\xbf{"a": 1}\r\n{"a": "\xff' + b"x" * 100 + b'"}\r\n') == [
        ("line 1", {"a": 1}),
        ("line 2", {"a": "\ufffd" + "x" * 100}),
    ]


def test_nan_is_null_infinity_stays_and_odd_characters_are_replaced(values):
    assert values('{"a": NaN, "b": -Infinity, "c\\ud800": ["\\u0000", "\\ud83d\\ude00"], "d": "tab\there"}') == [
        ("line 1", {"a": None, "b": float("-inf"), "c\ufffd": ["\ufffd", "😀"], "d": "tab\there"})
    ]


def test_a_broken_line_is_a_problem_and_the_rest_goes_on(values):
    found = values('{"a": 1\n{"a": 2}\n{"a": 3}}\n{"a": 4}\n')
    assert [item for item in found if isinstance(item, tuple)] == [("line 2", {"a": 2}), ("line 4", {"a": 4})]
    problems = [item for item in found if isinstance(item, str)]
    assert problems[0].startswith("line 1: not JSON (")
    assert problems[1].startswith("line 3: not JSON (Extra data at column 9); found '{\"a\": 3}}'")


def test_a_truncated_file_and_a_deep_one(values):
    assert values('[{"a": 1}, {"a"')[0].startswith("line 1: not JSON (Expecting ':' delimiter")
    assert values("[" * 200_000) == ["line 1: JSON nested too deeply"]
    assert values('{"a": 1}\n{"a": ' + "[" * 200_000) == [("line 1", {"a": 1}), "line 2: JSON nested too deeply"]
    assert values("[1]\n[2]\nx")[:2] == [("value 1", [1]), ("value 2", [2])]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"\xef\xbb\xbf\r\n "), "is empty"),
        (lambda path: path.write_bytes(bytes(range(256)) * 8), "is a binary file"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, make, message):
    path = tmp_path / "log"
    make(path)
    with pytest.raises(DataError, match=f"log: {message}"):
        open_text(path)


def test_a_problem_reads_as_one_line():
    assert str(ImportProblem("a.json", "line 3", "not JSON")) == "a.json: line 3: not JSON"
    assert str(ImportProblem("a.json", "", "not JSON")) == "a.json: not JSON"


def test_text_with_a_few_odd_bytes_is_text(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"Question: a\xff long enough question to be told from a binary file?\0" * 3)
    assert read_text(path).count("\ufffd") == 3
