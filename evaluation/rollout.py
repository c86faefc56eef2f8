"""Running a controller over logged runs, one outcome a run."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stopwise.controllers.base import Controller
from stopwise.controllers.guards import Guards
from stopwise.controllers.session import ControlSession
from stopwise.data.records import Action
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import run_values
from stopwise.signals.table import SignalTable


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run came to under a controller; NaN where unknown."""

    episode: int  # index in the table
    stopped_at: int | None  # search step after which the controller stopped it; None: it ran to its own end
    searches: int
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


def rollout(env: ReplayEnv, controller: Controller, guards: Guards, *, seed: int = 0) -> list[RunOutcome]:
    """Run a controller over every run of an environment, those without a decision included.

    The seed of each run comes from its id, so that every controller meets the same random numbers.
    """
    session = ControlSession(controller, guards, can_intervene=env.intervention.available)
    table = env.table
    end_value = run_values(table, env.reward).end_value
    outcomes = []
    for index, episode in enumerate(table.episodes):
        if table.lengths[index] == 0:
            outcomes.append(_outcome(table, index, None, session, 0, float(end_value[index]), env.reward.recall))
            continue
        digest = hashlib.sha256(f"{seed}/{episode.id}".encode("utf-8", "surrogatepass")).digest()
        session.begin(int.from_bytes(digest[:4], "big"))
        _, info = env.reset(options={"episode": index})
        value, over = 0.0, False
        while not over:
            decision = session.decide(env.signal_row, env.hindsight if controller.privileged else None)
            _, reward, terminated, truncated, info = env.step(int(decision.action))
            value += reward
            over = terminated or truncated
        stopped_at = int(info["t"]) if info["action"] == Action.STOP else None
        outcomes.append(_outcome(table, index, stopped_at, session, info["searches"], value, env.reward.recall))
    return outcomes


def _outcome(
    table: SignalTable,
    index: int,
    stopped_at: int | None,
    session: ControlSession,
    searches: int,
    value: float,
    recall_weight: float,
) -> RunOutcome:
    episode = table.episodes[index]
    counts = session.counts if table.lengths[index] else None
    if stopped_at is None:
        answered = episode.ended_by == "answer"
        state: Mapping[str, float] = {
            "recall": episode.final_recall,
            "documents_seen": episode.final_seen,
            "relevant_seen": episode.final_relevant,
            "correct": episode.correct if answered else np.nan,
            "visible": episode.final_visible,
        }
        cut = not answered
    else:
        row = int(table.offsets[index]) + stopped_at - 1
        recall = float(table.label("recall")[row])
        state = {
            "recall": recall,
            "documents_seen": float(table.label("documents_seen")[row]),
            "relevant_seen": recall * episode.gold,
            "correct": float(table.label("probe_correct")[row]),
            "visible": float(table.label("answer_visible")[row]),
        }
        cut = False
    return RunOutcome(
        episode=index,
        stopped_at=stopped_at,
        searches=searches,
        interventions=counts.interventions if counts else 0,
        cut=cut,
        value=value,
        total=value + recall_weight * _first_recall(table, index),
        seconds=counts.seconds if counts else 0.0,
        calls=counts.calls if counts else 0,
        tokens=counts.tokens if counts else 0,
        decisions=counts.decisions if counts else 0,
        **state,
    )


def _first_recall(table: SignalTable, index: int) -> float:
    """Recall before the first decision, or at the end of a run without one; NaN without gold."""
    if table.lengths[index] == 0:
        return table.episodes[index].final_recall
    return float(table.label("recall")[table.offsets[index]])
