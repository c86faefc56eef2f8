"""Trajectories in one Parquet file: streamed, compact, and readable by other tools as it is.

One row a trajectory. A row keeps each of its documents once, in the column ``documents``, and the steps' results refer
to them by index; score and rank stay with the result. Columns are dictionary-encoded with pages large enough for a
whole row group, so that a text that many trajectories retrieved is stored once a row group. Row groups are bounded
by their text, so memory does not grow with the number of trajectories. The same input gives the same bytes.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import accumulate
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
        "guidance": pa.string(),
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
            for group in _groups(trajectories):
                writer.write_table(_table(group), row_group_size=len(group))
                count += len(group)
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


def _groups(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    """Consecutive trajectories, as many as a row group shall hold."""
    group: list[Trajectory] = []
    characters = 0
    for trajectory in trajectories:
        length = _characters(trajectory)
        if group and characters + length > _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
        group.append(trajectory)
        characters += length
        if len(group) >= _GROUP_ROWS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _characters(trajectory: Trajectory) -> int:
    """About how many bytes a trajectory takes in memory: its texts, each result's, and 8 a number."""
    length = len(trajectory.question)
    for step in trajectory.steps:
        length += len(step.thought or "") + len(step.error or "") + len(step.guidance or "")
        length += sum(map(len, step.queries))
        for document in step.documents:
            length += len(document.text or "") + 100
        if step.logprobs:
            length += 8 * sum(map(len, step.logprobs.top or ())) + 8 * len(step.logprobs.entropies or ())
    return length


def _table(group: list[Trajectory]) -> pa.Table:
    try:
        return _columns(group)
    except (pa.ArrowException, UnicodeError, OverflowError, TypeError) as error:
        if len(group) > 1:
            for trajectory in group:  # find out which one it is
                _table([trajectory])
        raise DataError(f"trajectory {group[0].id!r}: cannot be stored ({error})") from error


def _columns(group: list[Trajectory]) -> pa.Table:
    """Trajectories as the schema wants them, column by column: nested Python objects take several times longer."""
    steps = [step for trajectory in group for step in trajectory.steps]
    keys: list[tuple[str | None, ...]] = []  # documents of all trajectories, each once a trajectory
    key_counts: list[int] = []
    references: list[int] = []  # of each result, within its trajectory
    for trajectory in group:
        index: dict[tuple[str | None, ...], int] = {}
        for step in trajectory.steps:
            for document in step.documents:
                key = (document.id, document.text, document.title, document.url)
                references.append(index.setdefault(key, len(index)))
        keys.extend(index)
        key_counts.append(len(index))
    results = [document for step in steps for document in step.documents]
    result_fields = [
        pa.array(references, pa.int32()),
        pa.array([document.score for document in results], pa.float64()),
        pa.array([document.rank for document in results], pa.int64()),
    ]
    nested = {
        "queries": pa.array([step.queries for step in steps], _TEXTS),
        "results": _lists([len(step.documents) for step in steps], _struct(result_fields, _RESULT)),
        "logprobs": pa.array([_logprobs_row(step.logprobs) for step in steps], _LOGPROBS),
        "answer_probe": pa.array(
            [p and {"answer": p.answer, "correct": p.correct} for p in (step.answer_probe for step in steps)],
            _STEP.field("answer_probe").type,
        ),
    }
    step_fields = [
        nested[field.name]
        if field.name in nested
        else pa.array([getattr(step, field.name) for step in steps], field.type)
        for field in _STEP
    ]
    document_fields = [pa.array([key[i] for key in keys], pa.string()) for i in range(len(_DOCUMENT))]
    columns = {
        "criteria": pa.array(
            [
                None if t.criteria is None else [{"text": c.text, "gold_ids": c.gold_ids} for c in t.criteria]
                for t in group
            ],
            SCHEMA.field("criteria").type,
        ),
        "meta": pa.array([_meta(trajectory) for trajectory in group], pa.string()),
        "steps": _lists([len(trajectory.steps) for trajectory in group], _struct(step_fields, _STEP)),
        "documents": _lists(key_counts, _struct(document_fields, _DOCUMENT)),
    }
    return pa.table(
        [
            columns[field.name]
            if field.name in columns
            else pa.array([getattr(t, field.name) for t in group], field.type)
            for field in SCHEMA
        ],
        SCHEMA,
    )


def _struct(arrays: list[pa.Array], type: pa.StructType) -> pa.StructArray:
    return pa.StructArray.from_arrays(arrays, fields=list(type))


def _lists(lengths: list[int], values: pa.Array) -> pa.ListArray:
    offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
    return pa.ListArray.from_arrays(offsets, values)


def _logprobs_row(logprobs: Logprobs | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    return {"top": logprobs.top, "entropies": logprobs.entropies, "source": logprobs.source}


def _meta(trajectory: Trajectory) -> str:
    try:
        return json.dumps(dict(trajectory.meta), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"trajectory {trajectory.id!r}: meta is not JSON ({error})") from error


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
        guidance=row.get("guidance"),  # files of before there was any lack it
    )


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
