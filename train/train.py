"""Training a controller: targets and fit on training questions, choices on validation questions, one run folder."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller, check_number
from stopwise.controllers.boosted import Boosted, Privileged
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import LEARNED, RULES, asks_model, make_rule
from stopwise.controllers.logistic import Logistic, design_matrix
from stopwise.controllers.package import PolicyPackage, read_package
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.arena.branch_store import read_branches
from stopwise.envs.arena.branching import BranchOutcome
from stopwise.envs.hindsight import hidden_state
from stopwise.envs.interventions import MODELS, Forbidden, InterventionModel, intervention_model
from stopwise.envs.logged import Logged
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, read_fit
from stopwise.evaluation.benchmark import missing_signal, summarise
from stopwise.evaluation.rollout import rollout
from stopwise.models.chat_config import ChatConfig, open_chat
from stopwise.signals.features import FeatureSpec, build_features, check_privilege
from stopwise.signals.table import SignalTable
from stopwise.train.action_targets import action_targets, branch_targets
from stopwise.train.fit import LogisticFit, fit_logistic
from stopwise.train.targets import TargetOptions
from stopwise.train.trees import TreeOptions, first_rounds, fit_trees
from stopwise.train.tune import (
    Objective,
    ThresholdChoice,
    ThresholdPair,
    choose_pair_by_values,
    choose_threshold,
    choose_threshold_pair,
    full_recall,
    tune_rule,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    kind: str  # logistic, boosted, privileged, or a rule whose parameters are chosen from `grid`
    signals: str  # signal table, or "samples"
    name: str | None = None  # what tables call it; the kind by default
    features: tuple[str, ...] | None = None  # signals that a learned controller sees; [] is the step index alone
    params: Mapping[str, Any] = field(default_factory=dict)  # fixed parameters of a rule
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # parameter: candidates; C for logistic
    reward: Reward = Reward()
    intervention: str = "forbidden"  # forbidden, noop, uplift or logged
    uplift: str | None = None  # intervention uplift: run folder of `stopwise train configs/uplift.yaml`
    branches: str | None = None  # file of `stopwise collect --branch`: learn from its Q; `signals` are of the same runs
    guards: Guards = Guards()
    targets: TargetOptions = TargetOptions()
    objective: Objective = Objective()
    privileged: bool = False  # allow coverage by gold as a feature: an upper bound, no policy
    seed: int = 0
    llm: ChatConfig | None = None  # of a rule that asks a language model

    def __post_init__(self) -> None:
        check_number("seed", self.seed, low=0, whole=True)


@dataclass(frozen=True)
class Basis:
    """What training knows of interventions."""

    model: InterventionModel
    features: FeatureSpec  # that an environment with this model must use
    outcomes: tuple[BranchOutcome, ...] | None = None  # of branched runs


def intervention_basis(config: TrainConfig) -> Basis:
    """The intervention model of a training run, and the branches that it learns from.

    Raises:
        UsageError: something that the model needs is not named, or something is named that it does not need.
        DataError: a file cannot be read.
    """
    name = config.intervention
    if config.uplift is not None and name != Uplift.name:
        raise UsageError(f"uplift: is for intervention uplift, found intervention {name}; leave it out")
    if config.branches is not None and name not in (Uplift.name, Logged.name):
        raise UsageError(f"branches: are for intervention uplift or logged, found intervention {name}; leave them out")
    outcomes = None if config.branches is None else tuple(read_branches(Path(config.branches)))
    if name == Uplift.name:
        if config.uplift is None:
            raise UsageError("intervention uplift: needs the key `uplift`; see configs/uplift.yaml")
        fit = read_fit(uplift_file(config.uplift))
        return Basis(Uplift(fit), fit.features, outcomes)
    if name == Logged.name:
        if outcomes is None:
            raise UsageError("intervention logged: needs the key `branches`; see configs/branches.yaml")
        return Basis(Logged(outcomes), FeatureSpec(()), outcomes)
    if name not in MODELS:
        raise UsageError(f"intervention {name!r} is not one of {', '.join((*MODELS, Uplift.name, Logged.name))}")
    return Basis(intervention_model(name), FeatureSpec(()))


def uplift_file(run: str) -> Path:
    """The fit in a run folder of `stopwise train configs/uplift.yaml`, or the file itself."""
    return Path(run) / "uplift.json" if Path(run).is_dir() else Path(run)


DEFAULT_TREES: Mapping[str, tuple[float, ...]] = {
    "rounds": (25, 50, 100, 200),
    "leaves": (4, 8),
    "min_leaf": (50, 200),
    "rate": (0.05,),
}
DEFAULT_STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # C of logistic


def train(config: TrainConfig, table: SignalTable) -> tuple[PolicyPackage, dict[str, Any]]:
    """Train on a table's training questions, choose on its validation questions.

    Args:
        config: what to train.
        table: signals and labels of all splits; only train and val are looked at.

    Returns:
        The policy, and a JSON-able record of what was tried.

    Raises:
        UsageError: the kind is unknown or a parameter is wrong.
        DataError: there is no gold, or a split has no run.
    """
    known = table.select(table.has_gold)
    if len(known) == 0:
        raise DataError("train: no run has gold, so no step has a value; join gold with `stopwise import --gold`")
    parts = {"train": known.split("train"), "val": known.split("val")}
    for split, part in parts.items():
        if not len(part.values):
            raise DataError(f"train: no run of the split {split} has a search step; bring logs of more questions")
    basis = intervention_basis(config)
    env = ReplayEnv(parts["val"], basis.features, reward=config.reward, intervention=basis.model)
    if config.kind in LEARNED:
        controller, tried = _train_learned(config, parts["train"], parts["val"], basis)
    elif config.kind in RULES and not RULES[config.kind].privileged:
        controller, tried = _tune(config, env)
    else:
        kinds = [*LEARNED, *(kind for kind, rule in RULES.items() if not rule.privileged)]
        raise UsageError(f"train: kind {config.kind!r}; expected one of {', '.join(kinds)}")
    figures = summarise(rollout(env, controller, config.guards, seed=config.seed), env.table.question_codes)
    record = {
        "kind": config.kind,
        "chosen": dict(controller.params),
        "tried": tried,
        "validation": figures,
        "questions": {split: len({e.question_id for e in part.episodes}) for split, part in parts.items()},
        "runs": {split: len(part) for split, part in parts.items()},
        "seed": config.seed,
    }
    training = {
        "reward": asdict(config.reward),
        "intervention_model": config.intervention,
        "chosen": dict(controller.params),
        # a policy is the same bytes each time that it is trained, so nothing by the clock stands in it
        "validation": {key: value for key, value in figures.items() if key != "milliseconds_a_decision"},
        "questions": record["questions"],
        "seed": config.seed,
        **controller.described,
    }
    package = PolicyPackage(config.name or config.kind, controller, config.guards, table.info, training)
    return package, record


def default_features(table: SignalTable, *, privileged: bool) -> tuple[str, ...]:
    """All signals of a table that are there at least once, coverage by gold only with privilege."""
    there = [name for index, name in enumerate(table.names) if (table.reasons[:, index] == 0).any()]
    if table.info.config.coverage_judge == "gold" and not privileged:
        there = [name for name in there if name not in ("Cov", "coverage_gain")]
    return tuple(there)


def chosen_features(table: SignalTable, names: tuple[str, ...] | None, *, privileged: bool) -> FeatureSpec:
    """The features of a config's `features`, or by default of all signals that are there.

    Raises:
        UsageError: a name is unknown, or coverage by gold is among them without privilege.
    """
    spec = FeatureSpec(default_features(table, privileged=privileged) if names is None else names)
    check_privilege(spec, table.info.config, privileged=privileged)
    return spec


def _train_learned(
    config: TrainConfig, training: SignalTable, validation: SignalTable, basis: Basis
) -> tuple[Controller, list[dict[str, Any]]]:
    spec = chosen_features(training, config.features, privileged=config.privileged)
    if config.params:
        found = next(iter(config.params))
        raise UsageError(f"train: {config.kind} has no parameter {found!r}; candidates stand under `grid`")
    known = states(config.kind, training, spec)
    if basis.outcomes is None:
        design = design_matrix(known)
        design = design[:, informative_columns(design)]
        model = basis.model if isinstance(basis.model, Uplift) else Forbidden()
        # noop is dominated by continue, and forbidden is masked: neither is ever a target
        values = action_targets(
            training, design, config.reward, config.targets, intervention=model, seed=config.seed
        ).returns
    else:
        branched = branch_targets(basis.outcomes, training, config.reward)
        known, values = known[branched.rows], branched.q
    grown = logistic_candidates if config.kind == Logistic.kind else boosted_candidates
    held_out, choose = states(config.kind, validation, spec), _chooser(config, validation, basis)
    tried, candidates = [], []
    for params, controller in grown(config, spec, known, values):
        choice = choose(controller.probabilities(held_out))
        controller.threshold = choice.threshold
        if isinstance(choice, ThresholdPair):
            controller.intervene_threshold = choice.intervene_threshold
        candidates.append(controller)
        tried.append({"params": params, **asdict(choice)})
    if isinstance(basis.model, Logged):
        return candidates[int(np.argmax([row["value"] for row in tried]))], tried
    returns, recalls, searches = (np.array([row[key] for row in tried]) for key in ("value", "recall", "searches"))
    best = config.objective.best(returns, recalls, searches, full_recall(validation))
    return candidates[best], tried


def _chooser(
    config: TrainConfig, validation: SignalTable, basis: Basis
) -> Callable[[Floats], ThresholdChoice | ThresholdPair]:
    """How thresholds are chosen from the probabilities at the validation rows."""
    if isinstance(basis.model, Uplift):
        model = basis.model
        return lambda probabilities: choose_threshold_pair(
            probabilities, validation, config.reward, config.guards, model, config.objective
        )
    if isinstance(basis.model, Logged) and basis.outcomes is not None:
        if config.objective.max_recall_loss is not None:
            raise UsageError("objective.max_recall_loss: branches do not tell the recall of whole runs; leave it out")
        found = branch_targets(basis.outcomes, validation, config.reward)
        questions = validation.question_codes[validation.episode_of_row[found.rows]]
        return lambda probabilities: choose_pair_by_values(probabilities[found.rows], found.q, questions)
    return lambda probabilities: choose_threshold(
        probabilities[:, Action.STOP], validation, config.reward, config.guards, config.objective
    )


def states(kind: str, table: SignalTable, spec: FeatureSpec) -> Floats:
    """What a controller of that kind sees at each row, shape (N, F), NaN for null; hidden columns last."""
    features = build_features(table, spec)
    return np.concatenate([features, hidden_state(table)], axis=1) if kind == Privileged.kind else features


def logistic_candidates(
    config: TrainConfig, spec: FeatureSpec, features: Floats, values: Floats
) -> Iterator[tuple[dict[str, Any], Logistic]]:
    """A logistic regression for each strength of the penalty, thresholds not yet chosen."""
    strengths = _grid(config, {"C": DEFAULT_STRENGTHS})["C"]
    for strength in strengths:
        check_number("grid.C", strength, low=1e-9)
    design = design_matrix(features)
    telling = informative_columns(design)
    for strength in strengths:
        fit = fit_logistic(design[:, telling], values, C=float(strength))
        yield {"C": float(strength)}, Logistic(spec, _spread(fit, telling, design.shape[1]))


def boosted_candidates(
    config: TrainConfig, spec: FeatureSpec, columns: Floats, values: Floats
) -> Iterator[tuple[dict[str, Any], Boosted]]:
    """Boosted trees for each size of tree and number of rounds; fewer rounds are the beginning of the same fit."""
    grid = _grid(config, {name: tuple(candidates) for name, candidates in DEFAULT_TREES.items()})
    for name, candidates in grid.items():
        for candidate in candidates:
            check_number(f"grid.{name}", candidate, low=1e-9 if name == "rate" else 1 + (name == "leaves"),
                         whole=name != "rate")  # fmt: skip
    kind = Privileged if config.kind == Privileged.kind else Boosted
    for leaves, min_leaf, rate in itertools.product(grid["leaves"], grid["min_leaf"], grid["rate"]):
        options = TreeOptions(int(leaves), float(rate), int(min_leaf))
        arrays = fit_trees(columns, values, int(max(grid["rounds"])), options, config.seed)
        for rounds in grid["rounds"]:
            yield {"rounds": int(rounds), **asdict(options)}, kind(spec, first_rounds(arrays, int(rounds)))


def _grid(config: TrainConfig, default: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The candidates of a learner's parameters, checked for their names."""
    for name, candidates in config.grid.items():
        if name not in default:
            expected = ", ".join(f"grid.{known}" for known in default)
            raise UsageError(f"train: {config.kind} has no parameter {name!r}; expected {expected}")
        if not len(candidates):
            raise UsageError(f"grid.{name}: is empty; expected at least one candidate")
    return {**default, **config.grid}


def informative_columns(design: NDArray[np.float64]) -> NDArray[np.int64]:
    """Columns of a design matrix (N, C) that vary and repeat no earlier one; most masks are the same few."""
    varying = np.flatnonzero((design != design[:1]).any(axis=0))
    _, first = np.unique(design[:, varying], axis=1, return_index=True)
    return varying[np.sort(first)]


def _spread(fit: LogisticFit, columns: NDArray[np.int64], count: int) -> dict[str, NDArray[np.float64]]:
    """The fit's arrays over all `count` columns: those left out get no weight."""
    mean, scale, coef = np.zeros(count), np.ones(count), np.zeros((len(fit.coef), count))
    mean[columns], scale[columns], coef[:, columns] = fit.mean, fit.scale, fit.coef
    return {"mean": mean, "scale": scale, "coef": coef, "intercept": np.where(fit.support, fit.intercept, -np.inf)}


def _tune(config: TrainConfig, env: ReplayEnv) -> tuple[Controller, list[dict[str, Any]]]:
    if config.features is not None:
        raise UsageError(f"train: {config.kind} is a rule and takes no features; leave the key out")
    rule = make_rule(config.kind, config.params)
    if rule.reads_text:
        raise UsageError(f"train: {config.kind} reads texts, which a signal table does not have; run it in a benchmark")
    if asks_model(rule) != (config.llm is not None):
        told = "asks a language model; name one under" if asks_model(rule) else "asks no language model; leave out"
        raise UsageError(f"train: {config.kind} {told} `llm`")
    client = None if config.llm is None else open_chat(config.llm)
    reason = missing_signal(env.table, rule)
    if reason is not None:
        raise DataError(f"train: {config.kind} is not applicable to these logs: {reason}")
    return tune_rule(config.kind, config.params, config.grid, env, config.guards, config.objective, config.seed, client)


def read_run(folder: str, key: str) -> PolicyPackage:
    """The policy of a run folder, or of a package, that a config names.

    Raises:
        DataError: there is no such policy; the message begins with the config's key.
    """
    try:
        return read_package(run_folder(Path(folder)))
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


def run_folder(folder: Path) -> Path:
    """The policy package inside a run folder, or the folder itself if it is a package."""
    folder = Path(folder)
    return folder / "policy" if (folder / "policy").is_dir() else folder
