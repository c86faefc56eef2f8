"""The benchmark table: controllers on the same held-out runs, each against never_stop, paired by question."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.baselines import NeverStop
from stopwise.controllers.guards import Guards
from stopwise.controllers.oracle import Oracle
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Trajectory
from stopwise.envs.replay import ReplayEnv
from stopwise.evaluation.rollout import RunOutcome, rollout
from stopwise.evaluation.statistics import compare, power_of, question_means
from stopwise.signals.features import check_privilege
from stopwise.signals.table import SignalTable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Arm:
    """One row of the table."""

    name: str
    controller: Controller
    guards: Guards = Guards()
    origin: str | None = None  # where a learned one comes from
    not_applicable: str | None = None  # why it cannot be run at all, if it cannot
    versus: tuple[str, ...] = ()  # names of other rows that it is compared with, besides never_stop


def missing_signal(table: SignalTable, controller: Controller) -> str | None:
    """Why a controller is not applicable: a signal that it needs is missing throughout; None if it is applicable.

    Raises:
        DataError: a learned controller reads a signal that the table does not have.
    """
    for name in controller.needs:
        if name not in table.names:
            return f"no {name}: not computed"
        if not (table.reasons[:, table.names.index(name)] == 0).any():
            counts = table.null_counts(name)
            main = max(counts, key=lambda reason: counts[reason], default="no search steps")
            cause = "no logprobs" if "no logprobs" in counts else main
            return f"no {name}: {cause}"
    if controller.features is not None:
        for name in controller.features.signals:
            table.column(name)
    return None


def missing_texts(env: ReplayEnv, controller: Controller, logs: Mapping[str, Trajectory] | None) -> str | None:
    """Why a controller that reads texts is not applicable, or None."""
    if not controller.reads_text:
        return None
    if logs is None:
        return "no texts: a signal table has none; name the logs that it was computed from as `logs`"
    return "no texts: intervention retrieve rewrites the runs" if env.intervention.name == "retrieve" else None


def benchmark(
    env: ReplayEnv,
    arms: Sequence[Arm],
    *,
    seed: int = 0,
    margin: float = 0.01,
    privileged: bool = False,
    logs: Mapping[str, Trajectory] | None = None,
) -> list[dict[str, Any]]:
    """Run every arm over every run of an environment and lay out the rows.

    Runs of one question are averaged first; differences are arm - never_stop over questions with gold.

    Args:
        env: the runs, the prices and the intervention model.
        arms: at least one; never_stop and oracle are run whether or not they are among them.
        seed: of random controllers, of the bootstrap and of the permutation test.
        margin: recall that an arm may lose and still be called not inferior.
        privileged: allow features from coverage by gold.
        logs: the runs' own texts by trajectory id, for controllers that read them.

    Returns:
        JSON-able rows in the order of `arms`; one that does not apply has ``not_applicable`` instead of figures.

    Raises:
        UsageError: two arms have one name, one is compared with a row that is not there, or one has privileged features
            without permission.
        DataError: there is no run.
    """
    check_names(arms)
    table = env.table
    if len(table) == 0:
        raise DataError("benchmark: no run belongs to this split; name another split or bring more questions")
    baseline = rollout(env, NeverStop(), Guards(max_steps=10**9), seed=seed)
    questions = table.question_codes
    full = summarise(baseline, questions)
    bound = summarise(rollout(env, Oracle(), Guards(max_steps=10**9), seed=seed), questions)
    rows = []
    known: dict[str, Sequence[RunOutcome]] = {}
    for arm in arms:
        head = {"controller": arm.name, "kind": arm.controller.kind, "intervention_model": env.intervention.name}
        if arm.origin is not None:
            head["policy"] = arm.origin
        reason = arm.not_applicable or missing_signal(table, arm.controller)
        reason = reason or missing_texts(env, arm.controller, logs)
        if reason is None and arm.controller.privileged and not table.has_gold.any():
            reason = "no gold: hindsight does not know what a search brought"
        if reason is not None:
            rows.append(head | {"not_applicable": reason})
            continue
        if arm.controller.features is not None:
            check_privilege(arm.controller.features, table.info.config, privileged=privileged)
        never = isinstance(arm.controller, NeverStop)
        outcomes = baseline if never else rollout(env, arm.controller, arm.guards, seed=seed, logs=logs)
        known[arm.name] = outcomes
        head |= arm.controller.described  # after the runs: by then it is known under which name a model answers
        row = layout(outcomes, baseline, questions, seed=seed, margin=margin)
        saved = full["searches"] - row["searches"]
        row["oracle_saving_share"] = _share(saved, full["searches"] - bound["searches"])
        rows.append(head | row)
    compare_rows(rows, arms, known, questions, seed=seed, margin=margin)
    return rows


def check_names(arms: Sequence[Arm]) -> None:
    """Every row has a name of its own, and `versus` names rows that are there.

    Raises:
        UsageError: one does not.
    """
    names = [arm.name for arm in arms]
    for arm in arms:
        if names.count(arm.name) > 1:
            raise UsageError(f"benchmark: two controllers are called {arm.name!r}; give one another `name`")
        for other in arm.versus:
            if other not in names or other == arm.name:
                raise UsageError(
                    f"benchmark: {arm.name!r} is to be compared with {other!r}, which is no other row; found "
                    f"{', '.join(name for name in names if name != arm.name) or 'none'}"
                )


def compare_rows(
    rows: Sequence[dict[str, Any]],
    arms: Sequence[Arm],
    outcomes: Mapping[str, Sequence[RunOutcome]],
    questions: NDArray[np.int64],
    *,
    seed: int,
    margin: float,
) -> None:
    """Write into each row, under ``versus``, its differences to the rows that its arm names, paired by question.

    Args:
        rows: laid out already, one an arm, in the order of `arms`.
        arms: of the table.
        outcomes: of the same runs by arm name, without arms that do not apply.
        questions: of each run, shape (E,).
        seed: of the bootstrap and the permutation test.
        margin: recall that an arm may lose and still be called not inferior.
    """
    for row, arm in zip(rows, arms, strict=True):
        if arm.name in outcomes and arm.versus:
            row["versus"] = {
                other: against(outcomes[arm.name], outcomes[other], questions, seed, margin)
                if other in outcomes
                else {"reason": "not applicable"}
                for other in arm.versus
            }


def layout(
    outcomes: Sequence[RunOutcome],
    baseline: Sequence[RunOutcome],
    questions: NDArray[np.int64],
    *,
    seed: int,
    margin: float,
) -> dict[str, Any]:
    """One row: an arm's figures, and against the same runs under never_stop (null for that itself)."""
    figures, full = summarise(outcomes, questions), summarise(baseline, questions)
    figures["saving"] = _share(full["searches"] - figures["searches"], full["searches"])
    figures["controller_seconds"] = sum(run.seconds for run in outcomes) / len(outcomes)  # a run
    versus = None if outcomes is baseline else against(outcomes, baseline, questions, seed, margin)
    return figures | {"versus_never_stop": versus}


def summarise(outcomes: Sequence[RunOutcome], questions: NDArray[np.int64]) -> dict[str, Any]:
    """Figures of one arm, each averaged within its question first; None where nothing is known.

    Recall, precision and F1 are over runs with gold ([RAAC] appendix A); accuracy only over runs whose answer's
    correctness is known exactly, with their number; ``answer_visible`` is the named proxy.
    """
    arrays = _arrays(outcomes)
    precision = _ratio(arrays["relevant_seen"], arrays["documents_seen"])
    recall = arrays["recall"]
    both = precision + recall
    # nothing relevant seen: both are 0, and so is their harmonic mean
    f1 = np.where(both == 0, 0.0, _ratio(2 * precision * recall, both))
    decisions = sum(run.decisions for run in outcomes)
    seconds = sum(run.seconds for run in outcomes)
    foreseen = any(run.foreseen for run in outcomes)
    return {
        "runs": len(outcomes),
        "questions": len(np.unique(questions)),
        "searches": _mean(arrays["searches"], questions),
        "interventions": _mean(arrays["interventions"], questions),
        "stopped": sum(run.stopped_at is not None for run in outcomes),
        "recall": _mean(recall, questions),
        "precision": _mean(precision, questions),
        "f1": _mean(f1, questions),
        "documents_seen": _mean(arrays["documents_seen"], questions),
        "accuracy": _mean(arrays["correct"], questions),
        "accuracy_runs": int((~np.isnan(arrays["correct"])).sum()),
        "answer_visible": _mean(arrays["visible"], questions),
        "cut_runs": sum(run.cut for run in outcomes),
        "return": _mean(arrays["return"], questions),
        "controller_calls": _mean(arrays["calls"], questions),
        "controller_tokens": _mean(arrays["tokens"], questions),
        "controller_failures": dict(sum((Counter(run.failures) for run in outcomes), Counter())),
        "milliseconds_a_decision": None if not decisions or foreseen else 1e3 * seconds / decisions,
    }


def against(
    outcomes: Sequence[RunOutcome],
    baseline: Sequence[RunOutcome],
    questions: NDArray[np.int64],
    seed: int,
    margin: float,
) -> dict[str, Any]:
    """One arm against another over the same runs, paired by question."""
    ours, theirs = _arrays(outcomes), _arrays(baseline)
    result: dict[str, Any] = {}
    for name in ("recall", "searches", "correct", "return"):
        known = ~np.isnan(ours[name]) & ~np.isnan(theirs[name])
        if not known.any():
            result[name] = {"difference": None, "reason": "unknown in every run"}
            continue
        comparison = compare(ours[name][known], theirs[name][known], questions[known], seed=seed)
        figures = comparison.to_json()
        if name == "recall":
            figures["margin"] = margin
            figures["not_inferior"] = comparison.not_inferior(margin)
            usable = comparison.sd is not None and comparison.sd > 0
            figures["power"] = power_of(comparison.questions, comparison.sd, margin=margin) if usable else None  # type: ignore[arg-type]
        result[name] = figures
    return result


def _arrays(outcomes: Sequence[RunOutcome]) -> dict[str, Floats]:
    names = ("searches", "interventions", "recall", "documents_seen", "relevant_seen", "correct", "visible")
    names += ("calls", "tokens")
    arrays = {name: np.array([getattr(run, name) for run in outcomes], dtype=np.float64) for name in names}
    arrays["return"] = np.array([run.total for run in outcomes], dtype=np.float64)
    return arrays


def _mean(values: Floats, questions: NDArray[np.int64]) -> float | None:
    known = ~np.isnan(values)
    return float(question_means(values[known], questions[known])[1].mean()) if known.any() else None


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def matched_stop_rate(lengths: NDArray[np.int64], searches: float, guards: Guards = Guards()) -> float:
    """The probability of stopping after each search at which random stopping makes as many searches on average.

    Before search m = `min_steps` nothing stops; from there on a run with n = L - m + 1 chances that is stopped with
    probability p at each makes m - 1 + (1 - (1 - p)^n) / p searches. L is the run's length, at most `max_steps`.

    Args:
        lengths: search steps of each run, shape (E,).
        searches: mean number wanted.
        guards: of the random controller.

    Returns:
        A probability; 0 where the wanted number is at least what the guards let the runs make, 1 where it is at most
        what they demand.
    """
    from scipy.optimize import brentq

    allowed = np.minimum(lengths, guards.max_steps)
    chances = np.maximum(allowed - guards.min_steps + 1, 0)
    fixed = allowed - chances

    def expected(rate: float) -> float:
        # expm1 and log1p: at small rates 1 - (1 - p)^n would be rounding
        stopped = -np.expm1(chances * np.log1p(-rate)) if rate < 1 else (chances > 0).astype(float)
        return float((fixed + stopped / rate).mean())

    lowest = 1e-9
    if searches >= expected(lowest):
        return 0.0
    if searches <= expected(1.0):
        return 1.0
    return float(np.asarray(brentq(lambda rate: expected(rate) - searches, lowest, 1.0)))
