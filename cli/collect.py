"""``stopwise collect``: run agents over a corpus, with or without a controller, and keep their runs."""

import argparse
from pathlib import Path
from typing import Any

from stopwise.cli.output import Progress, print_json, say
from stopwise.data.errors import UsageError


def add_parser(subparsers: Any) -> None:
    """Add the ``collect`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "collect",
        help="run agents over a corpus, with or without a controller",
        description="Run scripted agents over the questions of a corpus, for real: they search, a controller may "
        "redirect or stop them. An interrupted collection goes on where it was: call it again. With --branch P: "
        "fork the runs at random states, roll out all three actions, and write what each was worth.",
        epilog="example: stopwise collect configs/collect.yaml --out runs/arena questions=100 workers=2",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file; see configs/")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config keys to set, as questions=100")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write, or to go on with")
    parser.add_argument("--branch", type=float, metavar="P", help="probability that a state is branched")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Collect, and say what there is."""
    from stopwise.data.config import load_config
    from stopwise.envs.arena.collect import collect
    from stopwise.envs.arena.collection import CollectConfig

    overrides = list(args.overrides)
    if args.branch is not None:
        if not 0 < args.branch <= 1:
            raise UsageError(f"--branch {args.branch}; expected a probability above 0")
        overrides.append(f"branch.probability={args.branch}")
    config = load_config(CollectConfig, args.config, overrides)
    result = collect(config, args.out, make_encoder, Progress())
    if args.json:
        print_json(result)
    else:
        say(f"{result['runs']} runs in {result['trajectories']}")
        if "branches" in result:
            say(f"branches in {result['branches']}")
    return 0


def make_encoder(model: str | None) -> Any:
    """The encoder of a worker, without a cache: a collection keeps its own, so that results depend on nothing else."""
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

    return SentenceTransformerEncoder(model or MINILM)
