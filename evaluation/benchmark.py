"""The benchmark table: controllers on the same held-out runs, each against never_stop, paired by question."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.baselines import NeverStop, Random
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
    # name of a row: this one becomes a random controller under that row's guards, which never stops and makes as many
    # interventions a run; a fair null of when to intervene
    matches: str | None = None


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
        UsageError: two arms have one name, one is compared with or matched to a row that is not there, or one has
            privileged features without permission.
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
    arms = list(arms)
    rows: list[dict[str, Any]] = [{}] * len(arms)
    known: dict[str, Sequence[RunOutcome]] = {}
    for number in order_of(arms):
        arm = arms[number] = made_to_match(arms[number], arms, known, questions)
        head = {"controller": arm.name, "kind": arm.controller.kind, "intervention_model": env.intervention.name}
        if arm.origin is not None:
            head["policy"] = arm.origin
        reason = arm.not_applicable or missing_signal(table, arm.controller)
        reason = reason or missing_texts(env, arm.controller, logs)
        if reason is None and arm.controller.privileged and not table.has_gold.any():
            reason = "no gold: hindsight does not know what a search brought"
        if reason is not None:
            rows[number] = head | {"not_applicable": reason}
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
        rows[number] = head | row
    tell_matches(rows, arms)
    compare_rows(rows, arms, known, questions, seed=seed, margin=margin)
    return rows


def check_names(arms: Sequence[Arm]) -> None:
    """Every row has a name of its own, and `versus` and `matches` name rows that are there.

    Raises:
        UsageError: one does not.
    """
    names = [arm.name for arm in arms]
    matches = {arm.name: arm.matches for arm in arms}
    for arm in arms:
        if names.count(arm.name) > 1:
            raise UsageError(f"benchmark: two controllers are called {arm.name!r}; give one another `name`")
        named = [("compared with", other) for other in arm.versus]
        named += [] if arm.matches is None else [("matched to", arm.matches)]
        for what, other in named:
            if other not in names or other == arm.name:
                raise UsageError(
                    f"benchmark: {arm.name!r} is to be {what} {other!r}, which is no other row; found "
                    f"{', '.join(name for name in names if name != arm.name) or 'none'}"
                )
        first = None if arm.matches is None else matches[arm.matches]
        if first is not None:
            raise UsageError(
                f"benchmark: {arm.name!r} is to be matched to {arm.matches!r}, which is itself matched to {first!r}; "
                f"name {first!r}"
            )


def order_of(arms: Sequence[Arm]) -> list[int]:
    """Indices of the arms in the order of running them: a matched one after all that it can be matched to."""
    return sorted(range(len(arms)), key=lambda number: arms[number].matches is not None)


def made_to_match(
    arm: Arm, arms: Sequence[Arm], known: Mapping[str, Sequence[RunOutcome]], questions: NDArray[np.int64]
) -> Arm:
    """A matched arm with the rate that its row's runs give; any other arm as it is.

    The rate is chosen from how many decisions and interventions the row made, over all of its runs together, and from
    nothing that these brought: so a matched arm may be fitted on the very runs that it is compared on. It cannot be
    foretold how many decisions its own runs will come to; the row's are taken, and both means stand in the record.

    Args:
        arm: to be made.
        arms: of the table.
        known: outcomes by arm name, without arms that do not apply.
        questions: of each run, shape (E,); the means are over questions, as those of a row.
    """
    if arm.matches is None:
        return arm
    row = next(other for other in arms if other.name == arm.matches)
    if row.name not in known:
        return replace(arm, not_applicable=f"{row.name} is not applicable")
    outcomes = known[row.name]
    stopped = [run for run in outcomes if run.stopped_at is not None and run.stopped_at < row.guards.max_steps]
    if stopped:
        return replace(
            arm,
            not_applicable=f"{row.name} stops runs, {len(stopped)} of {len(outcomes)}; a random row that never stops "
            "would have more chances to intervene, and is no match for it",
        )
    decisions = np.array([run.decisions for run in outcomes], dtype=np.int64)
    interventions = np.array([run.interventions for run in outcomes], dtype=np.float64)
    _, runs_of, counts = np.unique(questions, return_inverse=True, return_counts=True)
    weights = 1.0 / counts[runs_of]
    wanted = float(np.average(interventions, weights=weights))
    rate = matched_intervention_rate(decisions, wanted, row.guards, weights)
    return replace(arm, controller=Random(stop=0.0, intervene=rate), guards=row.guards)


def tell_matches(rows: Sequence[dict[str, Any]], arms: Sequence[Arm]) -> None:
    """Write into each row that was matched, under ``matched``, to which one, with what rate, and how well it came out.

    Args:
        rows: laid out already, one an arm, in the order of `arms`; over all runs, or over those of one kind of agent.
        arms: of the table, as `made_to_match` made them.
    """
    by_name = {row["controller"]: row for row in rows}
    for row, arm in zip(rows, arms, strict=True):
        if arm.matches is not None and "not_applicable" not in row:
            row["matched"] = {
                "row": arm.matches,
                "rate": arm.controller.params["intervene"],  # at each decision where the guards allow it
                "interventions_of_row": by_name[arm.matches]["interventions"],  # a run
                "interventions": row["interventions"],
            }


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


def matched_intervention_rate(
    decisions: NDArray[np.int64],
    interventions: float,
    guards: Guards = Guards(),
    weights: Floats | None = None,
) -> float:
    """The probability of intervening, where the guards allow it, at which a run has so many interventions on average.

    What is expected of a rate is computed over the states that the guards tell apart: interventions used, and decisions
    until another one is allowed.

    Args:
        decisions: of each run, shape (E,), as if they did not depend on the interventions.
        interventions: mean number a run wanted.
        guards: of the random controller, which does not stop.
        weights: of each run in the mean, shape (E,); None weighs all alike.

    Returns:
        A probability; 0 where no intervention is wanted, 1 where as many are wanted as the guards let anybody make.
    """
    from scipy.optimize import brentq

    chances = np.minimum(decisions, guards.max_steps - 1)  # from max_steps on, the guards stop
    longest = int(chances.max(initial=0))
    most, rest = min(guards.max_interventions, longest), min(guards.cooldown, longest)

    def expected(rate: float) -> float:
        states = np.zeros((most + 1, rest + 1))  # probabilities of interventions used, decisions to wait
        states[0, 0] = 1.0
        made = np.zeros(longest + 1)  # up to each decision
        for number in range(1, longest + 1):
            hits = rate * states[:most, 0]
            made[number] = made[number - 1] + hits.sum()
            states[:most, 0] -= hits
            waiting = states[:, 1:].copy()
            states[:, 1:] = 0.0
            states[:, :rest] += waiting
            states[1:, rest] += hits
        return float(np.average(made[chances], weights=weights))

    if interventions <= 0:
        return 0.0
    if interventions >= expected(1.0):
        return 1.0
    return float(np.asarray(brentq(lambda rate: expected(rate) - interventions, 0.0, 1.0)))
