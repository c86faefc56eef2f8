"""``stopwise train`` for a small language model: it may be launched by accelerate, and it goes on where it was."""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stopwise.cli.output import Progress, print_json, say, signals_path


def run_lm(args: argparse.Namespace, values: Mapping[str, Any]) -> int:
    """Train through all stages and write the run; an interrupted one leaves `OUT.partial` and goes on from there."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries print where they like; stdout is for the result
        done = _train(args, values)
    if done is None:
        return 0
    result, lines = done
    if args.json:
        print_json(result)
    else:
        print("\n".join(lines))
    return 0


def _train(args: argparse.Namespace, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]] | None:
    """Train and write; returns the result and lines for people, in one process only."""
    try:
        import accelerate  # noqa: F401
        import trl  # noqa: F401
    except ImportError as error:
        from stopwise.data.errors import UsageError

        raise UsageError(f"train: kind lm needs {error.name or error}; run `pip install 'stopwise[lm]'`") from error
    from stopwise.data.config import read_config
    from stopwise.data.files import lock_beside, only_process, stages_beside
    from stopwise.train.lm.config import LmConfig
    from stopwise.train.train import uplift_file

    config = read_config(LmConfig, values, str(args.config))
    path = signals_path(config.signals)
    inputs = {"signals": path}
    if config.uplift is not None:
        inputs["uplift"] = uplift_file(config.uplift)
    if config.branches is not None:
        inputs["branches"] = Path(config.branches)
    work = stages_beside(args.out)
    # of processes that were launched together the first one writes, and holds the folder for all
    main = os.environ.get("RANK", "0") == "0"
    with only_process(work, lock_beside(args.out)) if main else contextlib.nullcontext():
        say(f"checkpoints in {work}; call the same command again to go on after an interruption")
        return _train_in(work, args, config, path, inputs)


def _train_in(
    work: Path, args: argparse.Namespace, config: Any, path: Path, inputs: Mapping[str, Path]
) -> tuple[dict[str, Any], list[str]] | None:
    """Train in a folder that this process, or the first of those launched with it, holds."""
    import shutil

    from accelerate import PartialState

    from stopwise.cli.train import write_run
    from stopwise.controllers.package import write_package
    from stopwise.signals.table import read_table
    from stopwise.train.lm.run import train_lm

    trained, record = train_lm(config, read_table(path), work, Progress())
    processes = PartialState()
    if not processes.is_main_process:
        return None
    *earlier, (last, final) = trained.items()

    def fill(folder: Path) -> None:
        write_package(folder / "policy", final.package)
        for stage, part in earlier:
            write_package(folder / stage / "policy", part.package)
        for price, part in final.at_prices.items():
            write_package(folder / "prices" / f"{price:g}" / "policy", part.package)

    result = write_run(args, config, inputs, record | {"processes": processes.num_processes}, fill)
    shutil.rmtree(work)
    say(f"{last}: policy in {Path(args.out) / 'policy'}")
    lines = [
        f"{stage}: validation return {part.thresholds.value:.3f}, recall {part.thresholds.recall:.3f} at "
        f"{part.thresholds.searches:.1f} searches and {part.thresholds.interventions:.2f} interventions, "
        f"{part.result.seconds:.0f} s"
        for stage, part in trained.items()
    ]
    for price, part in final.at_prices.items():
        found = part.thresholds
        lines.append(
            f"at a search price of {price:g}: recall {found.recall:.3f} at {found.searches:.1f} searches and "
            f"{found.interventions:.2f} interventions; policy in {args.out / 'prices' / f'{price:g}' / 'policy'}"
        )
    return result | {"out": str(args.out)}, lines
