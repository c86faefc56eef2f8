"""``stopwise convert``: trajectories into other tools' formats."""

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stopwise.cli.output import check_out
from stopwise.data.errors import DataError, UsageError
from stopwise.data.splits import SPLITS

TARGETS = ("jsonl", "datasets", "minari")
_ONLY_MINARI = ("signals", "features", "reward", "split")  # options of one target


def add_parser(subparsers: Any) -> None:
    """Add the ``convert`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "convert",
        help="write trajectories as JSON Lines, as a Hugging Face dataset, or as a Minari dataset",
        description="jsonl: stopwise's own JSON Lines, every field, one trajectory a line. datasets: a folder for "
        "`datasets.load_from_disk` (needs the package datasets; `load_dataset('parquet', ..)` reads LOGS as it is). "
        "minari: the decisions as episodes for offline reinforcement learning (needs the package minari, and the "
        "signals of LOGS).",
        epilog="example: stopwise convert logs.parquet --to jsonl --out logs.jsonl",
    )
    parser.add_argument("logs", type=Path, metavar="LOGS", help="Parquet file that `stopwise import` wrote")
    parser.add_argument("--to", choices=TARGETS, required=True, help="what to write")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file or folder to write")
    minari = parser.add_argument_group("minari")
    minari.add_argument("--signals", type=Path, metavar="FILE", help="what `stopwise signals LOGS` wrote")
    minari.add_argument(
        "--features", metavar="NAMES", help="signals in the observations, as Nov,SE (default: all of the table)"
    )
    minari.add_argument(
        "--reward",
        action="append",
        metavar="KEY=VALUE",
        help="a weight or price, as recall=1, correct=0, search=0.01, intervention=0, controller=0; may be given again",
    )
    minari.add_argument("--split", choices=SPLITS, help="only the questions of one split (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert and report."""
    if args.to == "jsonl":
        check_out(args.out, args.logs)
    if args.to == "minari":
        result = _to_minari(args)
    else:
        given = [name for name in _ONLY_MINARI if getattr(args, name) is not None]
        if given:
            raise UsageError(f"convert: --{given[0]} belongs to --to minari, not to --to {args.to}")
        write = _to_jsonl if args.to == "jsonl" else _to_datasets
        result = {"trajectories": write(args.logs, args.out)}
    if args.json:
        print(json.dumps({**result, "to": args.to, "out": str(args.out)}))
    print(f"{', '.join(f'{count} {_words(name)}' for name, count in result.items())} -> {args.out}", file=sys.stderr)
    return 0


def _words(name: str) -> str:
    return name.replace("_", " ")


def _to_jsonl(logs: Path, out: Path) -> int:
    from stopwise.data.codec import trajectory_to_dict
    from stopwise.data.files import atomic_path
    from stopwise.data.store import read_trajectories

    count = 0
    with atomic_path(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as target:
        for trajectory in read_trajectories(logs):
            count += 1
            target.write(json.dumps(trajectory_to_dict(trajectory), ensure_ascii=False, allow_nan=False) + "\n")
    return count


def _to_datasets(logs: Path, out: Path) -> int:
    from stopwise.data.files import atomic_folder
    from stopwise.data.store import count_trajectories

    count = count_trajectories(logs)  # also checks that it is a file of trajectories
    try:
        import datasets
    except ImportError:
        raise UsageError("convert --to datasets: the package datasets is not installed; pip install datasets") from None
    with atomic_folder(out) as partial:
        datasets.disable_progress_bars()
        dataset = datasets.Dataset.from_parquet(str(logs), cache_dir=str(partial / ".cache"), keep_in_memory=False)
        dataset.save_to_disk(str(partial / "data"))  # pyright: ignore[reportAttributeAccessIssue]
        del dataset
        _lift(partial)
    return count


def _lift(folder: Path) -> None:
    """Leave only the dataset in the folder: its files one level up, the cache gone."""
    import shutil

    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for path in sorted((folder / "data").iterdir()):
        path.rename(folder / path.name)
    (folder / "data").rmdir()


def _to_minari(args: argparse.Namespace) -> dict[str, int]:
    from stopwise.cli.inspect_logs import signals_of
    from stopwise.data.config import read_config
    from stopwise.data.files import atomic_folder
    from stopwise.data.store import read_trajectories
    from stopwise.envs.minari_export import ExportReport, decision_episodes, write_minari
    from stopwise.envs.rewards import Reward
    from stopwise.signals.features import FeatureSpec

    if args.signals is None:
        raise UsageError("convert --to minari: --signals FILE is missing; make it with `stopwise signals LOGS --out F`")
    words = [word.partition("=") for word in args.reward or ()]
    reward = read_config(Reward, {key: _float(key, value) for key, _, value in words}, "--reward")
    table = signals_of(args.logs, args.signals)
    spec = FeatureSpec(tuple(args.features.split(",")) if args.features else table.names)
    report = ExportReport()
    with atomic_folder(args.out, mark="data/metadata.json") as partial:
        episodes = decision_episodes(table, read_trajectories(args.logs), spec, reward, report)
        chosen = (episode for episode in episodes if args.split in (None, episode.split))
        name = re.sub(r"[^-_0-9A-Za-z]+", "-", args.out.name)  # as Minari finds it below MINARI_DATASETS_PATH
        name = name if re.fullmatch(r".+-v[0-9]+", name) else f"{name}-v0"
        written = write_minari(partial, chosen, name=name, table=table, features=spec, reward=reward)
        if not written:
            raise DataError(f"{args.logs}: no episode to write ({_left_out(report) or 'none in that split'})")
    left = asdict(report)
    return {"episodes": written} | {name: left[name] for name in left if name.startswith("without") and left[name]}


def _left_out(report: Any) -> str:
    return ", ".join(
        f"{count} {_words(name)}" for name, count in asdict(report).items() if name.startswith("without") and count
    )


def _float(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--reward {key}={value}: expected KEY=NUMBER") from None
