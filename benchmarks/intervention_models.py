"""How far the intervention models are from what interventions really bring in the arena.

    python benchmarks/intervention_models.py --world runs/world --out docs/results/intervention_models.json

On a world's training questions, a controller that intervenes is run in the arena, and `uplift` is fitted on its runs.
On test questions the same controller is replayed over the agents' own runs under `noop`, `uplift` and `retrieve`, and
run in the arena with the same agents, questions and random numbers. Printed and written: mean recall and searches of
each, and the error of each model against the arena: its mean with a 95% interval over questions, and its mean size.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import make_rule
from stopwise.data.corpus import read_corpus
from stopwise.data.files import write_json
from stopwise.data.records import Trajectory
from stopwise.envs.arena.collection import CollectConfig, RethinkerChoice
from stopwise.envs.arena.retrievers import DenseRetriever
from stopwise.envs.arena.worker import make_rethinker
from stopwise.envs.interventions import InterventionModel, Noop
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.retrieve import Retrieve
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift
from stopwise.evaluation.arena import ArenaArm, ArenaBenchmark, outcomes_of
from stopwise.evaluation.benchmark import Arm
from stopwise.evaluation.record import provenance
from stopwise.evaluation.rollout import RunOutcome, rollout
from stopwise.evaluation.statistics import compare
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import SentenceTransformerEncoder
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo, SignalTable, read_table
from stopwise.train.uplift import fit_uplift

FEATURES = ("Nov", "Div", "Sim", "query_repetition", "steps_since_new")  # of u(x); no coverage, which costs sentences


def tell(what: str, done: int, total: int | None) -> None:
    """Progress on stderr."""
    print(what, done, total, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=Path, required=True, help="a generated world (`stopwise world --out DIR`)")
    parser.add_argument("--signals", type=Path, required=True, help="signal table whose thresholds are used")
    parser.add_argument("--questions", type=int, default=150, help="of training, and of test")
    parser.add_argument("--agents", nargs="+", default=["chaser", "verifier", "rephraser"])
    parser.add_argument("--work", type=Path, required=True, help="folder for finished runs, which are used again")
    parser.add_argument("--cache", type=Path, help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)

    encoder = CachedEncoder(SentenceTransformerEncoder(), options.cache)
    info = read_table(options.signals).info
    info = replace(info, config=replace(info.config, signals=FEATURES))
    config = CollectConfig(str(options.world), agents=tuple(options.agents), questions=options.questions)
    controller = make_rule("heuristic", {"patience": 4})
    arm = ArenaArm(Arm("heuristic", controller))

    training = ArenaBenchmark(replace(config, split="train"), info, encoder, options.work / "train", tell)
    fitted_on = table_of(training.run(arm).runs, info, encoder)
    fit = fit_uplift(fitted_on, FeatureSpec(FEATURES))

    held_out = ArenaBenchmark(replace(config, split="test"), info, encoder, options.work / "test", tell)
    truth = outcomes_of(held_out.run(arm), Reward())
    alone = held_out.run(None).runs
    table = table_of(alone, info, encoder)
    retriever = DenseRetriever.build(read_corpus(options.world), encoder)
    rethinker = make_rethinker(RethinkerChoice(), options.world, 0)
    models: list[InterventionModel] = [Noop(), Uplift(fit), Retrieve(alone, retriever, rethinker, encoder)]
    rows = [{"model": "agents alone", **means(outcomes_of(held_out.run(None), Reward()))}]
    rows.append({"model": "arena (truth)", **means(truth)})
    for model in models:
        env = ReplayEnv(table, FeatureSpec(FEATURES), intervention=model)
        rows.append({"model": model.name, **errors(rollout(env, controller, Guards()), truth, held_out.questions)})
        print(rows[-1], file=sys.stderr, flush=True)
    words = ["python", "benchmarks/intervention_models.py", *(arguments or sys.argv[1:])]
    settings = {"questions": options.questions, "agents": options.agents, "controller": dict(controller.params)}
    result = provenance(words, settings, {"signals": options.signals}) | {
        "rows": rows,
        "uplift": {"interventions": fit.interventions, "productive": fit.productive, "horizon": fit.horizon},
    }
    write_json(options.out, result)
    return 0


def table_of(runs: Sequence[Trajectory], info: SignalInfo, encoder: CachedEncoder) -> SignalTable:
    """Signals of runs with thresholds fitted elsewhere."""
    return compute_table(
        lambda: runs, info.config, encoder, fit_se_cut=False, fit_coverage=False, calibrations={}, progress=tell
    )


def means(outcomes: Sequence[RunOutcome]) -> dict[str, float]:
    """Mean recall, searches and interventions over runs."""
    names = ("recall", "searches", "interventions")
    return {name: float(np.mean([getattr(run, name) for run in outcomes])) for name in names}


def errors(outcomes: Sequence[RunOutcome], truth: Sequence[RunOutcome], questions: Any) -> dict[str, Any]:
    """A model's means, and its error against the arena, run by run."""
    found: dict[str, Any] = dict(means(outcomes))
    for name in ("recall", "searches"):
        ours = np.array([getattr(run, name) for run in outcomes], dtype=np.float64)
        theirs = np.array([getattr(run, name) for run in truth], dtype=np.float64)
        comparison = compare(ours, theirs, questions)
        found[f"{name}_error"] = comparison.difference
        found[f"{name}_error_ci"] = list(comparison.ci or ())
        found[f"{name}_error_size"] = float(np.abs(ours - theirs).mean())
    return found


if __name__ == "__main__":
    sys.exit(main())
