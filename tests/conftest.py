from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from stopwise.data.splits import split_of
from stopwise.signals.labels import LABELS
from stopwise.signals.table import Episode, SignalInfo, build_table
from stopwise.signals.tracker import SignalConfig, SignalRow

# a loaded machine is slow: time is measured in benchmarks/, not in tests
settings.register_profile("stopwise", deadline=None)
settings.load_profile("stopwise")

NAN = float("nan")


@pytest.fixture(scope="session")
def questions_of():
    """``questions_of("val", 3)``: ids of three questions that belong to the split."""

    def find(split: str, number: int) -> list[str]:
        names = (f"q{index}" for index in count())
        return [next(name for name in names if split_of(name) == split) for _ in range(number)]

    return find


@pytest.fixture(scope="session")
def run_of():
    """One hand-made run, for `table_of`.

    ``recall`` gives R_t after each search step, or None for a run without gold; in ``signals`` a number is a value and
    a text is the reason why there is none. Each step shows ``shown`` new documents.
    """

    def make(
        recall: Sequence[float] | None,
        *,
        id: str | None = None,
        question: str = "q0",
        signals: Mapping[str, Sequence[float | str]] = {},
        steps: int | None = None,
        final_recall: float | None = None,
        probes: Sequence[float] | None = None,
        correct: float = NAN,
        ended_by: str = "answer",
        agent: str | None = None,
        gold: float = 4.0,
        shown: int = 5,
        visible: Sequence[float] | None = None,
    ) -> tuple[Episode, list[SignalRow], np.ndarray]:
        length = len(recall) if recall is not None else steps or 0
        known = np.array(recall if recall is not None else [NAN] * length, dtype=float)
        nir = np.diff(known, prepend=0.0)
        labels = np.full((length, len(LABELS)), NAN)
        columns = {
            "recall": known,
            "nir": nir,
            "relevant_new": nir * gold,
            "relevant_seen": 0 * nir,
            "irrelevant_new": shown - nir * gold,
            "irrelevant_seen": 0 * nir,
            "documents_seen": shown * np.arange(1.0, length + 1),
            "probe_correct": np.array(probes if probes is not None else [NAN] * length),
            "answer_visible": np.array(visible if visible is not None else [NAN] * length),
            "pages_opened": np.zeros(length),
        }
        for name, column in columns.items():
            labels[:, LABELS.index(name)] = column
        rows = []
        for index in range(length):
            cells = {name: cell[index] for name, cell in signals.items()}
            values = {name: float(cell) for name, cell in cells.items() if not isinstance(cell, str)}
            rows.append(SignalRow(index + 1, values, {n: c for n, c in cells.items() if isinstance(c, str)}))
        if final_recall is None:
            final_recall = (float(known[-1]) if length else 0.0) if recall is not None else NAN
        episode = Episode(
            id=id or f"{question}/{agent}/{length}/{id}",
            question_id=question,
            agent=agent,
            dataset=None,
            outcome="unknown",
            ended_by=ended_by,
            correct=correct,
            gold=gold if recall is not None else NAN,
            final_recall=final_recall,
            final_seen=float(shown * length),
            final_relevant=final_recall * gold,
            final_visible=NAN if visible is None else visible[-1],
        )
        return episode, rows, labels

    return make


@pytest.fixture(scope="session")
def table_of():
    """A signal table of runs that `run_of` made; no encoder, no files."""

    def make(runs: Sequence[Any], signals: Sequence[str] = (), **info: Any):
        names = tuple(signals) or tuple(
            dict.fromkeys(name for _, rows, _ in runs for row in rows for name in row.values)
        )
        complete = []
        for episode, rows, labels in runs:
            absent = {name: "not asked for" for name in names if rows and name not in (*rows[0].values, *rows[0].nulls)}
            complete.append((episode, [replace(row, nulls={**row.nulls, **absent}) for row in rows], labels))
        config = info.pop("config", SignalConfig(signals=names))
        return build_table(
            names,
            complete,
            SignalInfo(**{"config": config, "encoder": None, "calibrations": (), "logs_sha256": None} | info),
        )

    return make
