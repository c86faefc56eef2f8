"""Stop-RAG's stopper on our features: full-width forward-view Q(lambda), fitted to logged runs.

Park, Cho and Lee, *Stop-RAG: Value-Based Retrieval Control for Iterative RAG*, arXiv 2510.14337, sections 3 and 4.2.
Where it differs from the paper: the state is our features, not the documents' text, and Q is linear in them, not a
fine-tuned encoder; a step has a reward of its own (new recall less the price of a search), where the paper pays at the
end only, so that eq. 5 is used in its general form; and lambda goes down from one fit to the next, not from one
gradient step to the next. The greedy policy of a linear Q is that of a softmax over it, so a run is a `logistic` policy
package, and an agent needs nothing new to run it.

At lambda = 1 a target is the best that really came in the run, which no policy can know; smaller values put the fitted
Q in its place, sooner.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import check_number
from stopwise.controllers.guards import Guards
from stopwise.controllers.logistic import Logistic, design_matrix
from stopwise.controllers.package import PolicyPackage
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.hindsight import Runs, lay_out
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward, run_values
from stopwise.evaluation.benchmark import summarise
from stopwise.evaluation.rollout import rollout
from stopwise.signals.features import FeatureSpec, build_features
from stopwise.signals.table import SignalTable
from stopwise.train.regression import standardisation
from stopwise.train.train import chosen_features, informative_columns
from stopwise.train.tune import Objective, choose_threshold, full_recall

Floats = NDArray[np.float64]

CONTINUE, STOP = 0, 1  # columns of Q

DEFAULT_GRID: Mapping[str, tuple[float, ...]] = {"end": (0.0, 0.3, 0.6, 0.9), "ridge": (10.0, 100.0, 1000.0)}


@dataclass(frozen=True)
class QLambdaConfig:
    """One training run."""

    signals: str  # signal table, or "samples"
    kind: str = "q_lambda"
    name: str | None = None  # what tables call it
    features: tuple[str, ...] | None = None  # signals that Q sees; None: all that are there
    reward: Reward = Reward()
    guards: Guards = Guards()
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # candidates of `end` and `ridge`
    decay: float = 0.85  # lambda of a fit over that of the fit before; the first is 1
    settle: int = 5  # fits at the last lambda
    objective: Objective = Objective()
    privileged: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("decay", self.decay, low=0, high=0.999)
        check_number("settle", self.settle, low=1, whole=True)
        for name, candidates in self.grid.items():
            if name not in DEFAULT_GRID:
                raise UsageError(f"grid.{name}: is no parameter of q_lambda; expected {', '.join(DEFAULT_GRID)}")
            if not candidates:
                raise UsageError(f"grid.{name}: is empty; expected at least one candidate")
            for candidate in candidates:
                if name == "end":
                    check_number("grid.end", candidate, low=0, high=1)
                else:
                    check_number("grid.ridge", candidate, low=1e-9)


@dataclass(frozen=True, slots=True)
class LinearQ:
    """Q of both actions, linear in a standardised design matrix."""

    mean: Floats  # (C,)
    scale: Floats  # (C,)
    coef: Floats  # (C, 2) columns as `CONTINUE`, `STOP`
    intercept: Floats  # (2,)

    def values(self, design: Floats) -> Floats:
        """Q of both actions at each row, shape (N, 2), of a design matrix (N, C)."""
        return ((design - self.mean) / self.scale) @ self.coef + self.intercept


def q_lambda_targets(runs: Runs, q: Floats, lam: float) -> Floats:
    """Targets of both actions at each row (Stop-RAG eq. 8 and 11, from eq. 5 and 6).

    Stopping is worth what it brings (eq. 8). For continuing, the n-step target follows the run for n steps, at each of
    which the better of stopping there, as it really would have been, and of going on is taken; after n steps, unless
    the run has ended, Q is asked. The target is their mean with weights (1 - lambda) lambda^(n - 1), the longest
    one taking the rest.

    Args:
        runs: rewards along the runs, N rows.
        q: present Q at each row, shape (N, 2).
        lam: lambda, from 0 (one step) to 1 (to the end of the run).

    Returns:
        Shape (N, 2).
    """
    rows = len(runs.turn)
    lengths = np.bincount(runs.episode, minlength=len(runs.end_value))
    steps = lengths[runs.episode] - runs.turn  # to the end of the run, this one included: T - t
    following = np.minimum(np.arange(rows) + 1, rows - 1)
    target, n_step = np.zeros(rows), np.zeros(rows)
    for n in range(1, int(steps.max(initial=0)) + 1):
        ahead = q.max(axis=1) if n == 1 else np.maximum(runs.stop_value, n_step)
        n_step = runs.reward + np.where(runs.last, 0.0, ahead[following])
        weight = np.where(n < steps, (1.0 - lam) * lam ** (n - 1), np.where(n == steps, lam ** (n - 1), 0.0))
        target += weight * n_step
    return np.column_stack([target, runs.stop_value])


def lambdas(end: float, decay: float, settle: int) -> list[float]:
    """Lambda of each fit: 1, then down by a factor until `end`, which is used `settle` times."""
    schedule = [1.0]
    while schedule[-1] * decay > max(end, 0.01):
        schedule.append(schedule[-1] * decay)
    return [*schedule, *[end] * settle]


def fit_q(design: Floats, runs: Runs, *, end: float, ridge: float, decay: float = 0.85, settle: int = 5) -> LinearQ:
    """Fit Q to its own targets, lambda going down (Algorithm 1 of Stop-RAG, with regressions for gradient steps).

    States from which nothing can be had, stopping and going on being worth 0, are left out, as in the paper (4.2).

    Args:
        design: shape (N, C), no NaN.
        runs: rewards along the runs.
        end: the last lambda.
        ridge: strength of the penalty, in rows.
        decay: lambda of a fit over that of the fit before.
        settle: fits at the last lambda.

    Raises:
        DataError: no row is worth anything.
    """
    best = q_lambda_targets(runs, np.zeros((len(design), 2)), 1.0)
    told = (best != 0).any(axis=1)
    if not told.any():
        raise DataError("q_lambda: nothing can be had at any step of the training runs; there is nothing to learn")
    mean, scale = standardisation(design[told])
    standard = (design - mean) / scale
    known = standard[told]
    gram = known.T @ known + ridge * np.eye(known.shape[1])
    values = np.zeros((len(design), 2))
    coef, level = np.zeros((design.shape[1], 2)), np.zeros(2)
    for lam in lambdas(end, decay, settle):
        target = q_lambda_targets(runs, values, lam)[told]
        level = target.mean(axis=0)
        coef = np.linalg.solve(gram, known.T @ (target - level))
        values = standard @ coef + level
    return LinearQ(mean, scale, coef, level)


def train_q_lambda(config: QLambdaConfig, table: SignalTable) -> tuple[PolicyPackage, dict[str, Any]]:
    """Fit on a table's training questions; choose the last lambda, the penalty and the threshold on validation.

    Returns:
        The policy, and a JSON-able record of what was tried: for each candidate the figures at its chosen threshold,
        and the greedy policy's, which is the paper's.

    Raises:
        DataError: there is no gold, or a split has no run.
    """
    known = table.select(table.has_gold)
    parts = {split: known.split(split) for split in ("train", "val")}
    for split, part in parts.items():
        if not len(part.values):
            raise DataError(
                f"train: no run of the split {split} has gold and a search step; bring logs of more questions"
            )
    training, validation = parts["train"], parts["val"]
    spec = chosen_features(training, config.features, privileged=config.privileged)
    design = design_matrix(build_features(training, spec))
    telling = informative_columns(design)
    values = run_values(training, config.reward)
    runs = lay_out(
        training.offsets,
        values.gain_next,
        values.stop_value,
        values.end_value,
        config.reward.search + config.reward.controller,
        config.reward.recall,
    )
    held_out = build_features(validation, spec)
    tried: list[dict[str, Any]] = []
    candidates: list[Logistic] = []
    grid = {**DEFAULT_GRID, **config.grid}
    for end in grid["end"]:
        for ridge in grid["ridge"]:
            q = fit_q(
                design[:, telling], runs, end=float(end), ridge=float(ridge), decay=config.decay, settle=config.settle
            )
            controller = as_logistic(q, spec, telling, design.shape[1], q.values(design[:, telling]))
            stop = controller.probabilities(held_out)[:, Action.STOP]
            choice = choose_threshold(stop, validation, config.reward, config.guards, config.objective)
            controller.threshold = choice.threshold
            candidates.append(controller)
            tried.append({"params": {"end": float(end), "ridge": float(ridge)}, **asdict(choice)})
    returns, recalls, searches = (np.array([row[key] for row in tried]) for key in ("value", "recall", "searches"))
    best = config.objective.best(returns, recalls, searches, full_recall(validation))
    controller = candidates[best]
    figures = _rolled_out(config, validation, controller, controller.threshold)
    record = {
        "kind": "q_lambda",
        "chosen": tried[best]["params"] | dict(controller.params),
        "tried": tried,
        "validation": figures,
        "greedy": _rolled_out(config, validation, controller, 0.5),
        "questions": {split: len({e.question_id for e in part.episodes}) for split, part in parts.items()},
        "runs": {split: len(part) for split, part in parts.items()},
        "seed": config.seed,
    }
    told = {
        "learner": "q_lambda",
        "reward": asdict(config.reward),
        "intervention_model": "forbidden",
        "chosen": record["chosen"],
        "validation": {key: value for key, value in figures.items() if key != "milliseconds_a_decision"},
        "questions": record["questions"],
        "seed": config.seed,
    }
    return PolicyPackage(config.name or "q_lambda", controller, config.guards, table.info, told), record


def as_logistic(q: LinearQ, spec: FeatureSpec, columns: NDArray[np.int64], count: int, values: Floats) -> Logistic:
    """The controller whose probability of stopping is 1/2 where both actions are worth the same.

    Args:
        q: over the columns `columns` of a design matrix of `count` columns.
        spec: the features of that design matrix.
        columns: shape (C,).
        count: 2F.
        values: Q at the training rows, shape (N, 2): one standard deviation of their difference is one unit of logit.
    """
    unit = float((values[:, STOP] - values[:, CONTINUE]).std()) or 1.0
    mean, scale, coef, intercept = np.zeros(count), np.ones(count), np.zeros((3, count)), np.full(3, -np.inf)
    mean[columns], scale[columns] = q.mean, q.scale
    for action, column in ((Action.CONTINUE, CONTINUE), (Action.STOP, STOP)):
        coef[action, columns] = q.coef[:, column] / unit
        intercept[action] = q.intercept[column] / unit
    return Logistic(spec, {"mean": mean, "scale": scale, "coef": coef, "intercept": intercept})


def _rolled_out(config: QLambdaConfig, table: SignalTable, controller: Logistic, threshold: float) -> dict[str, Any]:
    env = ReplayEnv(table, FeatureSpec(()), reward=config.reward, intervention=intervention_model("forbidden"))
    twin = Logistic(controller.features or FeatureSpec(()), controller.weights, threshold)
    return summarise(rollout(env, twin, config.guards, seed=config.seed), table.question_codes)
