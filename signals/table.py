"""The signal table: the signals of many runs as flat arrays, ragged by offsets, with their labels and their origin."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError
from stopwise.data.files import atomic_path
from stopwise.data.splits import Split, split_of
from stopwise.signals.calibration import Calibration
from stopwise.signals.coverage import CoverageThresholds
from stopwise.signals.definitions import REASON_CODES, REASONS
from stopwise.signals.labels import LABELS
from stopwise.signals.tracker import SignalConfig, SignalRow

KIND = "stopwise.signals"
VERSION = 2  # 2: labels logged_action and propensity


@dataclass(frozen=True, slots=True)
class Episode:
    """One run, without its steps; NaN where a value is unknown."""

    id: str
    question_id: str
    agent: str | None
    dataset: str | None
    outcome: str  # correct, incorrect, halted, unknown
    ended_by: str  # answer, budget, error, unknown
    correct: float  # 1, 0 or NaN
    gold: float  # number of gold documents; NaN without gold
    final_recall: float
    final_seen: float  # distinct documents seen
    final_relevant: float  # distinct gold documents seen
    final_visible: float  # the reference answer stands in what was seen


@dataclass(frozen=True, slots=True)
class SignalInfo:
    """Where a table comes from: enough to compute it again."""

    config: SignalConfig
    encoder: str | None  # encoder id
    calibrations: tuple[tuple[str, str, Calibration], ...]  # (agent, RE source, line)
    logs_sha256: str | None  # of the log file
    fitted: tuple[str, ...] = ()  # thresholds fitted on this file's training questions; the others are defaults
    re_sources: tuple[str, ...] = ()  # sources of RE that occur

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dictionary; `info_from_json` reads it back."""
        return asdict(self)


@dataclass(frozen=True)
class SignalTable:
    """Decision points of E runs, flat: the rows of run e are ``offsets[e]:offsets[e + 1]``, in order of t."""

    names: tuple[str, ...]  # S signals
    values: NDArray[np.float64]  # (N, S), NaN for null
    reasons: NDArray[np.uint8]  # (N, S), position in REASONS; 0 where the value is there
    labels: NDArray[np.float64]  # (N, L), columns as in LABELS, NaN where unknown
    offsets: NDArray[np.int64]  # (E + 1,)
    episodes: tuple[Episode, ...]  # E
    info: SignalInfo

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def sha256(self) -> str:
        """Of everything that a learner can see of the table: two tables with one hash train the same."""
        whole = hashlib.sha256()
        for array in (self.values, self.reasons, self.labels, self.offsets):
            whole.update(np.ascontiguousarray(array).tobytes())
        texts = [self.names, [asdict(episode) for episode in self.episodes], self.info.to_json()]
        whole.update(json.dumps(texts, sort_keys=True).encode())
        return whole.hexdigest()

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Decision points of each run, shape (E,)."""
        return np.diff(self.offsets)

    @cached_property
    def turns(self) -> NDArray[np.int64]:
        """T of each row, from 1, shape (N,)."""
        return np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths) + 1

    @cached_property
    def episode_of_row(self) -> NDArray[np.int64]:
        """Index of each row's run, shape (N,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def question_codes(self) -> NDArray[np.int64]:
        """A number for each run's question, shape (E,), numbered by first appearance."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(e.question_id, len(numbers)) for e in self.episodes], dtype=np.int64)

    @cached_property
    def has_gold(self) -> NDArray[np.bool_]:
        """Whether a run's gold is known, shape (E,)."""
        return np.array([episode.gold > 0 for episode in self.episodes], dtype=bool)

    def column(self, name: str) -> NDArray[np.float64]:
        """One signal, shape (N,), NaN for null.

        Raises:
            DataError: the table has no such signal.
        """
        if name not in self.names:
            raise DataError(f"signals: no column {name!r}; found {', '.join(self.names)}; compute it with `signals`")
        return self.values[:, self.names.index(name)]

    def label(self, name: str) -> NDArray[np.float64]:
        """One label, shape (N,), NaN where unknown; names are in `LABELS`."""
        return self.labels[:, LABELS.index(name)]

    def episode_values(self, name: str) -> NDArray[np.float64]:
        """One numeric field of `Episode`, shape (E,)."""
        return np.array([getattr(episode, name) for episode in self.episodes], dtype=np.float64)

    def row(self, index: int) -> SignalRow:
        """Row `index` as the tracker would have returned it."""
        values, nulls = {}, {}
        for name, value, code in zip(self.names, self.values[index], self.reasons[index], strict=True):
            if code == 0:
                values[name] = float(value)
            else:
                nulls[name] = REASONS[code]
        return SignalRow(int(self.turns[index]), values, nulls)

    def select(self, keep: NDArray[np.bool_] | Sequence[int]) -> "SignalTable":
        """The table of some runs: a mask (E,) or indices, in the given order."""
        chosen = np.flatnonzero(keep) if np.asarray(keep).dtype == bool else np.asarray(keep, dtype=np.int64)
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        starts = self.offsets[:-1][chosen]
        rows = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
        return SignalTable(
            self.names,
            self.values[rows],
            self.reasons[rows],
            self.labels[rows],
            offsets,
            tuple(self.episodes[index] for index in chosen),
            self.info,
        )

    def split(self, split: Split) -> "SignalTable":
        """The runs whose question belongs to `split`."""
        return self.select(np.array([split_of(e.question_id) == split for e in self.episodes], dtype=bool))

    def null_counts(self, name: str) -> dict[str, int]:
        """How often a signal is missing, by reason."""
        codes, counts = np.unique(self.reasons[:, self.names.index(name)], return_counts=True)
        return {REASONS[code]: int(count) for code, count in zip(codes, counts, strict=True) if code != 0}


def write_table(path: Path, table: SignalTable) -> None:
    """Write a table as Parquet, atomically: a row a run, signals, reasons and labels as list columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    offsets = pa.array(table.offsets, type=pa.int32())
    columns: dict[str, Any] = {}
    for name in Episode.__dataclass_fields__:
        kind = pa.string() if name in _TEXT_FIELDS else pa.float64()
        cells = [_null_if_nan(getattr(episode, name)) for episode in table.episodes]
        columns[name] = pa.array(cells, type=kind)
    for index, name in enumerate(table.names):
        present = table.reasons[:, index] == 0
        values = pa.array(table.values[:, index], type=pa.float64(), mask=~present)
        columns[f"signal.{name}"] = pa.ListArray.from_arrays(offsets, values)
        codes = pa.array(table.reasons[:, index], type=pa.uint8())
        columns[f"reason.{name}"] = pa.ListArray.from_arrays(offsets, codes)
    for index, name in enumerate(LABELS):
        column = table.labels[:, index]
        labels = pa.array(column, type=pa.float64(), mask=np.isnan(column))
        columns[f"label.{name}"] = pa.ListArray.from_arrays(offsets, labels)
    header = {"kind": KIND, "version": VERSION, "signals": list(table.names), "info": table.info.to_json()}
    arrow = pa.table(columns).replace_schema_metadata({KIND: json.dumps(header, sort_keys=True)})
    with atomic_path(path) as partial:
        pq.write_table(arrow, partial, compression="zstd")


def read_table(path: Path) -> SignalTable:
    """Read a table that `write_table` wrote.

    Raises:
        DataError: the file is missing, is not Parquet, is not a signal table, or has another version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with Path(path).open("rb") as source:  # by path, Arrow would read a folder of files as one table
            arrow = pq.read_table(source)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; make it with `stopwise signals LOGS --out {path}`") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; expected a file that `stopwise signals` wrote") from None
    except (pa.ArrowInvalid, pa.ArrowIOError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path}: is not a Parquet file ({reason}); expected the output of `stopwise signals`"
        ) from error
    header = json.loads((arrow.schema.metadata or {}).get(KIND.encode(), b"null"))
    if not header:
        raise DataError(f"{path}: is Parquet but no signal table; make one with `stopwise signals {path} --out FILE`")
    if header["version"] != VERSION:
        raise DataError(f"{path}: signal table version {header['version']}; expected {VERSION}; compute it again")
    names = tuple(header["signals"])
    episodes = tuple(
        Episode(**{key: row[key] if key in _TEXT_FIELDS else _nan_if_null(row[key]) for key in row})
        for row in arrow.select(list(Episode.__dataclass_fields__)).to_pylist()
    )
    lengths = [len(cells) for cells in arrow.column(f"label.{LABELS[0]}").to_pylist()]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return SignalTable(
        names=names,
        values=_matrix(arrow, "signal", names, int(offsets[-1]), np.float64),
        reasons=_matrix(arrow, "reason", names, int(offsets[-1]), np.uint8),
        labels=_matrix(arrow, "label", LABELS, int(offsets[-1]), np.float64),
        offsets=offsets,
        episodes=episodes,
        info=info_from_json(header["info"]),
    )


def info_from_json(value: dict[str, Any]) -> SignalInfo:
    """Read what `SignalInfo.to_json` wrote."""
    config = dict(value["config"])
    config["signals"] = tuple(config["signals"])
    config["coverage"] = CoverageThresholds(**config["coverage"])
    lines = tuple((agent, source, Calibration(**line)) for agent, source, line in value["calibrations"])
    return SignalInfo(
        config=SignalConfig(**config),
        encoder=value["encoder"],
        calibrations=lines,
        logs_sha256=value["logs_sha256"],
        fitted=tuple(value["fitted"]),
        re_sources=tuple(value["re_sources"]),
    )


def build_table(
    names: tuple[str, ...],
    runs: Sequence[tuple[Episode, Sequence[SignalRow], NDArray[np.float64]]],
    info: SignalInfo,
) -> SignalTable:
    """Flatten runs given as (episode, its T rows, its labels (T, L))."""
    lengths = [len(rows) for _, rows, _ in runs]
    rows = [row for _, some, _ in runs for row in some]
    values = np.array([[row.values.get(name, np.nan) for name in names] for row in rows], dtype=np.float64)
    reasons = [[0 if name in row.values else REASON_CODES[row.nulls[name]] for name in names] for row in rows]
    labels = [labels for _, _, labels in runs if len(labels)]
    return SignalTable(
        names=names,
        values=values.reshape(len(rows), len(names)),
        reasons=np.array(reasons, dtype=np.uint8).reshape(len(rows), len(names)),
        labels=np.concatenate(labels) if labels else np.zeros((0, len(LABELS))),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        episodes=tuple(episode for episode, _, _ in runs),
        info=info,
    )


def with_info(table: SignalTable, **changes: Any) -> SignalTable:
    """The table with some fields of its info replaced."""
    return replace(table, info=replace(table.info, **changes))


_TEXT_FIELDS = frozenset({"id", "question_id", "agent", "dataset", "outcome", "ended_by"})


def _matrix(arrow: Any, prefix: str, names: Sequence[str], count: int, kind: type) -> Any:
    columns = [arrow.column(f"{prefix}.{name}").combine_chunks().flatten() for name in names]
    arrays = [column.to_numpy(zero_copy_only=False).astype(kind) for column in columns]
    return np.column_stack(arrays) if arrays else np.zeros((count, 0), dtype=kind)


def _null_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def _nan_if_null(value: Any) -> Any:
    return float("nan") if value is None else value
