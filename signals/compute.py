"""From logs to a signal table: fit thresholds and calibrations on training questions, then run the tracker."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from stopwise.data.records import Trajectory
from stopwise.data.splits import split_of
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import Encoder
from stopwise.signals.calibration import Calibration, Calibrations, fit_calibration
from stopwise.signals.clustering import cosine_distances, fit_cut
from stopwise.signals.coverage import (
    CoverageJudge,
    CoverageThresholds,
    EncoderJudge,
    GoldJudge,
    MakeJudge,
    document_sentences,
    fit_thresholds,
)
from stopwise.signals.coverage_ahead import judge_ahead
from stopwise.signals.definitions import BY_NAME, with_prerequisites
from stopwise.signals.labels import LABELS, label_tracker
from stopwise.signals.table import Episode, SignalInfo, SignalTable, build_table
from stopwise.signals.tracker import SignalConfig, SignalRow, SignalTracker, document_text, unique_documents

Logs = Callable[[], Iterable[Trajectory]]  # opens the logs from their start, as often as needed
Progress = Callable[[str, int, int | None], None]  # (what, done, total if known)

BLOCK = 200  # runs whose texts are embedded together
FIT_RUNS = 150  # training runs that the thresholds are fitted on
FIT_MIN = 200  # observations below which a default threshold is kept


def compute_table(
    logs: Logs,
    config: SignalConfig,
    encoder: Encoder | None,
    *,
    fit_se_cut: bool = True,
    fit_coverage: bool = True,
    calibrations: Calibrations | None = None,
    make_judge: MakeJudge | None = None,
    parallel: int = 1,
    logs_sha256: str | None = None,
    progress: Progress | None = None,
) -> SignalTable:
    """Compute the signals and labels of every run.

    Args:
        logs: opens the logs; called once, and again for each thing to fit.
        config: what to compute; its thresholds are replaced by fitted ones as said below.
        encoder: a cached encoder, or None (signals that need one are then null).
        fit_se_cut: fit the cut of the SE clustering on training questions.
        fit_coverage: fit the coverage thresholds where training questions have criteria with gold.
        calibrations: RE-SE lines to use; None fits them on successful training runs of these logs.
        make_judge: makes the coverage judge of each run, for the judge ``llm``.
        parallel: runs whose coverage is judged at a time, with `make_judge`; changes nothing but the time.
        logs_sha256: hash of the log file, for the record.
        progress: told what is going on.

    Returns:
        The table; what was fitted stands in its info.
    """
    report = progress or (lambda what, done, total: None)
    fitted: list[str] = []
    wanted = with_prerequisites(config.signals)

    def embed(runs: Sequence[Trajectory], config: SignalConfig) -> None:
        """All texts of some runs at once: step by step, small batches would take several times as long."""
        if isinstance(encoder, CachedEncoder):
            texts = (text for run in runs for text in texts_of(run, config))
            encoder.prefetch(texts, lambda done, total: report("embedding texts", done, total))

    if encoder is not None and (fit_se_cut or fit_coverage):
        sample = list(islice(_training(logs()), FIT_RUNS))
        embed(sample, config)
        if fit_se_cut and "SE" in wanted and config.se == "agglomerative":
            cut = _fit_se_cut(sample, encoder)
            if cut is not None:
                config, fitted = replace(config, se_cut=cut), [*fitted, "se_cut"]
        if fit_coverage and "Cov" in wanted and config.coverage_judge == "encoder":
            bounds = coverage_thresholds(sample, encoder)
            if bounds is not None:
                config, fitted = replace(config, coverage=bounds), [*fitted, "coverage"]
    if calibrations is None:
        calibrations = _fit_calibrations(logs, config, encoder, embed) if wanted & {"residual", "RE_z"} else {}
        fitted += ["calibrations"] if calibrations else []

    runs: list[tuple[Episode, Sequence[SignalRow], NDArray[np.float64]]] = []
    sources: set[str] = set()
    for block in blocks(logs(), BLOCK):
        embed(block, config)
        judges: Sequence[CoverageJudge | None] = [None] * len(block)
        if make_judge is not None and "Cov" in wanted:
            before = len(runs)
            told = lambda done, before=before: report("judging coverage", before + done, None)  # noqa: E731
            judges = judge_ahead(block, config, make_judge, parallel, told)
        for run, judge in zip(block, judges, strict=True):
            episode, labels = run_labels(run)
            runs.append((episode, run_signals(run, config, encoder, calibrations, judge), labels))
            sources.update(step.logprobs.source for step in run.search_steps if step.logprobs is not None)
        report("computing signals", len(runs), None)
    info = SignalInfo(
        config=config,
        encoder=encoder.id if encoder is not None else None,
        calibrations=tuple((agent, source, line) for (agent, source), line in sorted(calibrations.items())),
        logs_sha256=logs_sha256,
        fitted=tuple(fitted),
        re_sources=tuple(sorted(sources)),
    )
    return build_table(config.signals, runs, info)


def run_signals(
    run: Trajectory,
    config: SignalConfig,
    encoder: Encoder | None,
    calibrations: Calibrations | None = None,
    judge: CoverageJudge | None = None,
) -> list[SignalRow]:
    """The signal rows of one run: the tracker over its steps; `judge` is this run's, for the judge ``llm``."""
    tracker = SignalTracker(
        config,
        run.question,
        criteria=run.criteria,
        agent=run.agent,
        encoder=encoder,
        calibrations=calibrations,
        judge=judge,
    )
    return [row for step in run.steps if (row := tracker.observe(step)) is not None]


def run_labels(run: Trajectory) -> tuple[Episode, NDArray[np.float64]]:
    """One run's episode record, and its labels with shape (T, L), columns as in `LABELS`."""
    tracker = label_tracker(run)
    rows = [astuple(row) for step in run.steps if (row := tracker.observe(step)) is not None]
    final = tracker.finish()
    episode = Episode(
        id=run.id,
        question_id=run.question_id,
        agent=run.agent,
        dataset=run.dataset,
        outcome=run.outcome,
        ended_by=run.ended_by,
        correct=float("nan") if run.correct is None else float(run.correct),
        gold=float(len(set(run.gold_ids))) if run.gold_ids else float("nan"),
        final_recall=final.recall,
        final_seen=final.documents_seen,
        final_relevant=final.relevant_seen,
        final_visible=final.answer_visible,
    )
    return episode, np.array(rows, dtype=np.float64).reshape(len(rows), len(LABELS))


def texts_of(run: Trajectory, config: SignalConfig) -> Iterator[str]:
    """Every text of a run that the tracker will embed under `config`."""
    needs = {need for name in with_prerequisites(config.signals) for need in BY_NAME[name].needs}
    judged = "sentence_embedding" in needs and config.coverage_judge == "encoder" and bool(run.criteria)
    if "query_embedding" in needs:
        yield run.question
    if judged:
        yield from (criterion.text for criterion in run.criteria or ())
    for step in run.steps:
        searched = step.kind == "search"
        if searched and "query_embedding" in needs:
            yield from step.queries
        if searched and "document_embedding" in needs:
            texts = [document_text(document) for document in unique_documents(step.documents)]
            yield from texts if all(texts) else ()
        if judged:
            yield from (sentence for document in step.documents for sentence in document_sentences(document))


def _training(runs: Iterable[Trajectory]) -> Iterator[Trajectory]:
    return (run for run in runs if split_of(run.question_id) == "train")


def blocks(runs: Iterable[Trajectory], size: int) -> Iterator[list[Trajectory]]:
    """Lists of at most `size` runs, in order."""
    iterator = iter(runs)
    while block := list(islice(iterator, size)):
        yield block


def _fit_se_cut(sample: Sequence[Trajectory], encoder: Encoder) -> float | None:
    """The SE cut from documents of one step against documents of different questions."""
    lists = [
        (run.question_id, [text for document in step.documents if (text := document_text(document))])
        for run in sample
        for step in run.search_steps[:3]  # later lists repeat earlier ones
    ]
    lists = [(question, list(dict.fromkeys(texts))) for question, texts in lists]
    lists = [(question, texts) for question, texts in lists if len(texts) > 1][:400]
    within = [
        distances[np.triu_indices(len(texts), 1)]
        for _, texts in lists
        for distances in [cosine_distances(encoder.encode(texts))]
    ]
    generator = random.Random(0)
    across = []
    for _ in range(2000 if len({question for question, _ in lists}) > 1 else 0):
        (left, some), (right, others) = generator.choice(lists), generator.choice(lists)
        if left != right:
            pair = encoder.encode([generator.choice(some), generator.choice(others)])
            across.append(cosine_distances(pair)[0, 1])
    if len(within) == 0 or sum(map(len, within)) < FIT_MIN or len(across) < FIT_MIN:
        return None
    return fit_cut(np.concatenate(within), np.array(across))


def coverage_thresholds(sample: Sequence[Trajectory], encoder: Encoder) -> CoverageThresholds | None:
    """Thresholds of the judge ``encoder`` by its cosines against gold coverage; None with too few criteria with gold.

    Args:
        sample: runs of training questions; those without gold criteria are left out.
        encoder: a cached encoder.
    """
    best, covered = [], []
    for run in sample:
        if not run.criteria or any(criterion.gold_ids is None for criterion in run.criteria):
            continue
        judge = EncoderJudge(run.criteria, encoder, CoverageThresholds(1.0, 1.0))
        gold = GoldJudge(run.criteria)
        for step in run.steps:
            judge.update(step.documents)
            covered.append(gold.update(step.documents))
            best.append(judge.best)
    if len(best) < FIT_MIN:
        return None
    return fit_thresholds(np.concatenate(best), np.concatenate(covered))


def _fit_calibrations(
    logs: Logs,
    config: SignalConfig,
    encoder: Encoder | None,
    embed: Callable[[Sequence[Trajectory], SignalConfig], None],
) -> dict[tuple[str, str], Calibration]:
    """A line for each agent and RE source, on the steps of its successful training runs."""
    small = replace(config, signals=("SE", "RE"))
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    successful = (run for run in _training(logs()) if run.correct is True)
    told = (run for run in successful if any(step.logprobs for step in run.search_steps))
    for block in blocks(told, BLOCK):
        embed(block, small)
        for run in block:
            rows = run_signals(run, small, encoder)
            for index, (step, row) in enumerate(zip(run.search_steps, rows, strict=True)):
                read = row if config.pairing == "same_step" else rows[index - 1] if index else None
                if step.logprobs is not None and read is not None and "SE" in read.values and "RE" in row.values:
                    key = (run.agent or "", step.logprobs.source)
                    pairs.setdefault(key, []).append((read.values["SE"], row.values["RE"]))
    lines = {}
    for key, found in pairs.items():
        searching, reasoning = np.array(found).T
        line = fit_calibration(searching, reasoning)
        if line is not None:
            lines[key] = line
    return lines
