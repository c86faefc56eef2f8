"""Running a controller over logged runs, one outcome a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stopwise.controllers.base import Controller, RunSoFar
from stopwise.controllers.guards import Guards
from stopwise.controllers.session import ControlSession, Counts, run_seed
from stopwise.data.errors import DataError
from stopwise.data.records import Trajectory
from stopwise.envs.replay import ReplayEnv, RunEnd, end_of_log
from stopwise.envs.rewards import run_values
from stopwise.signals.table import SignalTable


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run came to under a controller; NaN where unknown."""

    episode: int  # index in the table
    stopped_at: int | None  # search step after which the controller stopped it; None: it ran to its own end
    searches: float  # whole, but for means over branches
    interventions: int
    recall: float
    documents_seen: float
    relevant_seen: float
    correct: float  # exact only: the run's own answer at its end, or a probed prefix; NaN otherwise
    visible: float  # proxy: the reference answer stands in what was seen
    cut: bool  # ran on to a log that was cut by a budget or an error, or does not say how it ended
    value: float  # return from the first decision on, as the environment pays it
    total: float  # return of the whole run: `value` and what the first search brought
    seconds: float  # of the controller's decisions
    calls: int  # model calls of the controller
    tokens: int
    decisions: int
    failures: Mapping[str, int] = field(default_factory=dict)  # decisions that had to do without a reply, by kind
    foreseen: bool = False  # the run was computed at once: `seconds` says nothing of one decision


def rollout(
    env: ReplayEnv,
    controller: Controller,
    guards: Guards,
    *,
    seed: int = 0,
    logs: Mapping[str, Trajectory] | None = None,
) -> list[RunOutcome]:
    """Run a controller over every run of an environment, those without a decision included.

    The seed of each run comes from its id, so that every controller meets the same random numbers.

    Args:
        env: the runs.
        controller: what decides.
        guards: its limits.
        seed: of the evaluation.
        logs: the runs' own texts by trajectory id, for a controller that reads them.

    Raises:
        DataError: the logs lack a run.
    """
    session = ControlSession(controller, guards, can_intervene=env.intervention.available)
    table = env.table
    end_value = run_values(table, env.reward).end_value
    outcomes = []
    for index, episode in enumerate(table.episodes):
        if table.lengths[index] == 0:
            end, worth = end_of_log(table, index), float(end_value[index])
            outcomes.append(_outcome(table, index, end, session, 0, worth, env.reward.recall))
            continue
        own_seed = run_seed(seed, episode.id)
        session.begin(own_seed)
        if env.intervention.name != "retrieve":  # which rewrites the rows
            session.foresee(table.row(number) for number in range(table.offsets[index], table.offsets[index + 1]))
        # the environment draws only where an intervention model does
        _, info = env.reset(seed=own_seed, options={"episode": index})
        value, over = 0.0, False
        while not over:
            hindsight = env.hindsight if controller.privileged else None
            run = _texts(logs, episode.id, info["t"]) if logs is not None and controller.reads_text else None
            # after an intervention the rows decided on are no longer all rows of the log up to here
            spec = controller.features if info["interventions"] else None
            features = None if spec is None else env.features_by(spec)
            decision = session.decide(
                env.signal_row,
                hindsight,
                can_intervene=env.can_intervene,
                features=features,
                passed=env.passed_over,
                run=run,
            )
            _, reward, terminated, truncated, info = env.step(int(decision.action))
            value += reward
            over = terminated or truncated
        outcomes.append(_outcome(table, index, env.end, session, info["searches"], value, env.reward.recall))
    return outcomes


def _outcome(
    table: SignalTable,
    index: int,
    end: RunEnd,
    session: ControlSession,
    searches: float,
    value: float,
    recall_weight: float,
) -> RunOutcome:
    counts = session.counts if table.lengths[index] else Counts()
    return RunOutcome(
        episode=index,
        stopped_at=end.stopped_at,
        searches=searches,
        interventions=counts.interventions,
        recall=end.recall,
        documents_seen=end.documents_seen,
        relevant_seen=end.relevant_seen,
        correct=end.correct,
        visible=end.visible,
        cut=end.cut,
        value=value,
        total=value + recall_weight * _first_recall(table, index),
        seconds=counts.seconds,
        calls=counts.calls,
        tokens=counts.tokens,
        decisions=counts.decisions,
        failures=counts.failure_kinds,
        foreseen=counts.foreseen,
    )


def _texts(logs: Mapping[str, Trajectory], name: str, t: int) -> RunSoFar:
    """What a logged run had shown after its `t`-th search."""
    if name not in logs:
        raise DataError(f"logs: have no run {name!r}; give the logs that the signal table was computed from")
    run = logs[name]
    position = [index for index, step in enumerate(run.steps) if step.kind == "search"][t - 1]
    return RunSoFar(run.question, run.steps[: position + 1], run.question_id)


def _first_recall(table: SignalTable, index: int) -> float:
    """Recall before the first decision, or at the end of a run without one; NaN without gold."""
    if table.lengths[index] == 0:
        return table.episodes[index].final_recall
    return float(table.label("recall")[table.offsets[index]])
