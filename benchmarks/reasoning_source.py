"""What the source of RE changes: logged log-probabilities against scoring by a local language model.

    python benchmarks/reasoning_source.py --questions 12 --runs data/samples/scored.parquet \
        --out docs/results/reasoning_source.json

Takes the first steps of a fixed part of the sample logs, whose RE is the entropy of the scripted agents' own moves,
scores the same thoughts with a language model, and writes the scored runs. Then both are treated alike: SE by the cut
of the samples' signal table, the RE-SE lines fitted on the successful training runs of this part, and the AUROC of RE,
SE and residual against new gold, on the same steps and the same resamples of questions. The scores are cached as they
come, so an interrupted call goes on where it was; a larger part holds the smaller ones.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import Query
from stopwise.data.files import write_json
from stopwise.data.records import Trajectory
from stopwise.data.store import read_trajectories, write_trajectories
from stopwise.envs.arena.population import sample_queries
from stopwise.evaluation.auroc import AUROC_KINDS, auroc_table
from stopwise.evaluation.bootstrap import QuestionBootstrap
from stopwise.evaluation.record import provenance
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import SentenceTransformerEncoder
from stopwise.models.local_lm import LocalLM
from stopwise.models.smollm2 import SMOLLM2
from stopwise.models.transcript import WINDOW, Window
from stopwise.signals.calibration import Calibrations
from stopwise.signals.compute import compute_table
from stopwise.signals.scored_reasoning import ReasoningScorer
from stopwise.signals.table import SignalInfo, SignalTable, read_table

SAMPLES = Path(str(files("stopwise.data") / "samples"))
COMPARED = ("RE", "SE", "residual")


def tell(what: str, done: int, total: int | None) -> None:
    """Progress on stderr."""
    print(what, done, total, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=SAMPLES / "trajectories.parquet")
    parser.add_argument("--signals", type=Path, default=SAMPLES / "signals.parquet", help="table whose SE cut is used")
    parser.add_argument("--questions", type=int, default=40, help="all runs of so many questions")
    parser.add_argument("--steps", type=int, default=8, help="first search steps of each run; 0 for all")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--window", type=int, default=WINDOW.conversation, help="characters of a run that it reads")
    parser.add_argument("--cache", type=Path, help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--scores", type=Path, help="cache of scores (default: below ~/.cache/stopwise)")
    parser.add_argument("--runs", type=Path, required=True, help="Parquet file of the scored runs to write")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)

    logged = part_of(list(read_trajectories(options.logs)), options.questions)
    if options.steps:
        logged = [replace(run, steps=run.search_steps[: options.steps]) for run in logged]
    scorer = ReasoningScorer(LocalLM(options.model), options.scores, Window(conversation=options.window))
    scored = list(scorer.score(logged, tell))
    write_trajectories(options.runs, scored)

    info = read_table(options.signals).info
    encoder = CachedEncoder(SentenceTransformerEncoder(), options.cache)
    tables = {"logged": table_of(logged, info, encoder), scorer.source: table_of(scored, info, encoder)}
    settings = {
        "questions": options.questions,
        "steps": options.steps,
        "model": options.model,
        "window": options.window,
    }
    words = ["python", "benchmarks/reasoning_source.py", *(arguments or sys.argv[1:])]
    result = provenance(words, settings, {"logs": options.logs, "signals": options.signals}) | compare(tables)
    write_json(options.out, result)
    for source, rows in result["auroc"].items():
        for name in COMPARED:
            row = rows[name]["turn_matched"]
            print(source, name, row["value"], row["ci"], file=sys.stderr)
    return 0


def part_of(runs: Sequence[Trajectory], questions: int) -> list[Trajectory]:
    """All runs of a fixed sample of the questions that a log holds."""
    asked = {run.question_id: Query(run.question_id, run.question) for run in runs}
    chosen = {query.id for query in sample_queries(asked.values(), questions)}
    return [run for run in runs if run.question_id in chosen]


def table_of(runs: Sequence[Trajectory], info: SignalInfo, encoder: CachedEncoder) -> SignalTable:
    """Signals with the SE cut of another table, and one RE-SE line of these runs for all agents.

    A part has too few steps of successful training runs for a line for each agent.
    """
    config = replace(info.config, signals=COMPARED)

    def table(of: Sequence[Trajectory], calibrations: Calibrations | None) -> SignalTable:
        return compute_table(
            lambda: of, config, encoder, calibrations=calibrations, fit_se_cut=False, fit_coverage=False, progress=tell
        )

    pooled = table([replace(run, agent="all") for run in runs], None).info.calibrations
    agents = {run.agent for run in runs}
    return table(runs, {(str(agent), source): line for _, source, line in pooled for agent in agents})


def compare(tables: dict[str, SignalTable]) -> dict[str, Any]:
    """AUROC by source and signal on the steps at which every source has the signal, and how RE agrees.

    A residual is missing at first steps; without enough steps of successful training runs, everywhere.
    """
    from scipy.stats import spearmanr

    known = {source: table.select(table.has_gold) for source, table in tables.items()}
    first = next(iter(known.values()))
    labels = first.label("nir") > 0
    questions = first.question_codes[first.episode_of_row]
    bootstrap = QuestionBootstrap(int(first.question_codes.max()) + 1)
    has = {name: _shared(known.values(), name) for name in COMPARED}
    rows = has["RE"]
    has["SE"] = has["SE"] & rows

    aurocs: dict[str, Any] = {}
    for source, table in known.items():
        aurocs[source] = {}
        for name, there in has.items():
            values = {name: table.column(name)[there]}
            found = auroc_table(values, labels[there], first.turns[there], questions[there], bootstrap)[name]
            aurocs[source][name] = {kind: found[kind].to_json() for kind in AUROC_KINDS}
    columns = [table.column("RE")[rows] for table in known.values()]
    return {
        "auroc": aurocs,
        "spearman_re": _number(spearmanr(*columns).statistic),
        "spearman_re_by_agent": {
            agent: _number(spearmanr(*(column[chosen] for column in columns)).statistic)
            for agent, chosen in agents_of(first, rows).items()
        },
        "re": {source: figures(table.column("RE")) for source, table in known.items()},
        "lines": {
            source: {agent: asdict(line) for agent, _, line in table.info.calibrations}
            for source, table in tables.items()
        },
        "runs": len(first),
        "questions": bootstrap.n_questions,
        "steps": {name: int(there.sum()) for name, there in has.items()},
        "all_steps": len(labels),
        "productive_share": float(labels[rows].mean()),
    }


def _shared(tables: Iterable[SignalTable], name: str) -> NDArray[np.bool_]:
    """Where every table has the signal."""
    return np.logical_and.reduce([~np.isnan(table.column(name)) for table in tables])


def _number(value: Any) -> float | None:
    """A statistic, or None where it is not defined."""
    return None if np.isnan(value) else float(value)


def agents_of(table: SignalTable, rows: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """Which of the chosen rows are of which agent."""
    names = np.array([episode.agent or "unnamed" for episode in table.episodes])[table.episode_of_row][rows]
    return {str(name): names == name for name in np.unique(names)}


def figures(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and standard deviation of what is there, and how much is not."""
    there = values[~np.isnan(values)]
    return {"mean": float(there.mean()), "std": float(there.std()), "n": len(there), "nulls": len(values) - len(there)}


if __name__ == "__main__":
    sys.exit(main())
