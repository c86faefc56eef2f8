r"""The exact policy gradient against GRPO, from the same supervised start, on the same runs, in one go on one machine.

    python benchmarks/exact_vs_grpo.py configs/lm_exact.yaml --work runs/exact_vs_grpo --minutes 20 \\
        --out docs/results/exact_vs_grpo.json

GRPO's learning rate is the best of three on validation after a tenth of its time each; then it has its whole time, in
which that of the trials does not count. That of `exact` is the config's, or the best of `--exact-rates`, each with all
its epochs; the time of the others does not count either. How many steps of GRPO a time allows is not known before, so
its rate rises and falls with the time and is zero at its end. It is judged twice: by its last look at the validation
runs, and by its best, whose weights `stopwise train` keeps.

Curves hold the exact expected return on the same validation runs, over wall-clock seconds and over state-gradients (the
states whose gradient was taken). The layers below the adapter are computed before either clock starts, and the
supervised stage is in neither; `start=RUN` takes that of a finished run. An interrupted benchmark goes on: call it
again.

Each of `--variants "grpo.kl=0.01 grpo.learning_rate=1e-4"` is one more GRPO with its whole time and other settings, at
the rate that these or the config name.
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
ENDLESS = 1000.0  # epochs: the time ends first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and finished parts")
    parser.add_argument("--minutes", type=float, default=20.0, help="of GRPO")
    parser.add_argument("--rates", type=float, nargs=3, default=RATES)
    parser.add_argument("--exact-rates", type=float, nargs="+", help="of the exact gradient; by default the config's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", nargs="+", default=[], help="of GRPO: overrides in one word for each")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = load_config(LmConfig, args.config, [*args.overrides, "method=exact"])
    path = signals_path(config.signals)
    table = read_table(path)
    trunk = warm(config, table)
    seeds = []
    for seed in args.seeds:
        exact_rates = args.exact_rates or [config.exact.learning_rate]
        start = args.work / f"{seed}-exact-{exact_rates[0]:g}"  # its folder holds the supervised start as well
        exact_trials = {}
        for rate in exact_rates:
            own = replace(config, seed=seed, exact=replace(config.exact, learning_rate=rate))
            work = args.work / f"{seed}-exact-{rate:g}"
            take_start(start, work)
            exact_trials[rate] = part(own, table, work, trunk)
        exact_rate = max(exact_trials, key=lambda rate: exact_trials[rate]["exact"]["best_return"])
        exact = exact_trials[exact_rate]
        trials = {}
        for rate in args.rates:
            options = replace(config.grpo, epochs=ENDLESS, learning_rate=rate, minutes=TRIAL_SHARE * args.minutes)
            trials[rate] = grpo(config, seed, options, table, args.work / f"{seed}-grpo-{rate:g}", start, trunk)
        best = max(trials, key=lambda rate: trials[rate]["best_return"])
        options = replace(config.grpo, epochs=ENDLESS, learning_rate=best, minutes=args.minutes)
        whole = grpo(config, seed, options, table, args.work / f"{seed}-grpo", start, trunk)
        found = compare(seed, exact, whole) | {"trials": trials, "rate": best, "variants": {}}
        found |= {"exact_rate": exact_rate, "exact_trials": {r: t["exact"] for r, t in exact_trials.items()}}
        seeds.append(found)
        say(f"seed {seed}: {found['text']}")
        for number, words in enumerate(args.variants):
            options = load_config(LmConfig, args.config, [*args.overrides, *words.split()]).grpo
            options = replace(options, epochs=ENDLESS, minutes=args.minutes)
            other = grpo(config, seed, options, table, args.work / f"{seed}-variant-{number}", start, trunk)
            found = compare(seed, exact, other)
            seeds[-1]["variants"][words] = {key: value for key, value in found.items() if key not in ("exact", "sft")}
            say(f"seed {seed}, {words}: {found['text']}")
    command = ["python", "benchmarks/exact_vs_grpo.py", str(args.config), *args.overrides]
    command += ["--work", "WORK", "--minutes", f"{args.minutes:g}", "--rates", *(f"{rate:g}" for rate in args.rates)]
    if args.exact_rates:
        command += ["--exact-rates", *(f"{rate:g}" for rate in args.exact_rates)]
    command += ["--seeds", *map(str, args.seeds)]
    if args.variants:
        command += ["--variants", *(f'"{words}"' for words in args.variants)]
    command += ["--out", str(args.out)]
    write_json(args.out, provenance(command, plain(config), {"signals": path}) | {"seeds": seeds})


def part(config: LmConfig, table: Any, work: Path, trunk: FrozenTrunk | None) -> dict[str, Any]:
    """Train through a config's stages, or read back what was done: the curves of all stages.

    No policy is made of them, so that no time goes into thresholds.
    """
    learned = learn_stages(config, table, prepare(config, table), work, known=trunk)
    return {stage: asdict(result) for stage, (_, result) in learned.stages.items()}


def warm(config: LmConfig, table: Any) -> FrozenTrunk | None:
    """The layers below the adapter, computed for all runs that are learned from or looked at."""
    prepared = prepare(config, table)
    trunk = frozen_trunk(
        trainable(prepared.base, config.lora, config.seed), config.lora, bf16=config.precision == "bf16"
    )
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
    take_start(start, work)
    return part(replace(config, seed=seed, method="grpo", grpo=options), table, work, trunk)["grpo"]


def take_start(start: Path, work: Path) -> None:
    """What a finished exact run began with, for another run: a finished stage and a reading are not made again."""
    work.mkdir(parents=True, exist_ok=True)
    for name in ("sft.json", "sft.safetensors", "reading.json"):  # with `start: RUN` there is no such stage
        if (start / name).exists() and not (work / name).exists():
            (work / name).write_bytes((start / name).read_bytes())


def compare(seed: int, exact: dict[str, Any], grpo: dict[str, Any]) -> dict[str, Any]:
    """When the exact gradient first has what GRPO has at its end, and at its best, each against GRPO's own time there.

    The share of the best is None where no look of GRPO is better than its first, which both have from the start.
    """
    looks = [entry for entry in grpo["curve"] if "eval_return" in entry]
    ours = [entry for entry in exact["exact"]["curve"] if "eval_return" in entry]
    final, best = looks[-1], max(looks, key=lambda entry: entry["eval_return"])  # the first of equal ones

    def figures(entry: dict[str, float]) -> dict[str, float]:
        return {key: entry[key] for key in ("eval_return", "seconds", "state_gradients")}

    def reached(value: float) -> dict[str, float] | None:
        found = next((entry for entry in ours if entry["eval_return"] >= value), None)
        return None if found is None else figures(found)

    def share(there: dict[str, float] | None, theirs: dict[str, float]) -> float | None:
        return None if there is None or theirs is looks[0] else there["seconds"] / theirs["seconds"]

    def told(there: dict[str, float] | None, of_time: float | None) -> str:
        when = "no look" if there is None else f"{there['seconds']:.0f} s"
        return when if of_time is None else f"{when} ({of_time:.2f} of the time)"

    at_final, at_best = reached(final["eval_return"]), reached(best["eval_return"])
    share_final, share_best = share(at_final, final), share(at_best, best)
    return {
        "seed": seed,
        "start_return": ours[0]["eval_return"],
        "exact": exact["exact"],
        "sft": exact.get("sft"),
        "grpo": grpo,
        "grpo_final": figures(final),
        "grpo_best": figures(best),
        "exact_reaches_grpo_final": at_final,
        "exact_reaches_grpo_best": at_best,
        "share_of_time": share_final,
        "share_of_time_best": share_best,
        "target_share_of_time": 0.2,
        "text": f"grpo ends at {final['eval_return']:.4f} after {final['seconds']:.0f} s; exact is there at "
        f"{told(at_final, share_final)}; grpo's best is {best['eval_return']:.4f} after {best['seconds']:.0f} s; exact "
        f"is there at {told(at_best, share_best)}",
    }


if __name__ == "__main__":
    main()
