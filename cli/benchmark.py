"""``stopwise benchmark``: controllers on the same held-out runs, each against never_stop, paired by question."""

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stopwise.cli.interventions import RetrieveChoice, make_intervention
from stopwise.cli.output import print_json, say, signals_path
from stopwise.cli.texts import texts_of
from stopwise.controllers.base import check_number
from stopwise.controllers.connections import Connections
from stopwise.controllers.guards import Guards
from stopwise.data.errors import UsageError
from stopwise.envs.arena.collection import CollectConfig, RethinkerChoice
from stopwise.envs.rewards import Reward
from stopwise.models.chat_config import ChatConfig
from stopwise.models.ledger import Budget

CONTROLLERS_BILL = "controllers.llm_cost.json"  # in the folder of an unfinished arena benchmark's arms


@dataclass(frozen=True)
class ControllerChoice:
    """One row of the table: a rule by `kind`, or a trained `policy`."""

    kind: str | None = None
    policy: str | None = None  # run folder of `stopwise train`, or a policy package
    name: str | None = None  # what the table calls it
    params: Mapping[str, Any] = field(default_factory=dict)  # of a rule
    match: str | None = None  # random only: name of the controller that it is to be like, as `by` says
    # searches: stop so often that as many searches are made on validation questions; interventions: never stop, and
    # make as many interventions a run as that row does here, at a rate that its counts give once it has run
    by: Literal["searches", "interventions"] = "searches"
    rethinker: RethinkerChoice | None = None  # arena only: who searches at an intervention; None is the arena's
    memory: str | None = None  # of ds_mcm with `slow`: folder of an experience memory
    versus: tuple[str, ...] = ()  # names of other rows to be compared with, besides never_stop


@dataclass(frozen=True)
class BenchmarkConfig:
    """One benchmark: over logs, or with `arena` over agents that run for real."""

    signals: str  # signal table, or "samples"; in the arena it says how signals are computed
    controllers: tuple[ControllerChoice, ...]
    split: Literal["train", "val", "cal", "test", "all"] = "test"
    intervention: Literal["forbidden", "noop", "uplift", "logged", "retrieve"] = "forbidden"
    uplift: str | None = None  # intervention uplift: run folder of `stopwise train configs/uplift.yaml`
    branches: str | None = None  # intervention logged: file of `stopwise collect --branch`, or "samples"
    retrieve: RetrieveChoice | None = None  # intervention retrieve: corpus, logs, rethinker
    reward: Reward = Reward()
    guards: Guards = Guards()  # of rules; a policy brings its own
    margin: float = 0.01  # recall that a controller may lose and still count as not inferior
    privileged: bool = False
    seed: int = 0
    # corpus, questions, agents, and with `arena.llm` the model of agents, rethinkers and judges; `split` stands above
    arena: CollectConfig | None = None
    llm: ChatConfig | None = None  # the language model of controllers that ask one; its bill is kept apart
    logs: str | None = None  # replay only: what `signals` was computed from, for controllers that read texts

    def __post_init__(self) -> None:
        check_number("margin", self.margin, low=0, high=1)
        check_number("seed", self.seed, low=0, whole=True)


def add_parser(subparsers: Any) -> None:
    """Add the ``benchmark`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "benchmark",
        help="compare controllers on held-out questions",
        description="Replay held-out runs under every controller. Continue and stop are exact for retrieval measures, "
        "intervening goes through the named intervention model. Each is compared with never_stop, paired by question. "
        "With `arena` in the config the agents run for real: scripted ones, or those that a language model drives.",
        epilog="example: stopwise benchmark configs/benchmark.yaml --out runs/benchmark",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file; see configs/")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config keys to set, as split=val")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, write the run folder and print the table."""
    from stopwise.data.config import load_config
    from stopwise.data.files import arms_beside, check_folder_target, lock_beside, only_process
    from stopwise.signals.table import read_table

    config = load_config(BenchmarkConfig, args.config, args.overrides)
    check_folder_target(args.out)
    if not config.controllers:
        raise UsageError(f"{args.config}: controllers is empty; name at least one, as `- kind: never_stop`")
    path = signals_path(config.signals)
    table = read_table(path)
    if any(choice.params.get("with_se") is False for choice in config.controllers):
        from stopwise.signals.re_only import add_re_z

        table = add_re_z(table)
    # arena: unfinished arms lie beside the run, and another process would take them for its own
    alone = nullcontext() if config.arena is None else only_process(arms_beside(args.out), lock_beside(args.out))
    with alone:
        result = _compare(args, config, table, path)
    if args.json:
        print_json(result | {"out": str(args.out)})
    else:
        tables = {"": result}
        for kind, rows in result.get("by_agent", {}).items():
            tables[kind] = result | {"rows": rows, "questions": rows[0].get("questions", 0), "runs": kind}
        for kind, shown in tables.items():
            print_table(shown)
            if config.arena is not None:
                print_costs(shown["rows"], kind or "all agents")
        explain()
        if config.arena is not None:
            explain_costs()
        say(f"result in {args.out / 'result.json'}")
    return 0


def _compare(args: argparse.Namespace, config: BenchmarkConfig, table: Any, path: Path) -> dict[str, Any]:
    """Run the benchmark and write the run folder."""
    from stopwise.data.config import plain, write_config
    from stopwise.data.files import arms_beside, atomic_folder, write_json
    from stopwise.evaluation.record import provenance

    command = ["stopwise", "benchmark", str(args.config), *args.overrides, "--out", str(args.out)]
    found = _run_replay(config, table) if config.arena is None else _run_arena(config, table, args.out)
    result = provenance(command, plain(config), {"signals": path}) | found
    with atomic_folder(args.out, mark="result.json") as folder:
        write_json(folder / "result.json", result)
        write_config(folder / "config.yaml", config, command)
        if config.arena is not None:
            # links, not a move: whatever stops the exchange of folders, the finished arms stay where they were
            shutil.copytree(arms_beside(args.out), folder / "arms", copy_function=_link)
    if config.arena is not None:
        shutil.rmtree(arms_beside(args.out))
    return result


def _run_replay(config: BenchmarkConfig, table: Any) -> dict[str, Any]:
    """Every controller over logged runs."""
    if any(choice.rethinker is not None for choice in config.controllers):
        raise UsageError("controllers: a rethinker searches in the arena only; leave it out, or add `arena`")
    part = table if config.split == "all" else table.split(config.split)
    questions = {episode.question_id for episode in part.episodes}
    with Connections(config.llm, table.info.encoder, questions) as connections:
        return _replay(config, table, part, connections)


def _replay(config: BenchmarkConfig, table: Any, part: Any, connections: Connections) -> dict[str, Any]:
    from stopwise.envs.replay import ReplayEnv
    from stopwise.evaluation.benchmark import benchmark

    arms = make_arms(config, table, connections)
    model, features = make_intervention(
        config.intervention, config.uplift, config.branches, config.retrieve, table.info
    )
    env = ReplayEnv(part, features, reward=config.reward, intervention=model)
    logs = texts_of(config.logs, arms, part)
    rows = benchmark(env, arms, seed=config.seed, margin=config.margin, privileged=config.privileged, logs=logs)
    return {
        "rows": rows,
        "llm": connections.report(),
        "split": config.split,
        "runs": len(part),
        "questions": len({episode.question_id for episode in part.episodes}),
        "runs_with_gold": int(part.has_gold.sum()),
        "coverage_judge": part.info.config.coverage_judge,
        "seed": config.seed,
    }


def _run_arena(config: BenchmarkConfig, table: Any, out: Path) -> dict[str, Any]:
    """Every controller in the closed loop; finished arms are kept beside `out` until all are done."""
    from stopwise.envs.arena.collection import questions_of, under_arms

    assert config.arena is not None
    collection = under_arms(config.arena, config.split)
    if config.intervention != "forbidden":
        raise UsageError("intervention: in the arena interventions are real; leave it out")
    if config.logs is not None:
        raise UsageError("logs: in the arena the agents run for real; leave it out")
    questions = questions_of(collection)
    ids, texts = {query.id for query in questions}, [query.text for query in questions]
    with Connections(config.llm, table.info.encoder, ids, texts) as connections:
        return _arena(config, collection, table, out, connections)


def _arena(
    config: BenchmarkConfig, collection: CollectConfig, table: Any, out: Path, connections: Connections
) -> dict[str, Any]:
    from stopwise.cli.output import Progress
    from stopwise.data.config import plain
    from stopwise.data.files import arms_beside, claim_folder
    from stopwise.evaluation.arena import FORMAT, ArenaArm, ArenaBenchmark, arena_rows
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder
    from stopwise.models.running_bill import RunningBill

    for choice in config.controllers:
        if choice.rethinker is not None:
            replace(collection, rethinker=choice.rethinker)  # what cannot be run is refused before anything is
    arms = make_arms(config, table, connections)
    _check_earlier_arms(out, [arm.name for arm in arms])
    folder = arms_beside(out)
    record = {"format": FORMAT, "config": plain(_without_budget(config)), "info": table.info.to_json()}
    claim_folder(folder, record, "benchmark")
    encoder = CachedEncoder(SentenceTransformerEncoder(collection.encoder or MINILM), folder / "embeddings.sqlite")
    client = connections.client
    own = None if client is None else RunningBill(folder / CONTROLLERS_BILL, client)
    bench = ArenaBenchmark(collection, table.info, encoder, folder, Progress(), () if own is None else (own,))
    rethinkers = {arm.name: choice.rethinker for arm, choice in zip(arms, config.controllers, strict=True)}
    chosen = [
        ArenaArm(arm, rethinkers[arm.name] or rethinkers.get(arm.matches or "") or collection.rethinker) for arm in arms
    ]
    rows, apart = arena_rows(bench, chosen, config.reward, seed=config.seed, margin=config.margin)
    encoder.close()
    return {
        "rows": rows,
        "llm": None if own is None else own.report(),
        "agents_llm": bench.report(),
        "by_agent": apart,
        "split": config.split,
        "runs": len(bench.jobs),
        "questions": len(set(bench.questions.tolist())),
        "coverage_judge": table.info.config.coverage_judge,
        "seed": config.seed,
    }


def _without_budget(config: BenchmarkConfig) -> BenchmarkConfig:
    """The config as far as results depend on it: with a larger budget an interrupted benchmark goes on."""
    llm = None if config.llm is None else replace(config.llm, budget=Budget())
    arena = config.arena
    if arena is not None and arena.llm is not None:
        arena = replace(arena, llm=replace(arena.llm, budget=Budget()))
    return replace(config, llm=llm, arena=arena)


def _link(source: str, target: str) -> None:
    """Give a file a second name; where the file system knows no such thing, copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _check_earlier_arms(out: Path, names: Sequence[str]) -> None:
    """Refuse before the first run what the exchange of folders would refuse after the last one."""
    from stopwise.evaluation.arena import ALONE, arm_file

    ours = {arm_file(out / "arms", name).name for name in (ALONE, *names)}
    for path in sorted((out / "arms").glob("*.parquet")):
        if path.stem not in ours:
            raise UsageError(
                f"--out {out}: holds {path.relative_to(out)}, the runs of an arm that this benchmark has not; "
                "name another folder, or move it away"
            )


def make_arms(config: BenchmarkConfig, table: Any, connections: Connections) -> list[Any]:
    """The controllers of a config, in its order; a random one that is matched by searches has its rate already.

    Raises:
        UsageError: a controller is not well declared, or names a row that is not there.
    """
    from stopwise.controllers.baselines import Random
    from stopwise.controllers.kinds import make_rule
    from stopwise.evaluation.benchmark import Arm, check_names
    from stopwise.train.train import read_run

    arms: dict[int, Arm] = {}
    for number, choice in enumerate(config.controllers):
        if (choice.kind is None) == (choice.policy is None):
            raise UsageError(f"controllers.{number}: needs either `kind` or `policy`, and not both")
        if choice.match is not None and choice.kind != Random.kind:
            raise UsageError(f"controllers.{number}.match: only {Random.kind} can be matched to another controller")
        if choice.match is None and choice.by != "searches":
            raise UsageError(f"controllers.{number}.by: says what `match` matches, and there is none; name a row by it")
        if choice.params and (choice.policy is not None or choice.match is not None):
            raise UsageError(
                f"controllers.{number}.params: a trained or matched controller has its own; leave them out"
            )
        if choice.policy is not None:
            package = read_run(choice.policy, f"controllers.{number}.policy")
            arms[number] = Arm(choice.name or package.name, package.controller, package.guards, choice.policy)
        elif choice.match is None:
            controller = make_rule(choice.kind or "", choice.params)
            arms[number] = Arm(choice.name or controller.kind, controller, config.guards)
    for number, arm in arms.items():
        connections.connect(arm.controller, config.controllers[number].memory, f"controllers.{number}")
    for number, choice in enumerate(config.controllers):
        if choice.match is not None and choice.by == "interventions":
            name = choice.name or f"random interventions ~ {choice.match}"
            arms[number] = Arm(name, Random(stop=0.0), config.guards, matches=choice.match)
        elif choice.match is not None:
            reference = next((arm for arm in arms.values() if arm.name == choice.match), None)
            if reference is None:
                names = ", ".join(arm.name for arm in arms.values())
                raise UsageError(f"controllers.{number}.match: no controller is called {choice.match!r}; found {names}")
            name = choice.name or f"random ~ {choice.match}"
            arms[number] = _matched(config, table, reference, name)
    made = [replace(arms[number], versus=choice.versus) for number, choice in enumerate(config.controllers)]
    check_names(made)  # before a corpus is embedded or a run is made
    return made


def _matched(config: BenchmarkConfig, table: Any, reference: Any, name: str) -> Any:
    """A random controller that makes as many searches on validation questions as the reference, if that can be told."""
    from stopwise.controllers.baselines import Random
    from stopwise.envs.replay import ReplayEnv
    from stopwise.evaluation.benchmark import Arm, matched_stop_rate, missing_signal
    from stopwise.evaluation.rollout import rollout
    from stopwise.signals.features import FeatureSpec

    validation = table.split("val")
    reason = missing_signal(validation, reference.controller)
    if reference.controller.reads_text:
        reason = "it reads texts, which validation runs are replayed without"
    if reason is not None:
        return Arm(name, Random(), config.guards, not_applicable=f"{reference.name} is not applicable: {reason}")
    if not len(validation.values):
        return Arm(name, Random(), config.guards, not_applicable="no validation run to match the rate on")
    # matched on stopping alone: a random controller does not intervene
    env = ReplayEnv(validation, FeatureSpec(()), reward=config.reward)
    outcomes = rollout(env, reference.controller, reference.guards, seed=config.seed)
    searches = sum(run.searches for run in outcomes) / len(outcomes)
    return Arm(name, Random(stop=matched_stop_rate(validation.lengths, searches, config.guards)), config.guards)


def print_table(result: Mapping[str, Any]) -> None:
    """The rows for people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    rows: Sequence[Mapping[str, Any]] = result["rows"]
    title = (
        f"{result['config']['signals']}: {result['questions']} {result['split']} questions, {result['runs']} runs; "
        f"intervention model: {rows[0]['intervention_model']}"
    )
    table = Table(
        "controller", "searches", "saved", "recall", "difference [95%]", "win/tie/loss", "nudges", "return",
        "accuracy", "ms",
        title=title,
    )  # fmt: skip
    precision = rows[0]["intervention_model"] == "arena"
    if precision:
        table.add_column("precision")
    for number, column in enumerate(table.columns):
        column.no_wrap = number not in (0, 4)  # names and reasons may be long
    table.columns[0].min_width, table.columns[4].min_width = 20, 24
    for row in rows:
        if "not_applicable" in row:
            table.add_row(row["controller"], "not applicable", "", "", row["not_applicable"])
            continue
        versus = (row["versus_never_stop"] or {}).get("recall", {})
        difference, outcome = "", ""
        if versus.get("difference") is not None:
            low, high = versus["ci"] or (None, None)
            interval = "" if low is None else f" [{low:+.3f}, {high:+.3f}]"
            difference = f"{versus['difference']:+.3f}{interval}"
            outcome = f"{versus['wins']}/{versus['ties']}/{versus['losses']}"
        table.add_row(
            row["controller"],
            _show(row["searches"], 1),
            "-" if row["saving"] is None else f"{row['saving']:.0%}",
            _show(row["recall"], 3),
            difference,
            outcome,
            _show(row["interventions"], 2),
            _show(row["return"], 3),
            _accuracy(row),
            _show(row["milliseconds_a_decision"], 2),
            *([_show(row["precision"], 3)] if precision else []),
        )
    Console(width=max(Console().width, 150)).print(table)
    for row in rows:
        if "matched" in row:
            print(_match(row))
    for row in rows:
        for other, figures in row.get("versus", {}).items():
            print(f"{row['controller']} against {other}: {_differences(figures)}")


def _match(row: Mapping[str, Any]) -> str:
    """What a matched row is, and how well it came out."""
    matched = row["matched"]
    return (
        f"{row['controller']}: intervenes with probability {matched['rate']:.3f} where it may, "
        f"{matched['interventions']:.2f} times a run; {matched['row']} {matched['interventions_of_row']:.2f}"
    )


def _differences(figures: Mapping[str, Any]) -> str:
    """What one row has more than another, with 95% intervals."""
    if "reason" in figures:
        return str(figures["reason"])
    parts = []
    for name, digits in (("return", 4), ("recall", 4), ("searches", 2)):
        found = figures[name]
        if found["difference"] is not None:
            interval = "" if found["ci"] is None else " [{:+.{d}f}, {:+.{d}f}]".format(*found["ci"], d=digits)
            parts.append(f"{name} {found['difference']:+.{digits}f}{interval}")
    return ", ".join(parts) or "nothing is known of both"


def print_costs(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """What the runs of each row cost and who spent it, for people, on stdout; in the arena only."""
    from rich.console import Console
    from rich.table import Table

    table = Table("controller", "model", title=f"what a run cost: {title}")
    for name in (
        "calls",
        "tokens",
        "s agent",
        "s search",
        "s controller",
        "signals",
        "s rethinker",
        "share",
        "x alone",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        models = ", ".join(dict.fromkeys(model for model in row["models"].values() if model)) or "none"
        if "not_applicable" in row:
            table.add_row(row["controller"], models, "not applicable")
            continue
        cost, overhead = row["cost"], row["overhead"]
        calls, tokens = (
            " + ".join(_show(cost[name][who], digits) for who in _spenders(row))
            for name, digits in (("calls", 1), ("tokens", 0))
        )
        seconds = [_show(cost["seconds"][who], 3) for who in ("agent", "search", "controller", "signals", "rethinker")]
        share = overhead["seconds"]
        parts = [] if share is None else [value or 0.0 for value in share.values()]
        table.add_row(
            row["controller"], models, calls, tokens, *seconds,
            f"{sum(parts):.1%}" if parts else "-",
            _show(overhead["times_alone"], 2),
        )  # fmt: skip
    Console(width=max(Console().width, 150)).print(table)


def _spenders(row: Mapping[str, Any]) -> list[str]:
    """Who asks a language model in a row, the agent and the controller always named."""
    asked = row["cost"]["calls"]
    return [who for who in ("agent", "controller", "rethinker") if who != "rethinker" or asked[who]]


def explain_costs() -> None:
    """What the columns of costs are, on stderr."""
    say(
        "calls, tokens: of agent + controller (+ rethinker), a run; signals: of the controller's seconds; share: "
        "seconds of controller and rethinker in the whole run; x alone: seconds of the run over those of the agents by "
        "themselves; neither is told of scripted agents, which think in microseconds"
    )


def explain() -> None:
    """What the columns are, on stderr."""
    say(
        "difference: recall against never_stop, paired by question; nudges: interventions a run; accuracy: of runs "
        "that end by an answer, where the answer at every stop is known; ms: a decision"
    )


def _accuracy(row: Mapping[str, Any]) -> str:
    """Accuracy where it is known for every run that was not cut: over a part chosen by where it stopped it misleads."""
    whole = row["runs"] - row["cut_runs"]
    if row["accuracy"] is None or row["accuracy_runs"] < whole:
        return f"{row['accuracy_runs']} of {whole} known"
    return f"{row['accuracy']:.3f}"


def _show(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
