"""``stopwise convert``: trajectories into other tools' formats."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from stopwise.data.errors import UsageError

TARGETS = ("jsonl", "datasets")


def add_parser(subparsers: Any) -> None:
    """Add the ``convert`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "convert",
        help="write trajectories as JSON Lines or as a Hugging Face dataset",
        description="jsonl: stopwise's own JSON Lines, every field, one trajectory a line. datasets: a folder for "
        "`datasets.load_from_disk` (needs the package datasets; `load_dataset('parquet', ..)` reads LOGS as it is).",
        epilog="example: stopwise convert logs.parquet --to jsonl --out logs.jsonl",
    )
    parser.add_argument("logs", type=Path, metavar="LOGS", help="Parquet file that `stopwise import` wrote")
    parser.add_argument("--to", choices=TARGETS, required=True, help="what to write")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file or folder to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert and report."""
    count = _to_jsonl(args.logs, args.out) if args.to == "jsonl" else _to_datasets(args.logs, args.out)
    if args.json:
        print(json.dumps({"trajectories": count, "to": args.to, "out": str(args.out)}))
    print(f"{count} trajectories -> {args.out}", file=sys.stderr)
    return 0


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
