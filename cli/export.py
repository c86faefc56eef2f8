"""``stopwise export``: a policy package of a trained controller, with what a benchmark said about it."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from stopwise.cli.output import print_json, say

METRICS = ("searches", "saving", "recall", "precision", "f1", "accuracy", "return", "interventions")


def add_parser(subparsers: Any) -> None:
    """Add the ``export`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "export",
        help="make a policy package of a trained controller",
        description="Copy a trained controller into a folder that a live agent loads: plain data, checked by hash.",
        epilog="example: stopwise export runs/logistic --out policy --benchmark runs/benchmark",
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder that `stopwise train` wrote")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the package")
    parser.add_argument(
        "--benchmark", type=Path, metavar="RUN", help="benchmark run whose figures for this policy go into the package"
    )
    parser.add_argument(
        "--as",
        dest="form",
        choices=("policy", "adapter", "merged"),
        default="policy",
        help="policy: what a live agent loads (default); of a small language model also its peft adapter, or the whole "
        "network with merged weights, for other tools",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the run's policy, add the figures, write the package, and read it back."""
    from stopwise.controllers.package import read_package, write_package
    from stopwise.train.train import run_folder

    package = read_package(run_folder(args.run_folder))
    if args.benchmark is not None:
        figures = _figures(args.benchmark, args.run_folder, package.name)
        package = replace(package, training={**package.training, "benchmark": figures})
    if args.form == "policy":
        write_package(args.out, package)
        read_package(args.out)
    else:
        from stopwise.train.lm.export import export_network

        export_network(args.out, package.name, package.controller, args.form)
    if args.json:
        print_json({"out": str(args.out), "name": package.name, "kind": package.controller.kind, "form": args.form})
    elif args.form != "policy":
        print(args.out)
        say(f"{package.name}: {args.form}, for transformers and peft; a live agent loads a policy")
    else:
        print(args.out)
        say(f"{package.name} ({package.controller.kind}): load it with stopwise.runtime.load({str(args.out)!r})")
    return 0


def _figures(benchmark: Path, run_folder: Path, name: str) -> dict[str, Any]:
    """The benchmark's figures for a policy, with its interval against never_stop."""
    from stopwise.data.errors import DataError
    from stopwise.data.files import read_json
    from stopwise.train.train import run_folder as policy_folder

    path = benchmark / "result.json" if benchmark.is_dir() else benchmark
    result = read_json(path)
    rows = result.get("rows") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: is no result of `stopwise benchmark`; name its run folder")
    wanted = policy_folder(run_folder).resolve()
    chosen = [row for row in rows if row.get("policy") and policy_folder(Path(row["policy"])).resolve() == wanted]
    if not chosen or "not_applicable" in chosen[0]:
        raise DataError(f"{path}: has no figures for the policy {run_folder} ({name}); benchmark it first")
    row = chosen[0]
    try:
        recall = (row["versus_never_stop"] or {}).get("recall", {})
        return {
            "split": result["split"],
            "questions": result["questions"],
            "intervention_model": row["intervention_model"],
            "data_sha256": result["data_sha256"],
            **{key: row[key] for key in METRICS},
            "recall_difference": recall.get("difference"),
            "recall_difference_ci": recall.get("ci"),
        }
    except KeyError as error:
        raise DataError(f"{path}: has no {error}; is it the whole result of `stopwise benchmark`?") from None
