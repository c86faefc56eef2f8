"""Training a controller: targets and fit on training questions, choices on validation questions, one run folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller, check_number
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import LEARNED, RULES, asks_model, make_rule
from stopwise.controllers.logistic import Logistic, design_matrix
from stopwise.controllers.package import PolicyPackage
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward, run_values
from stopwise.evaluation.benchmark import missing_signal, summarise
from stopwise.evaluation.rollout import rollout
from stopwise.models.chat_config import ChatConfig, open_chat
from stopwise.signals.features import FeatureSpec, build_features, check_privilege
from stopwise.signals.table import SignalTable
from stopwise.train.fit import LogisticFit, action_values, fit_logistic
from stopwise.train.regression import RegressorName
from stopwise.train.targets import fitted_targets
from stopwise.train.tune import Objective, choose_threshold, full_recall, tune_rule


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Non-anticipative targets: see `stopwise.train.targets.fitted_targets`."""

    folds: int = 5
    min_rows: int = 200
    regressor: RegressorName = "ridge"
    ridge: float = 10.0

    def __post_init__(self) -> None:
        check_number("targets.folds", self.folds, low=3, whole=True)
        check_number("targets.min_rows", self.min_rows, low=1, whole=True)
        check_number("targets.ridge", self.ridge, low=1e-9)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    kind: str  # logistic, or a rule whose parameters are chosen from `grid`
    signals: str  # signal table, or "samples"
    name: str | None = None  # what tables call it; the kind by default
    features: tuple[str, ...] | None = None  # signals that a learned controller sees; [] is the step index alone
    params: Mapping[str, Any] = field(default_factory=dict)  # fixed parameters of a rule
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # parameter: candidates; C for logistic
    reward: Reward = Reward()
    intervention: str = "forbidden"
    guards: Guards = Guards()
    targets: TargetOptions = TargetOptions()
    objective: Objective = Objective()
    privileged: bool = False  # allow coverage by gold as a feature: an upper bound, no policy
    seed: int = 0
    llm: ChatConfig | None = None  # of a rule that asks a language model

    def __post_init__(self) -> None:
        check_number("seed", self.seed, low=0, whole=True)


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
    env = _env(config, parts["val"])
    if config.kind in LEARNED:
        controller, tried = _train_logistic(config, parts["train"], parts["val"])
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


def _train_logistic(
    config: TrainConfig, training: SignalTable, validation: SignalTable
) -> tuple[Controller, list[dict[str, Any]]]:
    unknown = [key for key in config.grid if key != "C"]
    if unknown or config.params:
        raise UsageError(f"train: logistic has no parameter {(unknown or list(config.params))[0]!r}; expected grid.C")
    strengths = config.grid.get("C", DEFAULT_STRENGTHS)
    if not len(strengths):
        raise UsageError("grid.C: is empty; expected at least one candidate")
    for strength in strengths:
        check_number("grid.C", strength, low=1e-9)
    names = config.features
    spec = FeatureSpec(default_features(training, privileged=config.privileged) if names is None else names)
    check_privilege(spec, training.info.config, privileged=config.privileged)
    design = design_matrix(build_features(training, spec))
    telling = informative_columns(design)
    values = run_values(training, config.reward)
    options = config.targets
    targets = fitted_targets(
        design[:, telling],
        training.offsets,
        values.gain_next,
        values.stop_value,
        values.end_value,
        training.question_codes,
        search_cost=config.reward.search + config.reward.controller,
        recall_weight=config.reward.recall,
        folds=options.folds,
        min_rows=options.min_rows,
        regressor_name=options.regressor,
        ridge=options.ridge,
        seed=config.seed,
    )
    # noop is dominated by continue, and forbidden is masked: neither is ever a target
    actions = action_values(targets.return_continue, targets.return_stop)
    held_out = build_features(validation, spec)
    tried, candidates = [], []
    for strength in strengths:
        fit = fit_logistic(design[:, telling], actions, C=float(strength))
        controller = Logistic(spec, _spread(fit, telling, design.shape[1]))
        stop = controller.probabilities(held_out)[:, Action.STOP]
        choice = choose_threshold(stop, validation, config.reward, config.guards, config.objective)
        controller.threshold = choice.threshold
        candidates.append(controller)
        tried.append({"params": {"C": float(strength)}, **asdict(choice)})
    returns, recalls, searches = (np.array([row[key] for row in tried]) for key in ("value", "recall", "searches"))
    best = config.objective.best(returns, recalls, searches, full_recall(validation))
    return candidates[best], tried


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


def _env(config: TrainConfig, table: SignalTable) -> ReplayEnv:
    return ReplayEnv(table, FeatureSpec(()), reward=config.reward, intervention=intervention_model(config.intervention))


def run_folder(folder: Path) -> Path:
    """The policy package inside a run folder, or the folder itself if it is a package."""
    folder = Path(folder)
    return folder / "policy" if (folder / "policy").is_dir() else folder
