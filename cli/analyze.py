"""``stopwise analyze``: how well each signal ranks the steps that bring new evidence."""

import argparse
from pathlib import Path
from typing import Any

from stopwise.cli.output import SAMPLES, check_out, print_json, say, signals_path


def add_parser(subparsers: Any) -> None:
    """Add the ``analyze`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "analyze",
        help="AUROC of every signal against new-item recall",
        description="AUROC of every signal against NiR > 0 (the step brought a gold document not seen before): pooled, "
        "turn-matched (only steps at the same turn are compared: signals and label both change as a run goes on, so "
        "a pooled value may be leakage) and within-question. Intervals are 95% bootstraps over questions.",
        epilog="example: stopwise analyze signals.parquet",
    )
    parser.add_argument("signals", metavar="SIGNALS", help=f"file that `stopwise signals` wrote, or {SAMPLES!r}")
    parser.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default 1000)")
    parser.add_argument("--horizon", type=int, default=3, metavar="H", help="steps ahead of the predictive AUROC")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the bootstrap")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON here too")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Analyze, and print or write the result."""
    from stopwise.data.errors import UsageError
    from stopwise.data.files import write_json
    from stopwise.evaluation.record import provenance
    from stopwise.evaluation.stagnation import analyze
    from stopwise.signals.table import read_table

    if args.resamples < 1 or args.horizon < 1 or args.seed < 0:
        raise UsageError("--resamples and --horizon: expected 1 or more; --seed: 0 or more")
    path = signals_path(args.signals)
    if args.out is not None:
        check_out(args.out, path)
    table = read_table(path)
    result = analyze(table, resamples=args.resamples, horizon=args.horizon, seed=args.seed)
    settings = {"resamples": args.resamples, "horizon": args.horizon, "seed": args.seed}
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    result = provenance(["stopwise", "analyze", args.signals, *words], settings, {"signals": path}) | result
    result |= {"seed": args.seed, "signals_sha256": result["data_sha256"]["signals"]}
    if args.out is not None:
        write_json(args.out, result)
    if args.json:
        print_json(result)
    else:
        print_table(result)
    return 0


def print_table(result: dict[str, Any]) -> None:
    """The AUROC table for people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    judge = f" (Cov judged by {result['coverage_judge']}{', PRIVILEGED' if result['privileged'] else ''})"
    table = Table(
        "signal", "pooled", "turn-matched", "within-question", "predictive, turn-matched", "missing",
        title="AUROC against NiR > 0" + judge,
    )  # fmt: skip
    for name, kinds in result["auroc"].items():
        predictive = result["predictive"][name]["turn_matched"]
        cells = [_cell(kinds[kind]) for kind in ("pooled", "turn_matched", "within_question")]
        nulls = ", ".join(f"{count} {reason}" for reason, count in result["nulls"][name].items())
        table.add_row(name, *cells, _cell(predictive), nulls)
    Console(width=max(Console().width, 150)).print(table)
    say(
        f"{result['steps']} search steps of {result['runs']} runs with gold, {result['questions']} questions; "
        f"{result['productive_share']:.1%} of the steps brought new gold; 0.5 is chance"
    )


def _cell(entry: dict[str, Any]) -> str:
    if entry["value"] is None:
        return f"- ({entry['reason']})"
    if entry["ci"] is None:
        return f"{entry['value']:.3f}"
    low, high = entry["ci"]
    return f"{entry['value']:.3f} [{low:.3f}, {high:.3f}]"
