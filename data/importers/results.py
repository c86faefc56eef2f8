"""What a search tool returned, as documents: result lists in running text, JSON lists, objects, content parts."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from stopwise.data.importers.sources import load_json
from stopwise.data.importers.toolbox import clean_text, error_text, make_document, optional_text
from stopwise.data.records import Document

# keys under which tools return a list of results, or one nested answer
_LISTS = (
    "results", "documents", "organic", "organic_results", "search_results", "items", "hits", "data", "webPages",
    "value", "docs", "passages", "output", "result", "content",
)  # fmt: skip
_IDS = ("docid", "doc_id", "document_id", "id", "_id", "pid", "chunk_id")
_TEXTS = (
    "text", "contents", "page_content", "content", "snippet", "passage", "body", "summary", "description",
    "crawled_content", "raw_content", "chunk", "highlights",
)  # fmt: skip
_TITLES = ("title", "name", "headline")
_URLS = ("url", "link", "href", "source_url", "uri")
_SCORES = ("score", "relevance_score", "similarity", "relevance")
_FAILURES = ("error", "error_message", "warning", "exception")
_LARGEST_REPR = 1 << 20  # characters; a longer Python repr is taken as text


def parse_results(content: Any) -> tuple[tuple[Document, ...], str | None]:
    """Documents of a tool's result in their order, ranks from 1; or none, and what went wrong.

    Args:
        content: text (JSON, a Python repr, a numbered list, markdown links or prose), a JSON list or object.
    """
    if isinstance(content, str):
        return _parse_text(content)
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and _is_part(part)]
        if texts and len(texts) == len(content):
            return _parse_text("\n".join(text for text in texts if isinstance(text, str)))
        documents = [document for rank, item in enumerate(content, 1) if (document := _document(item, rank))]
        return tuple(documents), None if documents else "no results"
    if isinstance(content, Mapping):
        return _parse_object(content)
    text = optional_text(content)
    return _parse_text(text) if text else ((), "no results")


def _parse_text(text: str) -> tuple[tuple[Document, ...], str | None]:
    text = clean_text(text).strip()
    value = literal(text)
    if isinstance(value, list | dict):
        return parse_results(value)
    error = error_text(text)
    if error:
        return (), error
    documents = split_results(text)
    return documents, None if documents else "no results"


def literal(text: str) -> Any:
    """The list or object that a text writes as JSON or as a Python repr; None where it is neither."""
    text = text.strip()
    if text[:1] not in ("[", "{") or text[-1:] not in ("]", "}"):
        return None
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > _LARGEST_REPR:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _is_part(item: Mapping[str, Any]) -> bool:
    """Whether an item is a part of a message's content, such as ``{"type": "text", "text": ..}``."""
    return item.get("type") in ("text", "output_text", "input_text") and not any(key in item for key in _TITLES + _URLS)


def _parse_object(value: Mapping[str, Any]) -> tuple[tuple[Document, ...], str | None]:
    for key in _LISTS:
        inner = value.get(key)
        if isinstance(inner, list) or (isinstance(inner, Mapping) and any(name in inner for name in _LISTS)):
            return parse_results(inner)
    failure = next((text for key in _FAILURES if (text := optional_text(value.get(key)))), None)
    document = _document(value, 1)
    if document is None or (failure and _first(value, _TEXTS) is None):
        return (), failure or "no results"
    if document.text and document.title is None and (error := error_text(document.text)):
        return (), error
    return (document,), None


def _document(item: Any, rank: int) -> Document | None:
    if isinstance(item, str):
        return make_document(text=item, rank=rank)
    if not isinstance(item, Mapping):
        return None
    if str(item.get("type", "")).startswith("image"):
        return None
    inner = item.get("document")
    if isinstance(inner, Mapping):
        item = {**item, **inner}
    metadata = item.get("metadata")
    fields = {**metadata, **item} if isinstance(metadata, Mapping) else item
    text = _first(fields, _TEXTS)
    document = make_document(
        log_id=_first(fields, _IDS),
        text=text,
        title=_first(fields, _TITLES),
        url=_first(fields, _URLS),
        score=next((fields[key] for key in _SCORES if fields.get(key) is not None), None),
        rank=rank,
    )
    if document is None and fields:  # nothing that is known by name: the object itself is what was read
        return make_document(text=json.dumps(fields, ensure_ascii=False, default=str), rank=rank)
    return document


def _first(fields: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = fields.get(key)
        if isinstance(value, list):
            value = "\n".join(part for part in value if isinstance(part, str))
        if text := optional_text(value):
            return text
    return None


# Result lists in running text, one pattern a layout; the text of an item ends where the next item begins.
_ITEM = re.compile(r"^[ \t]*(?:\((\d{1,4})\)|Doc(?:ument)?[ \t]*\[?(\d{1,4})\]?(?=[ \t]*[(:]))", re.MULTILINE)
_TITLE_TEXT = re.compile(r"Title:(?P<title>.*?)(?:\s|^)(?:Text|Content):(?P<text>.*)", re.DOTALL)
_TITLE_PAREN = re.compile(
    r"[ \t]*:?[ \t]*\(Title:[ \t]*(?P<title>\"(?:[^\"]|\"\")*\"|[^)\n]*)\)(?P<text>.*)", re.DOTALL
)
_TITLE_GAP = re.compile(r"(?P<title>[^\n]{1,300}?) {3,}(?P<text>.*)", re.DOTALL)


def _csv_unquote(field: str) -> str:
    """Undo CSV quoting of one field; some corpora were written with it and never read back."""
    if len(field) >= 2 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field


# A linked title alone on its line, numbered or not, and a block of labelled lines; the rest is the snippet.
_LINK = re.compile(
    r"^[ \t]*(?:(?P<number>\d{1,4})[.)][ \t]*|[-*][ \t]+|#{1,6}[ \t]+)?"
    r"\[(?P<title>[^\n]*)\]\((?P<url>[a-z]+://\S+)\)[ \t]*$",
    re.MULTILINE,
)
_LABELLED = re.compile(
    r"^(?:\d{1,4}[.)][ \t]*)?Title:[ \t]*(?P<title>[^\n]*)\n(?:(?:URL|Link):[ \t]*(?P<url>\S+)|(?=(?:Snippet|Text):))",
    re.MULTILINE | re.IGNORECASE,
)
_SNIPPET_TAG = re.compile(r"</?(?:snippet|webpage)\b[^>]*>")
_SECTION_END = re.compile(r"^(?:={3,}|-{3,})[ \t]*$|^A \w+ search for ", re.MULTILINE)  # the next query's list begins
_ANNOUNCED = re.compile(
    r"^Search Result (?P<number>\d{1,4}):[ \t]*\n(?P<title>[^\n]*)\n(?P<url>[a-z]+://\S+)[ \t]*$", re.MULTILINE
)
_SNIPPET_LABEL = re.compile(r"(?:Snippet|Content|Text|Summary|Description):\s*", re.IGNORECASE)


def split_results(text: str) -> tuple[Document, ...]:
    """Documents of a result list in running text, in order.

    Layouts: ``1. [title](url)`` or ``[title](url)`` on a line of its own, ``Title: .. URL: ..`` lines, ``Search
    Result 1:`` over title and url, ``(1)Title: X Text: Y``, the same as one CSV-quoted field, ``(1)X   Y``,
    ``Doc 1(Title: "X") Y``. Ranks are the list's own numbers, else count from 1. A text without such items is one
    document; a blank one is none.
    """
    for sign, layout in (("](", _LINK), ("\n", _LABELLED), ("Search Result", _ANNOUNCED)):  # a sign is found at once
        if sign in text and (heads := list(layout.finditer(text))):
            return _headed(text, heads)
    marks: list[re.Match[str]] = []
    for mark in _ITEM.finditer(text):  # an item's number is the last one's plus one: "(2)" inside a text is no item
        if int(mark[1] or mark[2]) == len(marks) + 1:
            marks.append(mark)
    if not marks:
        only = make_document(text=text, rank=1)
        return (only,) if only else ()
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    found = (
        _item(text[mark.end() : end].strip(), rank) for rank, (mark, end) in enumerate(zip(marks, ends, strict=True), 1)
    )
    return tuple(document for document in found if document)


def _headed(text: str, heads: list[re.Match[str]]) -> tuple[Document, ...]:
    ends = [head.start() for head in heads[1:]] + [len(text)]
    found: list[Document] = []
    for count, (head, end) in enumerate(zip(heads, ends, strict=True), 1):
        number = head.groupdict().get("number")
        snippet = _SECTION_END.split(text[head.end() : end], maxsplit=1)[0]
        snippet = _SNIPPET_TAG.sub("", snippet).strip() if "snippet" in snippet else snippet.strip()
        document = make_document(
            title=head["title"],
            url=head["url"],
            text=_SNIPPET_LABEL.sub("", snippet, count=1) if _SNIPPET_LABEL.match(snippet) else snippet,
            rank=int(number) if number else count,
        )
        if document:
            found.append(document)
    return tuple(found)


def _item(body: str, rank: int) -> Document | None:
    body = _csv_unquote(body)
    match = _TITLE_PAREN.match(body) or _TITLE_TEXT.match(body) or _TITLE_GAP.match(body)
    if match:
        return make_document(title=_csv_unquote(match["title"].strip()), text=match["text"], rank=rank)
    return make_document(text=body.removeprefix(":"), rank=rank)
