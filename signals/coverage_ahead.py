"""Coverage by a language model for many runs side by side, ahead of their other signals.

A run's steps are judged one after the other, as the judge needs it; different runs have nothing to do with each other.
So a block of runs is judged in threads first, and the signals are then computed as ever, from the recorded statuses:
the same requests, the same replies, the same table as one run after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stopwise.data.records import Document, Trajectory
from stopwise.models.parallel import SideBySide
from stopwise.signals.coverage import CoverageJudge, MakeJudge
from stopwise.signals.tracker import SignalConfig, SignalTracker


class RecordedJudge:
    """A `CoverageJudge` that says again what another one said of the same run."""

    def __init__(self, said: Sequence[NDArray[np.float64]]) -> None:
        """Begin the run anew; `said` holds the coverage after each search step."""
        self._said = iter(said)

    def update(self, documents: Sequence[Document]) -> NDArray[np.float64]:
        """See `CoverageJudge.update`; the documents are those that were judged."""
        return next(self._said)


class _Recording:
    """Keeps what a judge says."""

    def __init__(self, judge: CoverageJudge) -> None:
        self._judge = judge
        self.said: list[NDArray[np.float64]] = []

    def update(self, documents: Sequence[Document]) -> NDArray[np.float64]:
        self.said.append(self._judge.update(documents))
        return self.said[-1]


def judge_ahead(
    runs: Sequence[Trajectory],
    config: SignalConfig,
    make_judge: MakeJudge,
    parallel: int,
    progress: Callable[[int], None] | None = None,
) -> list[RecordedJudge]:
    """Judge the coverage of runs, up to `parallel` of them at a time.

    Args:
        runs: any runs.
        config: with the judge ``llm``.
        make_judge: makes the judge of each run; safe to share between threads.
        parallel: runs at a time.
        progress: called with the number of runs whenever one is judged.

    Returns:
        A judge for each run, in their order.
    """
    only = replace(config, signals=("Cov",))
    judged: list[str] = []

    def judge(run: Trajectory) -> RecordedJudge:
        recording = _Recording(make_judge(run.question, run.criteria))
        # the tracker knows which documents a decision point judges; it needs no encoder for that
        tracker = SignalTracker(only, run.question, criteria=run.criteria, agent=run.agent, judge=recording)
        for step in run.steps:
            tracker.observe(step)
        judged.append(run.id)
        if progress is not None:
            progress(len(judged))
        return RecordedJudge(recording.said)

    with SideBySide(parallel) as side:
        return side.map(judge, runs)
