r"""The exact policy gradient against GRPO, from the same supervised start, on the same runs, in one go on one machine.

    python benchmarks/exact_vs_grpo.py configs/lm_exact.yaml --work runs/exact_vs_grpo --minutes 20 \\
        --out docs/results/exact_vs_grpo.json

GRPO's learning rate is the best of three on validation after a tenth of its time each; then it has its whole time.
Curves hold the exact expected return on the same validation runs, over wall-clock seconds and over state-gradients (the
states whose gradient was taken). An interrupted benchmark goes on: call it again.

GRPO's learning rate is constant, without a warmup: how many steps its time allows is not known before. The layers below
the adapter are computed before its clock starts, while the exact gradient pays for them within its own time.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stopwise.cli.output import say, signals_path
from stopwise.data.config import load_config, plain
from stopwise.data.files import write_json
from stopwise.evaluation.record import provenance
from stopwise.models.trunk import FrozenTrunk
from stopwise.signals.table import read_table
from stopwise.train.lm.config import GrpoOptions, LmConfig
from stopwise.train.lm.network import frozen_trunk, trainable
from stopwise.train.lm.run import learn_stages, matmul_precision, prepare

RATES = (3e-5, 1e-4, 3e-4)  # of GRPO
TRIAL_SHARE = 0.1  # of its time, for each
ENDLESS: dict[str, Any] = {
    "epochs": 1000.0,
    "warmup": 0.0,
}  # so the rate does not fall within its time, nor crawl up in it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and finished parts")
    parser.add_argument("--minutes", type=float, default=20.0, help="of GRPO")
    parser.add_argument("--rates", type=float, nargs=3, default=RATES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = load_config(LmConfig, args.config, [*args.overrides, "method=exact"])
    path = signals_path(config.signals)
    table = read_table(path)
    trunk = warm(config, table)
    seeds = []
    for seed in args.seeds:
        exact, _ = part(replace(config, seed=seed), table, args.work / f"{seed}-exact")
        start = args.work / f"{seed}-exact"  # its folder holds the supervised start as well
        trials = {}
        for rate in args.rates:
            options = replace(config.grpo, **ENDLESS, learning_rate=rate, minutes=TRIAL_SHARE * args.minutes)
            trials[rate] = grpo(config, seed, options, table, args.work / f"{seed}-grpo-{rate:g}", start, trunk)
        best = max(trials, key=lambda rate: trials[rate]["best_return"])
        options = replace(config.grpo, **ENDLESS, learning_rate=best, minutes=args.minutes)
        whole = grpo(config, seed, options, table, args.work / f"{seed}-grpo", start, trunk)
        seeds.append(compare(seed, exact, whole) | {"trials": trials, "rate": best})
        say(f"seed {seed}: {seeds[-1]['text']}")
    command = ["python", "benchmarks/exact_vs_grpo.py", str(args.config), *args.overrides]
    command += ["--work", "WORK", "--minutes", f"{args.minutes:g}", "--rates", *(f"{rate:g}" for rate in args.rates)]
    command += ["--seeds", *map(str, args.seeds), "--out", str(args.out)]
    write_json(args.out, provenance(command, plain(config), {"signals": path}) | {"seeds": seeds})


def part(
    config: LmConfig, table: Any, work: Path, known: FrozenTrunk | None = None
) -> tuple[dict[str, Any], FrozenTrunk | None]:
    """Train through a config's stages, or read back what was done: the curves of all stages, and hidden states.

    No policy is made of them, so that no time goes into thresholds.
    """
    learned = learn_stages(config, table, prepare(config, table), work, known=known)
    return {stage: asdict(result) for stage, (_, result) in learned.stages.items()}, learned.trunk


def warm(config: LmConfig, table: Any) -> FrozenTrunk | None:
    """The layers below the adapter, computed for all runs that are learned from or looked at."""
    prepared = prepare(config, table)
    trunk = frozen_trunk(trainable(prepared.base, config.lora, config.seed), config.lora)
    if trunk is not None:
        runs = [*prepared.training, *prepared.curve_on]
        say(f"computing the frozen layers of {len(runs)} runs")
        with matmul_precision(config.precision):
            for run in runs:
                for context in run.parts:
                    trunk.hidden(context.ids)
    return trunk


def grpo(
    config: LmConfig, seed: int, options: GrpoOptions, table: Any, work: Path, start: Path, trunk: FrozenTrunk | None
) -> dict[str, Any]:
    """GRPO from the supervised start of a finished exact run, in a folder of its own."""
    work.mkdir(parents=True, exist_ok=True)
    for name in ("sft.json", "sft.safetensors"):  # a finished stage is read, not trained again
        if not (work / name).exists():
            (work / name).write_bytes((start / name).read_bytes())
    return part(replace(config, seed=seed, method="grpo", grpo=options), table, work, trunk)[0]["grpo"]


def compare(seed: int, exact: dict[str, Any], grpo: dict[str, Any]) -> dict[str, Any]:
    """When the exact gradient first has what GRPO has at its end, and at its best."""
    looks = [entry for entry in grpo["curve"] if "eval_return" in entry]
    final, spent = looks[-1]["eval_return"], looks[-1]["seconds"]
    ours = [entry for entry in exact["exact"]["curve"] if "eval_return" in entry]

    def reached(value: float) -> dict[str, float] | None:
        found = next((entry for entry in ours if entry["eval_return"] >= value), None)
        return None if found is None else {key: found[key] for key in ("seconds", "state_gradients", "eval_return")}

    there = reached(final)
    share = None if there is None else there["seconds"] / spent
    return {
        "seed": seed,
        "start_return": ours[0]["eval_return"],
        "exact": exact["exact"],
        "sft": exact["sft"],
        "grpo": grpo,
        "grpo_final": {"eval_return": final, "seconds": spent, "state_gradients": looks[-1]["state_gradients"]},
        "exact_reaches_grpo_final": there,
        "exact_reaches_grpo_best": reached(max(entry["eval_return"] for entry in looks)),
        "share_of_time": share,
        "target_share_of_time": 0.2,
        "text": f"grpo ends at {final:.4f} after {spent:.0f} s; exact is there at "
        + ("no look" if there is None else f"{there['seconds']:.0f} s ({share:.2f} of the time)"),
    }


if __name__ == "__main__":
    main()
