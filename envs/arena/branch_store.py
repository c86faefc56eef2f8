"""Branch outcomes in Parquet, one row a rollout."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stopwise.data.errors import DataError
from stopwise.data.files import atomic_path
from stopwise.data.records import Action
from stopwise.envs.arena.branching import BranchOutcome

BRANCH_SCHEMA = pa.schema(
    {
        "trajectory_id": pa.string(),
        "question_id": pa.string(),
        "agent": pa.string(),
        "t": pa.int32(),
        "action": pa.int8(),  # 0 continue, 1 intervene, 2 stop
        "rollout": pa.int32(),
        "recall_before": pa.float64(),
        "recall_gain": pa.float64(),
        "searches": pa.int32(),
        "correct": pa.bool_(),
        "propensity": pa.float64(),
    }
)


def write_branches(path: Path, outcomes: Sequence[BranchOutcome]) -> None:
    """Write branch outcomes as Parquet, one row each, atomically; NaN is written as null."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        row = {name: None if value != value else value for name, value in asdict(outcome).items()}  # NaN is not itself
        rows.append(row | {"action": int(outcome.action)})
    with atomic_path(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=BRANCH_SCHEMA), partial)


def read_branches(path: Path) -> list[BranchOutcome]:
    """Read branch outcomes.

    Raises:
        DataError: there is no such file, or it is something else.
    """
    try:
        rows = pq.read_table(path, schema=BRANCH_SCHEMA).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: is not a Parquet file of branches ({error})") from error
    nan = float("nan")
    return [
        BranchOutcome(
            **(
                row
                | {"action": Action(row["action"])}
                | {name: nan if row[name] is None else row[name] for name in ("recall_before", "recall_gain")}
            )
        )
        for row in rows
    ]
