"""What a log says about stagnation: AUROC of the signals, and how recall and document types change by turn."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError
from stopwise.evaluation.auroc import AUROC_KINDS, auroc_table, predictive_labels
from stopwise.evaluation.bootstrap import QuestionBootstrap
from stopwise.signals.table import SignalTable

MAX_TURNS = 45  # of the curves by turn
TYPES = ("relevant_new", "relevant_seen", "irrelevant_new", "irrelevant_seen")


def analyze(table: SignalTable, *, resamples: int = 1000, horizon: int = 3, seed: int = 0) -> dict[str, Any]:
    """AUROC of every signal against NiR > 0, and the curves by turn ([RAAC] figures 3 to 5).

    Args:
        table: signals with labels; runs without gold are left out and counted.
        resamples: bootstrap resamples over questions, shared by all signals.
        horizon: steps ahead of the predictive labels: some gain in t + 1 .. t + horizon.
        seed: of the bootstrap.

    Returns:
        JSON-able: ``auroc`` (this step brings new gold), ``auroc_new`` (the same on steps with a new document, since
        Nov = 0 implies NiR = 0), ``predictive``, each ``{signal: {kind: {value, ci, pairs, ...}}}``; ``by_turn``.

    Raises:
        DataError: no run has gold, so there is no label.
    """
    known = table.select(table.has_gold & (table.lengths > 0))
    if len(known) == 0:
        raise DataError("analyze: no run has gold, so no step has a label; join it with `stopwise import --gold FILE`")
    signals = {name: known.column(name) for name in known.names}
    nir = known.label("nir")
    codes = known.question_codes
    questions = codes[known.episode_of_row]
    bootstrap = QuestionBootstrap(int(codes.max()) + 1, resamples, seed)
    turns = known.turns
    everything = np.ones(len(nir), dtype=bool)
    new = (known.label("relevant_new") + known.label("irrelevant_new")) > 0
    ahead, kept = predictive_labels(nir, known.offsets, horizon)

    def aurocs(labels: NDArray[np.bool_], rows: NDArray[np.bool_]) -> dict[str, Any]:
        chosen = {name: values[rows] for name, values in signals.items()}
        found = auroc_table(chosen, labels[rows], turns[rows], questions[rows], bootstrap)
        return {name: {kind: found[name][kind].to_json() for kind in AUROC_KINDS} for name in found}

    judge = known.info.config.coverage_judge
    return {
        "auroc": aurocs(nir > 0, everything),
        "auroc_new": aurocs(nir > 0, new),
        "predictive": aurocs(ahead, kept),
        "horizon": horizon,
        "nulls": {name: known.null_counts(name) for name in known.names},
        "coverage_judge": judge,
        "privileged": judge == "gold" and "Cov" in known.names,
        "re_sources": list(known.info.re_sources),
        "runs": len(known),
        "runs_without_gold": int((~table.has_gold).sum()),
        "questions": bootstrap.n_questions,
        "steps": len(nir),
        "productive_share": float((nir > 0).mean()),
        "resamples": resamples,
        "by_turn": {"all": by_turn(known)} | {agent: by_turn(part) for agent, part in by_agent(known).items()},
    }


def by_turn(table: SignalTable, turns: int = MAX_TURNS) -> list[dict[str, Any]]:
    """For each turn: mean recall over all runs (one that is over keeps its last), and over those that reach the turn.

    Document types are mean counts a step, of the runs that reach the turn.
    """
    recall = table.label("recall")
    last = np.full(len(table), np.nan)
    curves = []
    for turn in range(1, turns + 1):
        rows = np.flatnonzero(table.turns == turn)
        if len(rows) == 0:
            break
        last[table.episode_of_row[rows]] = recall[rows]
        entry: dict[str, Any] = {"turn": turn, "runs": len(rows), "recall": _known_mean(last)}
        entry["recall_alive"] = _known_mean(recall[rows])
        entry |= {name: _known_mean(table.label(name)[rows]) for name in TYPES}
        if "Nov" in table.names:
            entry["Nov"] = _known_mean(table.column("Nov")[rows])
        curves.append(entry)
    return curves


def by_agent(table: SignalTable) -> dict[str, SignalTable]:
    """The runs of each agent, by name; runs without one under "unnamed"."""
    names = [episode.agent or "unnamed" for episode in table.episodes]
    return {name: table.select(np.array([other == name for other in names])) for name in sorted(set(names))}


def _known_mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
