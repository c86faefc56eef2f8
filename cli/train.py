"""``stopwise train``: fit a controller on training questions, choose what is to be chosen on validation questions."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stopwise.cli.output import print_json, say, signals_path


def add_parser(subparsers: Any) -> None:
    """Add the ``train`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "train",
        help="fit a controller on training questions, choose its threshold on validation",
        description="Fit a controller. Its weights come from training questions, its hyperparameters and threshold "
        "from validation questions; test questions are not looked at.",
        epilog="example: stopwise train configs/logistic.yaml --out runs/logistic reward.search=0.02",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file; see configs/")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config keys to set, as reward.search=0.02")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train and write the run: the policy, the resolved config and the record of what was tried."""
    from stopwise.controllers.package import write_package
    from stopwise.data.config import load_values, read_config
    from stopwise.data.files import check_folder_target
    from stopwise.signals.table import read_table
    from stopwise.train.train import TrainConfig, train, uplift_file

    values = load_values(args.config, args.overrides)
    check_folder_target(args.out)
    kind = values.get("kind")
    if kind == "lm":
        from stopwise.cli.train_lm import run_lm

        return run_lm(args, values)
    if kind == "memory":
        return _train_memory(args, values)
    if kind == "q_lambda":
        return _train_q_lambda(args, values)
    config = read_config(TrainConfig, values, str(args.config))
    path = signals_path(config.signals)
    if config.kind == "uplift":
        return _train_uplift(args, config, path)
    inputs = {"signals": path}
    if config.uplift is not None:
        inputs["uplift"] = uplift_file(config.uplift)
    if config.branches is not None:
        inputs["branches"] = Path(config.branches)
    package, record = train(config, read_table(path))
    result = write_run(args, config, inputs, record, lambda folder: write_package(folder / "policy", package))
    if args.json:
        print_json(result | {"out": str(args.out)})
    else:
        figures = record["validation"]
        chosen = ", ".join(f"{key} {value}" for key, value in record["chosen"].items()) or "nothing to choose"
        print(f"{package.name}: {chosen}")
        say(
            f"validation: recall {_show(figures['recall'])} at {_show(figures['searches'])} searches, "
            f"return {_show(figures['return'])}; policy in {args.out / 'policy'}"
        )
    return 0


def train_command(args: argparse.Namespace) -> list[str]:
    """The words that make a run again."""
    return ["stopwise", "train", str(args.config), *args.overrides, "--out", str(args.out)]


def write_run(
    args: argparse.Namespace,
    config: Any,
    inputs: Mapping[str, Path],
    record: dict[str, Any],
    fill: Callable[[Path], object],
) -> dict[str, Any]:
    """Write a run folder at `args.out`, atomically: what was made, its result and its resolved config.

    Args:
        args: of the command.
        config: resolved.
        inputs: name to file; their hashes stand in the result.
        record: what was tried and found.
        fill: writes what was made into the folder.

    Returns:
        What ``result.json`` holds.
    """
    from stopwise.data.config import plain, write_config
    from stopwise.data.files import atomic_folder, write_json
    from stopwise.evaluation.record import provenance

    command = train_command(args)
    result = provenance(command, plain(config), inputs) | record
    with atomic_folder(args.out) as folder:
        fill(folder)
        write_json(folder / "result.json", result)
        write_config(folder / "config.yaml", config, command)
    return result


def _show(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _train_uplift(args: argparse.Namespace, config: Any, path: Path) -> int:
    """Fit the intervention model `uplift` and write its run."""
    from dataclasses import asdict

    from stopwise.data.config import read_config
    from stopwise.envs.uplift import write_fit
    from stopwise.signals.table import read_table
    from stopwise.train.train import chosen_features
    from stopwise.train.uplift import UpliftOptions, fit_uplift

    options = read_config(UpliftOptions, config.params, f"{args.config}: params")
    table = read_table(path)
    fit = fit_uplift(table, chosen_features(table, config.features, privileged=config.privileged), options)
    record = {"kind": "uplift", "interventions": fit.interventions, "productive": fit.productive, **asdict(options)}
    result = write_run(args, config, {"signals": path}, record, lambda folder: write_fit(folder / "uplift.json", fit))
    if args.json:
        print_json(result | {"out": str(args.out)})
    else:
        share = fit.productive / fit.interventions
        print(f"uplift: {fit.interventions} interventions, {share:.1%} productive within {fit.horizon} searches")
        say(f"fit in {args.out / 'uplift.json'}")
    return 0


def _train_memory(args: argparse.Namespace, values: Mapping[str, Any]) -> int:
    """Build an experience memory and write its run: `memory.sqlite`, its indexes, the config and the record."""
    from stopwise.cli.output import Progress, logs_path
    from stopwise.controllers.memory.memory import ExperienceMemory
    from stopwise.data.config import plain, read_config, write_config
    from stopwise.data.files import atomic_folder, write_json
    from stopwise.data.store import read_trajectories
    from stopwise.evaluation.record import provenance
    from stopwise.models.chat_config import open_chat
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder
    from stopwise.train.memory import ByModel, Extractive, MemoryConfig, build_memory

    config = read_config(MemoryConfig, values, str(args.config))
    logs = logs_path(config.logs)
    encoder = CachedEncoder(SentenceTransformerEncoder(config.encoder or MINILM), config.cache)
    client = open_chat(config.llm) if config.llm is not None else None
    abstractor = Extractive() if client is None else ByModel(client)
    command = train_command(args)
    with atomic_folder(args.out) as folder:
        memory = ExperienceMemory(folder, encoder, tau_dup=config.tau_dup)
        try:
            record = build_memory(lambda: read_trajectories(logs), memory, config, abstractor, Progress())
        finally:
            memory.close()
        record |= {"encoder": encoder.id, "bytes": sum(path.stat().st_size for path in folder.iterdir())}
        if client is not None and isinstance(abstractor, ByModel):
            record["llm"] = client.ledger.report() | {"failures": dict(abstractor.failures)}
        result = provenance(command, plain(config), {"logs": logs}) | record
        write_json(folder / "result.json", result)
        write_config(folder / "config.yaml", config, command)
    if args.json:
        print_json(result | {"out": str(args.out)})
    else:
        kept = record["entries"]
        print(f"{config.name or 'memory'}: {kept['success']} successes, {kept['failure']} failures")
        say(
            f"{record['sessions']} sessions of {sum(record['runs'].values())} runs, {record['near_duplicates']} near "
            f"duplicates left out; abstractions: {record['abstractions']}; memory in {args.out}"
        )
    return 0


def _train_q_lambda(args: argparse.Namespace, values: Mapping[str, Any]) -> int:
    """Fit Stop-RAG's stopper and write its run."""
    from stopwise.controllers.package import write_package
    from stopwise.data.config import read_config
    from stopwise.signals.table import read_table
    from stopwise.train.q_lambda import QLambdaConfig, train_q_lambda

    config = read_config(QLambdaConfig, values, str(args.config))
    path = signals_path(config.signals)
    package, record = train_q_lambda(config, read_table(path))
    result = write_run(
        args, config, {"signals": path}, record, lambda folder: write_package(folder / "policy", package)
    )
    if args.json:
        print_json(result | {"out": str(args.out)})
    else:
        chosen, greedy = record["validation"], record["greedy"]
        print(f"{package.name}: {', '.join(f'{key} {value:g}' for key, value in record['chosen'].items())}")
        say(
            f"validation: recall {_show(chosen['recall'])} at {_show(chosen['searches'])} searches, return "
            f"{_show(chosen['return'])} ({_show(greedy['return'])} without a chosen threshold); policy in "
            f"{args.out / 'policy'}"
        )
    return 0
