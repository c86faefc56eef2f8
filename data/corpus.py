"""Corpora in the BEIR layout: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/*.tsv`` in one folder.

What stopwise adds to the layout stands in a query's ``metadata``: ``answer`` (the reference answer, text) and
``criteria`` (a list of ``{"text": ..., "gold": [document ids]}``). Everything else in ``metadata`` is kept as it is.
Documents are streamed in both directions; only the qrels (a few ids a query) are held in memory.
Source of the layout: Thakur et al., *BEIR*, arXiv 2104.08663.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from stopwise.data.errors import DataError
from stopwise.data.files import atomic_folder
from stopwise.data.records import Criterion
from stopwise.data.splits import SPLITS, split_of

QRELS_HEADER = "query-id\tcorpus-id\tscore"


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One document of a corpus."""

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)  # JSON values; never indexed or shown

    @property
    def passage(self) -> str:
        """What retrievers index: the title, a full stop and the text; only the text where there is no title."""
        return f"{self.title}. {self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """One question over a corpus, with what is known about its evidence."""

    id: str
    text: str
    answer: str | None = None  # the reference answer
    criteria: tuple[Criterion, ...] | None = None  # the question's parts, each with its gold ids where known
    gold_ids: tuple[str, ...] | None = None  # sorted ids with a qrels score above 0; None where the qrels name none
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)  # the rest of the query's metadata


def read_corpus(folder: Path) -> Iterator[CorpusDocument]:
    """Stream the documents of ``folder/corpus.jsonl`` in file order.

    Raises:
        DataError: the file is missing, a line is not a JSON object, or ``_id`` or ``text`` is missing or not a text;
            the message names the file and the line.
    """
    for place, record in _records(Path(folder) / "corpus.jsonl"):
        yield CorpusDocument(
            id=_text(record, "_id", place),
            text=_text(record, "text", place),
            title=_text(record, "title", place) if record.get("title") else None,
            metadata=_mapping(record, place),
        )


def read_queries(folder: Path) -> Iterator[Query]:
    """Stream the queries of ``folder/queries.jsonl`` in file order, with the gold of every ``qrels`` file joined in.

    Raises:
        DataError: as for `read_corpus`; or the criteria are not a list of texts with lists of ids.
    """
    folder = Path(folder)
    gold: dict[str, set[str]] = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        for query_id, document_id, score in read_qrels(path):
            if score > 0:
                gold.setdefault(query_id, set()).add(document_id)
    for place, record in _records(folder / "queries.jsonl"):
        metadata = dict(_mapping(record, place))
        answer = metadata.pop("answer", None)
        query_id = _text(record, "_id", place)
        yield Query(
            id=query_id,
            text=_text(record, "text", place),
            answer=None if answer is None else str(answer),
            criteria=_criteria(metadata.pop("criteria", None), place),
            gold_ids=tuple(sorted(gold[query_id])) if query_id in gold else None,
            metadata=metadata,
        )


def read_qrels(path: Path) -> Iterator[tuple[str, str, int]]:
    """Stream (query id, document id, score) from a BEIR qrels file; its header line is optional.

    Raises:
        DataError: a line has not three tab-separated fields, or its score is no whole number.
    """
    for number, line in _lines(Path(path)):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and fields[-1].strip() == "score":
            continue
        try:
            query_id, document_id, score = fields
            yield query_id, document_id, int(score)
        except ValueError:
            raise DataError(
                f"{path}: line {number}: found {line.strip()[:80]!r}; "
                "expected query id, document id and a whole score, separated by tabs"
            ) from None


class CorpusWriter:
    """Writes a corpus record by record, in constant memory; made by `corpus_writer`."""

    def __init__(self, documents: IO[str], queries: IO[str], qrels: Mapping[str, IO[str]]) -> None:
        self._documents = documents
        self._queries = queries
        self._qrels = qrels
        self.document_count = 0  # documents written so far
        self.query_count = 0  # queries written so far

    def add_document(self, document: CorpusDocument) -> None:
        """Append one line to ``corpus.jsonl``."""
        record: dict[str, Any] = {"_id": document.id, "title": document.title or "", "text": document.text}
        if document.metadata:
            record["metadata"] = dict(document.metadata)
        self._documents.write(_line(record))
        self.document_count += 1

    def add_query(self, query: Query) -> None:
        """Append one line to ``queries.jsonl``, and its gold to the qrels file of the query's split."""
        metadata: dict[str, Any] = {}
        if query.answer is not None:
            metadata["answer"] = query.answer
        if query.criteria is not None:
            metadata["criteria"] = [
                {"text": criterion.text} | ({} if criterion.gold_ids is None else {"gold": list(criterion.gold_ids)})
                for criterion in query.criteria
            ]
        metadata |= query.metadata
        self._queries.write(_line({"_id": query.id, "text": query.text, "metadata": metadata}))
        for document_id in query.gold_ids or ():
            self._qrels[split_of(query.id)].write(f"{query.id}\t{document_id}\t1\n")
        self.query_count += 1


@contextmanager
def corpus_writer(folder: Path) -> Iterator[CorpusWriter]:
    """Open a corpus for writing; the folder appears, complete, when the block ends without an error.

    Raises:
        UsageError: `folder` is a file, holds something else than a corpus, or cannot be written.
    """
    with atomic_folder(folder, mark="corpus.jsonl") as partial, ExitStack() as files:
        (partial / "qrels").mkdir()
        qrels = {split: files.enter_context(_open_to_write(partial / "qrels" / f"{split}.tsv")) for split in SPLITS}
        for target in qrels.values():
            target.write(QRELS_HEADER + "\n")
        documents = files.enter_context(_open_to_write(partial / "corpus.jsonl"))
        yield CorpusWriter(documents, files.enter_context(_open_to_write(partial / "queries.jsonl")), qrels)
        files.close()  # before the folder is synced and takes its place


def write_corpus(folder: Path, documents: Iterable[CorpusDocument], queries: Iterable[Query]) -> None:
    """Write a corpus folder atomically; qrels go to one file a split (`stopwise.data.splits.split_of`)."""
    with corpus_writer(folder) as writer:
        for document in documents:
            writer.add_document(document)
        for query in queries:
            writer.add_query(query)


def _open_to_write(path: Path) -> IO[str]:
    return path.open("w", encoding="utf-8", newline="\n")


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of the non-blank lines."""
    try:
        with path.open(encoding="utf-8-sig") as source:
            for number, line in enumerate(source, start=1):
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a folder in BEIR layout") from None
    except (IsADirectoryError, NotADirectoryError):
        raise DataError(f"{path}: is not a file; expected a folder in BEIR layout") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} of a block is not UTF-8; expected UTF-8 text") from error


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place for messages, JSON object) a line."""
    for number, line in _lines(path):
        place = f"{path}: line {number}"
        try:
            record = json.loads(line.rstrip("\r\n"))
        except json.JSONDecodeError as error:
            raise DataError(f"{place}, column {error.colno}: {error.msg}; expected one JSON object a line") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets in brackets
            raise DataError(f"{place}: {error}; expected one JSON object a line") from error
        if not isinstance(record, dict):
            raise DataError(f"{place}: found a {type(record).__name__}; expected a JSON object")
        yield place, record


def _text(record: Mapping[str, Any], key: str, place: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        found = "is missing" if key not in record else f"is a {type(value).__name__}"
        raise DataError(f"{place}: {key!r} {found}; expected a text")
    return value


def _mapping(record: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    value = record.get("metadata") or {}
    if not isinstance(value, dict):
        raise DataError(f"{place}: 'metadata' is a {type(value).__name__}; expected a JSON object")
    return value


def _criteria(value: Any, place: str) -> tuple[Criterion, ...] | None:
    if value is None:
        return None
    try:
        return tuple(
            Criterion(text=_text(item, "text", place), gold_ids=_ids(item["gold"], place) if "gold" in item else None)
            for item in value
        )
    except (AttributeError, TypeError):
        raise DataError(
            f'{place}: \'criteria\' is not a list of {{"text": ..., "gold": [ids]}}; found {str(value)[:80]!r}'
        ) from None


def _ids(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{place}: a criterion's 'gold' is {str(value)[:80]!r}; expected a list of document ids")
    return tuple(value)
