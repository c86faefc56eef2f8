"""``stopwise cost``: what the language models of runs cost, by purpose."""

import argparse
from pathlib import Path
from typing import Any

from stopwise.cli.output import print_json
from stopwise.data.errors import DataError

COLUMNS = (
    ("calls", "calls"),
    ("failures", "failed"),
    ("from_cache", "from cache"),
    ("prompt_tokens", "prompt tokens"),
    ("cached_prompt_tokens", "of these cached"),
    ("completion_tokens", "generated"),
    ("money", "money"),
    ("seconds", "seconds"),
    ("saved_money", "saved by our cache"),
)  # field of the bill, heading


def add_parser(subparsers: Any) -> None:
    """Add the ``cost`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "cost",
        help="what the language models of runs cost, by purpose",
        description="Show the bills of runs that called a language model: calls, tokens, money and seconds of agent, "
        "coverage, controller and rethinker (operation), and of reader and judge (evaluation: spent on measuring a "
        "run, not on running it). Money is by the prices of the run's config, with prompt tokens that the server "
        "cached priced apart (llm: endpoint: prices: {prompt: .., cached: .., completion: ..}, for a million tokens); "
        "seconds are summed over parallel calls. Interrupted and resumed calls of one run stand in one bill.",
        epilog="example: stopwise cost runs/react signals.parquet",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder or file that a command wrote, or a bill (JSON)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Find the bills and show them."""
    from stopwise.models.ledger import read_bills

    bills = {
        f"{path} ({part})" if part else str(path): bill
        for path in args.runs
        for part, bill in read_bills(bill_of(path)).items()
    }
    if args.json:
        print_json({"bills": bills})
    else:
        for name, bill in bills.items():
            print_bill(name, bill)
    return 0


def bill_of(run: Path) -> Path:
    """The bill of a run.

    Raises:
        DataError: there is none.
    """
    from stopwise.models.ledger import BILL, bill_beside

    if not run.exists():
        raise DataError(f"{run}: no such file or folder; expected what a command wrote")
    if run.is_dir():
        places = [run / BILL, run / "result.json", run / "benchmark.json"]
    else:
        places = [run] if run.suffix == ".json" else [bill_beside(run)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise DataError(
            f"{run}: has no bill ({places[0]}); it called no language model, or was made before bills were kept"
        )
    return found


def print_bill(name: str, bill: dict[str, Any]) -> None:
    """One bill for people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    from stopwise.models.ledger import PARTS

    table = Table("part", "purpose", title=f"{name}: {bill.get('model', 'a language model')}")
    for _, heading in COLUMNS:
        table.add_column(heading, justify="right")
    for part in PARTS:
        for purpose, account in bill[part].items():
            total = purpose == "total"
            cells = [_cell(field, account[field]) for field, _ in COLUMNS]
            table.add_row(part, purpose, *cells, style="bold" if total else None, end_section=total)
    Console(width=max(Console().width, 150)).print(table)


def _cell(field: str, value: float) -> str:
    if field in ("money", "saved_money"):
        return f"{value:.4f}"
    return f"{value:,.1f}" if field == "seconds" else f"{value:,}"
