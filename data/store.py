"""Trajectories in one Parquet file: streamed, compact, and readable by other tools as it is.

One row a trajectory. A row keeps each of its documents once, in the column ``documents``, and the steps' results refer
to them by index; score and rank stay with the result. Columns are dictionary-encoded with pages large enough for a
whole row group, so that a text that many trajectories retrieved is stored once a row group. Row groups are bounded
by their text, so memory does not grow with the number of trajectories. The same input gives the same bytes.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stopwise.data.errors import DataError
from stopwise.data.files import atomic_path
from stopwise.data.records import Action, AnswerProbe, Criterion, Document, Logprobs, Step, Trajectory

KIND = "trajectories"
SCHEMA_VERSION = 1

_GROUP_ROWS = 1000  # most trajectories in a row group
_GROUP_CHARACTERS = 16 << 20  # text after which a row group is closed; a single longer trajectory is its own group
_BATCH_ROWS = 64  # trajectories held as Python objects while reading

_TEXTS = pa.list_(pa.string())
_DOCUMENT = pa.struct({"id": pa.string(), "text": pa.string(), "title": pa.string(), "url": pa.string()})
_RESULT = pa.struct({"document": pa.int32(), "score": pa.float64(), "rank": pa.int64()})
_LOGPROBS = pa.struct(
    {"top": pa.list_(pa.list_(pa.float64())), "entropies": pa.list_(pa.float64()), "source": pa.string()}
)
_STEP = pa.struct(
    {
        "kind": pa.string(),
        "thought": pa.string(),
        "queries": _TEXTS,
        "results": pa.list_(_RESULT),  # index into the trajectory's `documents`
        "error": pa.string(),
        "logprobs": _LOGPROBS,
        "answer_probe": pa.struct({"answer": pa.string(), "correct": pa.bool_()}),
        "logged_action": pa.int8(),  # 0 continue, 1 intervene, 2 stop
        "propensity": pa.float64(),
        "tokens_in": pa.int64(),
        "tokens_out": pa.int64(),
        "seconds": pa.float64(),
    }
)
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "question_id": pa.string(),
        "question": pa.string(),
        "criteria": pa.list_(pa.struct({"text": pa.string(), "gold_ids": _TEXTS})),
        "answer": pa.string(),
        "correct": pa.bool_(),
        "gold_ids": _TEXTS,
        "agent": pa.string(),
        "dataset": pa.string(),
        "ended_by": pa.string(),
        "meta": pa.string(),  # a JSON object
        "steps": pa.list_(_STEP),
        "documents": pa.list_(_DOCUMENT),
    },
    metadata={"stopwise.kind": KIND, "stopwise.schema": str(SCHEMA_VERSION)},
)


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write trajectories in order and return how many they were; atomic: an interruption leaves the old file or none.

    Raises:
        DataError: a trajectory holds what Parquet or JSON cannot (a lone surrogate, a meta value that is not JSON).
        UsageError: `path` cannot be written.
    """
    count = 0
    with atomic_path(Path(path)) as partial:
        writer = pq.ParquetWriter(
            partial,
            SCHEMA,
            compression="zstd",
            use_dictionary=True,
            dictionary_pagesize_limit=2 * _GROUP_CHARACTERS,
            data_page_size=1 << 20,
            store_schema=True,
        )
        with writer:
            for rows in _groups(trajectories):
                writer.write_table(_table(rows), row_group_size=len(rows))
                count += len(rows)
    return count


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Stream the trajectories of a file in their order.

    Raises:
        DataError: there is no such file, or it is not a Parquet file of trajectories in a known schema.
    """
    with open_parquet(Path(path), KIND, SCHEMA_VERSION) as file:
        try:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield _trajectory(row)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: is damaged ({error}); import the logs again") from error


def count_trajectories(path: Path) -> int:
    """How many trajectories a file holds, from its footer; raises as `read_trajectories`."""
    with open_parquet(Path(path), KIND, SCHEMA_VERSION) as file:
        return file.metadata.num_rows


def open_parquet(path: Path, kind: str, version: int) -> pq.ParquetFile:
    """Open a Parquet file that stopwise wrote, after checking that it is of `kind` and of schema `version`.

    Raises:
        DataError: there is no such file, or it is a folder, no Parquet, another kind, or another schema version.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected a Parquet file of {kind}")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty; expected a Parquet file of {kind}")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is not a Parquet file, or is cut off; expected {kind} (`stopwise import LOGS --out F` makes it)"
        ) from error
    metadata = file.schema_arrow.metadata or {}
    found = metadata.get(b"stopwise.kind", b"no stopwise data").decode("utf-8", "replace")
    found_version = metadata.get(b"stopwise.schema", b"").decode("utf-8", "replace")
    if found == kind and found_version == str(version):
        return file
    file.close()
    if found != kind:
        raise DataError(f"{path}: holds {found}; expected {kind} (`stopwise import LOGS --out F` makes it)")
    raise DataError(
        f"{path}: has schema version {found_version or 'none'}; this stopwise reads version {version}; "
        "import the logs again"
    )


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows, SCHEMA)
    except (pa.ArrowException, UnicodeError, OverflowError, TypeError) as error:
        if len(rows) > 1:
            for row in rows:  # find out which one it is
                _table([row])
        raise DataError(f"trajectory {rows[0]['id']!r}: cannot be stored ({error})") from error


def _groups(trajectories: Iterable[Trajectory]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    characters = 0
    for trajectory in trajectories:
        row, length = _row(trajectory)
        if rows and characters + length > _GROUP_CHARACTERS:
            yield rows
            rows, characters = [], 0
        rows.append(row)
        characters += length
        if len(rows) >= _GROUP_ROWS:
            yield rows
            rows, characters = [], 0
    if rows:
        yield rows


def _row(trajectory: Trajectory) -> tuple[dict[str, Any], int]:
    """A trajectory as the schema wants it, and the characters of its texts."""
    index: dict[tuple[str | None, ...], int] = {}
    steps = []
    length = len(trajectory.question)
    for step in trajectory.steps:
        results = []
        for document in step.documents:
            key = (document.id, document.text, document.title, document.url)
            results.append(
                {"document": index.setdefault(key, len(index)), "score": document.score, "rank": document.rank}
            )
        length += len(step.thought or "") + len(step.error or "") + sum(map(len, step.queries))
        if step.logprobs:
            length += 8 * sum(map(len, step.logprobs.top or ())) + 8 * len(step.logprobs.entropies or ())
        steps.append(_step_row(step, results))
    length += sum(len(text) for key in index for text in key if text)
    try:
        meta = json.dumps(dict(trajectory.meta), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"trajectory {trajectory.id!r}: meta is not JSON ({error})") from error
    row = {
        "id": trajectory.id,
        "question_id": trajectory.question_id,
        "question": trajectory.question,
        "criteria": None
        if trajectory.criteria is None
        else [{"text": c.text, "gold_ids": c.gold_ids} for c in trajectory.criteria],
        "answer": trajectory.answer,
        "correct": trajectory.correct,
        "gold_ids": trajectory.gold_ids,
        "agent": trajectory.agent,
        "dataset": trajectory.dataset,
        "ended_by": trajectory.ended_by,
        "meta": meta,
        "steps": steps,
        "documents": [dict(zip(("id", "text", "title", "url"), key, strict=True)) for key in index],
    }
    return row, length


def _step_row(step: Step, results: list[dict[str, Any]]) -> dict[str, Any]:
    logprobs, probe = step.logprobs, step.answer_probe
    return {
        "kind": step.kind,
        "thought": step.thought,
        "queries": step.queries,
        "results": results,
        "error": step.error,
        "logprobs": logprobs and {"top": logprobs.top, "entropies": logprobs.entropies, "source": logprobs.source},
        "answer_probe": probe and {"answer": probe.answer, "correct": probe.correct},
        "logged_action": None if step.logged_action is None else int(step.logged_action),
        "propensity": step.propensity,
        "tokens_in": step.tokens_in,
        "tokens_out": step.tokens_out,
        "seconds": step.seconds,
    }


def _trajectory(row: dict[str, Any]) -> Trajectory:
    return Trajectory(
        id=row["id"],
        question_id=row["question_id"],
        question=row["question"],
        steps=tuple(_step(step, row["documents"]) for step in row["steps"]),
        criteria=None
        if row["criteria"] is None
        else tuple(Criterion(c["text"], _tuple(c["gold_ids"])) for c in row["criteria"]),
        answer=row["answer"],
        correct=row["correct"],
        gold_ids=_tuple(row["gold_ids"]),
        agent=row["agent"],
        dataset=row["dataset"],
        ended_by=row["ended_by"],
        meta=json.loads(row["meta"]),
    )


def _step(row: dict[str, Any], documents: list[dict[str, Any]]) -> Step:
    logprobs, probe = row["logprobs"], row["answer_probe"]
    return Step(
        kind=row["kind"],
        thought=row["thought"],
        queries=tuple(row["queries"]),
        documents=tuple(
            Document(**documents[result["document"]], score=result["score"], rank=result["rank"])
            for result in row["results"]
        ),
        error=row["error"],
        logprobs=logprobs
        and Logprobs(
            top=None if logprobs["top"] is None else tuple(map(tuple, logprobs["top"])),
            entropies=_tuple(logprobs["entropies"]),
            source=logprobs["source"],
        ),
        answer_probe=probe and AnswerProbe(probe["answer"], probe["correct"]),
        logged_action=None if row["logged_action"] is None else Action(row["logged_action"]),
        propensity=row["propensity"],
        tokens_in=row["tokens_in"],
        tokens_out=row["tokens_out"],
        seconds=row["seconds"],
    )


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
