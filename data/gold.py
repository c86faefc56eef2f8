"""Joining gold to trajectories: which documents are relevant to a question, and what its answer is.

Gold files: HotpotQA questions (``supporting_facts`` as pairs or as column dicts), TREC qrels (``qid 0 docid rel``) and
BEIR qrels (tab-separated under ``query-id corpus-id score``, questions in ``queries.jsonl`` beside or above).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stopwise.data.errors import DataError
from stopwise.data.importers.sources import json_values, open_text
from stopwise.data.importers.toolbox import (
    ImportProblem,
    describe,
    first_line,
    id_source,
    normalise_question,
    normalise_title,
    optional_text,
    title_id,
)
from stopwise.data.records import LOG_QUESTION_ID, Trajectory


@dataclass(frozen=True, slots=True)
class GoldEntry:
    """What is known of one question."""

    question_id: str | None  # in the gold file's own numbering
    gold_ids: tuple[str, ...]  # relevant documents, each once, in file order
    reference_answer: str | None = None


@dataclass(frozen=True, slots=True)
class Gold:
    """The gold of a file."""

    path: Path
    documents_by: Literal["id", "title"]  # how gold documents are matched to a log's documents
    entries: tuple[GoldEntry, ...]
    by_id: Mapping[str, GoldEntry] = field(default_factory=dict)
    by_question: Mapping[str, GoldEntry] = field(default_factory=dict)  # key: normalise_question(text)

    def find(self, trajectory: Trajectory) -> GoldEntry | None:
        """The entry of a trajectory's question, by its id, else by the id that its log gave it, else by its text."""
        by_id = self.by_id.get(trajectory.question_id) or self.by_id.get(
            optional_text(trajectory.meta.get(LOG_QUESTION_ID)) or ""
        )
        return by_id or self.by_question.get(normalise_question(trajectory.question))


@dataclass(slots=True)
class GoldReport:
    """What a join did; filled while the trajectories stream through."""

    trajectories: int = 0  # that got gold
    without: int = 0  # that found none
    questions: set[int] = field(default_factory=set)  # identities of the entries used

    def as_dict(self, gold: Gold) -> dict[str, Any]:
        """JSON-able summary."""
        return {
            "file": str(gold.path),
            "questions": len(gold.entries),
            "questions_matched": len(self.questions),
            "trajectories_without": self.without,
            "documents_matched_by": gold.documents_by,
        }


def join_gold(trajectories: Iterable[Trajectory], gold: Gold, report: GoldReport) -> Iterator[Trajectory]:
    """Stream trajectories with ``gold_ids`` and ``meta["reference_answer"]`` set where their question has gold.

    Gold titles become the ids that the trajectory's documents of that title have, so that both are in one id space.

    Raises:
        DataError: after the last trajectory, when no question of the gold file was among them.
    """
    example: str | None = None
    for trajectory in trajectories:
        entry = gold.find(trajectory)
        if entry is None:
            report.without += 1
            example = example or f"{trajectory.question_id} {first_line(trajectory.question, 80)!r}"
            yield trajectory
            continue
        report.trajectories += 1
        report.questions.add(id(entry))
        ids = entry.gold_ids if gold.documents_by == "id" else _ids_of_titles(entry.gold_ids, trajectory)
        meta = dict(trajectory.meta)
        if entry.reference_answer is not None:
            meta["reference_answer"] = entry.reference_answer
        yield replace(trajectory, gold_ids=ids, meta=meta)
    if not report.trajectories and example is not None:
        raise DataError(
            f"{gold.path}: its gold matches no question of the logs, neither by id nor by text; "
            f"the first question of the logs is {example}, of the gold {gold.entries[0].question_id!r}"
        )


def load_gold(path: Path) -> Gold:
    """Read a gold file, its kind recognised by content.

    Raises:
        DataError: the file cannot be read, is of no known kind, or holds no relevant document.
    """
    path = Path(path)
    with open_text(path) as source:
        head = source.read(4096).lstrip()
    gold = _hotpotqa(path) if head[:1] in ("{", "[") else _qrels(path)
    if not gold.entries:
        raise DataError(f"{path}: holds no question with a relevant document")
    return gold


def _ids_of_titles(gold_ids: tuple[str, ...], trajectory: Trajectory) -> tuple[str, ...]:
    """Title ids, replaced where the log's documents of that title have another id (the first one seen)."""
    own: dict[str, str] = {}
    for step in trajectory.steps:
        for document in step.documents:
            if document.title and id_source(document.id) != "title":
                own.setdefault(title_id(document.title), document.id)
    return tuple(dict.fromkeys(own.get(gold_id, gold_id) for gold_id in gold_ids))


def _hotpotqa(path: Path) -> Gold:
    entries: list[GoldEntry] = []
    by_id: dict[str, GoldEntry] = {}
    by_question: dict[str, GoldEntry] = {}
    for value in json_values(path):
        if isinstance(value, ImportProblem):
            raise DataError(str(value))
        for number, row in enumerate(value.value if isinstance(value.value, list) else [value.value], 1):
            where = f"{path}: {value.where or f'record {number}'}"
            if not isinstance(row, dict) or "supporting_facts" not in row:
                raise DataError(
                    f"{where}: found {describe(row)} without supporting_facts; expected HotpotQA questions, or qrels"
                )
            question, log_id = optional_text(row.get("question")), optional_text(row.get("_id") or row.get("id"))
            titles = _titles(row["supporting_facts"], where)
            ids = tuple(dict.fromkeys(title_id(title) for title in titles if normalise_title(title)))
            if not ids:
                continue
            entry = GoldEntry(log_id or question, ids, optional_text(row.get("answer")))
            entries.append(entry)
            if log_id:
                by_id[log_id] = entry
            if question:
                by_question[normalise_question(question)] = entry
    return Gold(path, "title", tuple(entries), by_id, by_question)


def _titles(facts: Any, where: str) -> list[Any]:
    """Titles of ``[[title, sentence], ..]`` or of ``{"title": [..], "sent_id": [..]}``."""
    titles = facts.get("title") if isinstance(facts, dict) else facts
    if isinstance(titles, list):
        found = [item[0] if isinstance(item, list) and item else item for item in titles]
        if all(isinstance(title, str) for title in found):
            return found
    raise DataError(f"{where}: supporting_facts: expected pairs of title and sentence, or columns title and sent_id")


def _qrels(path: Path) -> Gold:
    relevant: dict[str, dict[str, None]] = {}
    with open_text(path) as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != 3:
                fields = line.split()
                if len(fields) == 4:
                    del fields[1]  # TREC's iteration, unused
            if number == 1 and fields[-1:] == ["score"]:
                continue
            try:
                query, document, relevance = fields
                relevance = float(relevance)
            except ValueError:
                raise DataError(
                    f"{path}: line {number}: found {first_line(line, 60)!r}; expected TREC qrels `qid 0 docid rel`, "
                    "BEIR qrels `query-id, corpus-id, score` separated by tabs, or HotpotQA questions as JSON"
                ) from None
            if relevance > 0:
                relevant.setdefault(query.strip(), {})[document.strip()] = None
    by_id = {query: GoldEntry(query, tuple(documents)) for query, documents in relevant.items()}
    by_question: dict[str, GoldEntry] = {}
    for folder in (path.parent, path.parent.parent):
        if (queries := folder / "queries.jsonl").is_file():
            by_question = _questions(queries, by_id)
            break
    return Gold(path, "id", tuple(by_id.values()), by_id, by_question)


def _questions(path: Path, by_id: Mapping[str, GoldEntry]) -> dict[str, GoldEntry]:
    """Entries by question text, from BEIR's ``queries.jsonl``."""
    found: dict[str, GoldEntry] = {}
    for value in json_values(path):
        row = value.value if not isinstance(value, ImportProblem) else None
        if not isinstance(row, dict) or "_id" not in row or not isinstance(row.get("text"), str):
            reason = value.reason if isinstance(value, ImportProblem) else "expected an object with _id and text"
            raise DataError(f"{path}: {value.where or 'value 1'}: {reason}")
        if entry := by_id.get(str(row["_id"])):
            found[normalise_question(row["text"])] = entry
    return found
