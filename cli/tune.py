"""``stopwise tune``: a trained policy's thresholds, chosen in the arena on validation questions."""

import argparse
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stopwise.cli.output import Progress, print_json, say, signals_path
from stopwise.controllers.base import check_number
from stopwise.data.errors import UsageError
from stopwise.envs.arena.collection import CollectConfig, under_arms
from stopwise.envs.rewards import Reward


@dataclass(frozen=True, slots=True)
class TuneConfig:
    """One search for a pair of thresholds."""

    policy: str  # run folder of `stopwise train`, or a policy package
    signals: str  # signal table, or "samples": candidates are quantiles of what the policy says in its validation runs
    arena: CollectConfig  # corpus, agents, questions; `split` stands below
    split: Literal["train", "val"] = "val"  # test questions are for judging
    reward: Reward = Reward()
    stop: tuple[float, ...] = (0.7, 0.8, 0.88, 0.94, 0.98)  # quantiles of the probability of stop
    intervene: tuple[float, ...] = (0.5, 0.7, 0.85, 0.95)  # of intervene's share in what is not stopped

    def __post_init__(self) -> None:
        for name in ("stop", "intervene"):
            if not getattr(self, name):
                raise UsageError(f"{name}: is empty; expected at least one quantile")
            for level in getattr(self, name):
                check_number(name, level, low=0, high=1)
        under_arms(self.arena, self.split)


def add_parser(subparsers: Any) -> None:
    """Add the ``tune`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "tune",
        help="choose a policy's thresholds in the arena",
        description="Try pairs of thresholds of a trained policy in whole runs of agents, on validation questions, "
        "where intervening is real and not a model of it. Weights stay as they are. An interrupted search goes on.",
        epilog="example: stopwise tune configs/tune.yaml --out runs/tuned",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file; see configs/tune.yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config keys to set, as policy=runs/boosted")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search, and write the run folder with the policy."""
    from stopwise.data.config import load_config
    from stopwise.data.files import arms_beside, check_folder_target, lock_beside, only_process

    config = load_config(TuneConfig, args.config, args.overrides)
    check_folder_target(args.out)
    work = arms_beside(args.out)
    with only_process(work, lock_beside(args.out)):
        result = _tune(args, config, work)
    if args.json:
        print_json(result | {"out": str(args.out)})
        return 0
    for row in sorted(result["tried"], key=lambda row: -row["worth"]["value"])[:5]:
        worth = row["worth"]
        print(
            f"stop {row['threshold']:.4f}, intervene {row['intervene_threshold']:.4f}: return {worth['value']:.3f}, "
            f"recall {worth['recall']:.3f} at {worth['searches']:.1f} searches and {worth['interventions']:.2f} "
            "interventions"
        )
    say(f"policy with the first pair in {args.out / 'policy'}; the best of {len(result['tried'])} flatters itself")
    return 0


def _tune(args: argparse.Namespace, config: TuneConfig, work: Path) -> dict[str, Any]:
    from stopwise.controllers.package import write_package
    from stopwise.data.config import plain, write_config
    from stopwise.data.files import atomic_folder, claim_folder, write_json
    from stopwise.envs.arena.collection import questions_of
    from stopwise.evaluation.arena import FORMAT, ArenaArm, ArenaBenchmark, outcomes_of
    from stopwise.evaluation.benchmark import Arm, summarise
    from stopwise.evaluation.record import provenance
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder
    from stopwise.signals.table import read_table
    from stopwise.train.closed_loop import Pair, Worth, best_of, levels, search_pairs, two_thresholds, with_thresholds
    from stopwise.train.train import read_run

    package = read_run(config.policy, "policy")
    start = two_thresholds(package.controller)
    path = signals_path(config.signals)
    part = read_table(path).split(config.split)
    if not len(part):
        raise UsageError(f"signals: {path} has no run of the split {config.split}")
    record = {"format": FORMAT, "config": plain(config), "policy": package.controller.params}
    stops, nudges = levels(package.controller, part, config.stop, config.intervene)
    collection = under_arms(config.arena, config.split)
    questions_of(collection)  # a corpus that is not there is told before anything is written
    claim_folder(work, record, "search")
    encoder = CachedEncoder(SentenceTransformerEncoder(collection.encoder or MINILM), work / "embeddings.sqlite")
    bench = ArenaBenchmark(collection, package.signals, encoder, work, Progress())

    def worth(pair: Pair) -> Worth:
        name = f"stop {pair[0]:.9g}, intervene {pair[1]:.9g}"
        arm = Arm(name, with_thresholds(package.controller, pair), package.guards)
        outcomes = outcomes_of(bench.run(ArenaArm(arm, collection.rethinker)), config.reward)
        found = summarise(outcomes, bench.questions)
        return Worth(found["return"], found["recall"], found["searches"], found["interventions"])

    tried = search_pairs(start, stops, nudges, worth)
    encoder.close()
    best = best_of(tried)
    chosen = (best.threshold, best.intervene_threshold)
    training = dict(package.training) | {"tuned": {"split": config.split, "pairs": len(tried), **asdict(best)}}
    tuned = replace(package, controller=with_thresholds(package.controller, chosen), training=training)
    command = ["stopwise", "tune", str(args.config), *args.overrides, "--out", str(args.out)]
    result = provenance(command, plain(config), {"signals": path}) | {
        "kind": package.controller.kind,
        "policy": config.policy,
        "before": asdict(next(row for row in tried if (row.threshold, row.intervene_threshold) == start)),
        "chosen": asdict(best),
        "tried": [asdict(row) for row in tried],
        "questions": len(set(bench.questions.tolist())),
        "runs": len(bench.jobs),
    }
    with atomic_folder(args.out, mark="result.json") as folder:
        write_package(folder / "policy", tuned)
        write_json(folder / "result.json", result)
        write_config(folder / "config.yaml", config, command)
    shutil.rmtree(work)
    return result
