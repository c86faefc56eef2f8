"""Controllers in the closed loop, with the tracker, the session and the guards that replay and the live agent use."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stopwise.controllers.base import Controller, Distribution, Observation, RunSoFar, certain
from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.session import ControlSession
from stopwise.data.corpus import Query
from stopwise.data.records import Action, Trajectory
from stopwise.envs.arena.agents import ScriptedAgent
from stopwise.envs.arena.branching import recall
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import LoopConfig, Run, run_in_step
from stopwise.envs.arena.oversight import ControllerOverseer
from stopwise.envs.arena.population import run_population
from stopwise.envs.arena.puzzle import puzzle_of
from stopwise.envs.arena.rethinkers import HeuristicRethinker
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.evaluation.rollout import rollout
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalConfig, SignalTracker

CONFIG = SignalConfig(signals=("Nov", "steps_since_new", "Cov", "coverage_gain"), coverage_judge="gold")
KIND_NAMES = ("chaser", "quitter")


def controlled(
    arena, controller: Controller, guards: Guards, *, can_intervene: bool, min_coverage: float | None = None
) -> list[tuple[Trajectory, ControllerOverseer]]:
    runs, overseers = [], []
    for kind in KIND_NAMES:
        for query in arena.queries[:10]:
            agent = ScriptedAgent(KINDS[kind], puzzle_of(query), arena.reader, f"{kind}/{query.id}/0")
            overseer = ControllerOverseer(
                ControlSession(controller.copy(), guards, can_intervene=can_intervene),
                SignalTracker(CONFIG, query.text, criteria=query.criteria),
                HeuristicRethinker(),
                run_id=f"world/{kind}/{query.id}/0",
                min_coverage=min_coverage,
            )
            overseers.append(overseer)
            runs.append(Run(agent, query, "0", LoopConfig(), overseer))
    return list(zip(run_in_step(runs, arena.retriever, 5), overseers, strict=True))


@pytest.fixture(scope="module")
def replay(arena) -> ReplayEnv:
    kinds = [KINDS[name] for name in KIND_NAMES]
    logs = list(run_population(kinds, arena.queries[:10], arena.reader, arena.retriever, LoopConfig()))
    table = compute_table(lambda: iter(logs), CONFIG, None)
    return ReplayEnv(table, FeatureSpec(()), intervention=intervention_model("forbidden"))


@pytest.mark.parametrize("controller", [NeverStop(), FixedBudget(4), Random(stop=0.1), Heuristic()])
def test_replay_and_arena_agree_where_nothing_is_intervened(arena, replay: ReplayEnv, controller: Controller) -> None:
    guards = Guards()
    live = [run for run, _ in controlled(arena, controller, guards, can_intervene=False)]
    replayed = rollout(replay, controller, guards)
    assert [run.id for run in live] == [episode.id for episode in replay.table.episodes]
    assert [len(run.search_steps) for run in live] == [outcome.searches for outcome in replayed]
    np.testing.assert_array_equal(
        [recall(run.steps, run.gold_ids) for run in live], [outcome.recall for outcome in replayed]
    )
    stopped = [any(step.logged_action is Action.STOP for step in run.search_steps) for run in live]
    assert stopped == [outcome.stopped_at is not None for outcome in replayed]
    for run, outcome in zip(live, replayed, strict=True):
        if outcome.stopped_at is not None:
            assert run.correct == (outcome.correct == 1.0)


def test_interventions_are_searches_and_are_limited(arena) -> None:
    guards = Guards(max_interventions=2, cooldown=3)
    pairs = controlled(arena, Heuristic(patience=9), guards, can_intervene=True)
    used = [sum(step.logged_action is Action.INTERVENE for step in run.search_steps) for run, _ in pairs]
    assert 0 < max(used) <= 2
    assert used == [overseer.session.counts.interventions for _, overseer in pairs]
    for run, overseer in pairs:
        assert overseer.session.counts.decisions == len(run.search_steps)
        places = [n for n, step in enumerate(run.search_steps) if step.logged_action is Action.INTERVENE]
        for place in places:
            assert "too little attention" in (run.search_steps[place + 1].thought or "") or (
                "Something else" in (run.search_steps[place + 1].thought or "")
            )
        assert all(later - earlier > 3 for earlier, later in pairwise(places))


def test_propensities_are_those_of_the_controller(arena) -> None:
    pairs = controlled(arena, Random(stop=0.1), Guards(), can_intervene=False)
    for run, _ in pairs:
        for step in run.search_steps:
            assert step.propensity == pytest.approx(0.1 if step.logged_action is Action.STOP else 0.9)


def test_attempts_below_the_wanted_coverage_are_refused(arena) -> None:
    free = controlled(arena, NeverStop(), Guards(max_interventions=2), can_intervene=True)
    held = controlled(arena, NeverStop(), Guards(max_interventions=2), can_intervene=True, min_coverage=1.0)
    refused = [[step for step in run.steps if step.kind == "other"] for run, _ in held]
    assert max(map(len, refused)) == 2
    assert sum(len(run.search_steps) for run, _ in held) > sum(len(run.search_steps) for run, _ in free)
    for (run, _), steps in zip(held, refused, strict=True):
        assert all(step.logged_action is Action.INTERVENE for step in steps)
        if run.ended_by == "answer" and len(steps) < 2:
            assert recall(run.steps, run.gold_ids) == 1.0


def test_an_undisturbed_run_has_the_same_steps(arena) -> None:
    kinds = [KINDS[name] for name in KIND_NAMES]
    plain = list(run_population(kinds, arena.queries[:10], arena.reader, arena.retriever, LoopConfig()))
    watched = [run for run, _ in controlled(arena, NeverStop(), Guards(), can_intervene=True)]
    for one, other in zip(plain, watched, strict=True):
        assert one.steps == tuple(replace(step, logged_action=None, propensity=None) for step in other.steps)


def test_random_numbers_of_a_question_do_not_depend_on_the_controller(arena) -> None:
    """Common random numbers: up to the first stop two controllers see the same run."""
    queries: list[Query] = arena.queries[:10]
    early = controlled(arena, FixedBudget(3), Guards(), can_intervene=False)
    late = controlled(arena, FixedBudget(9), Guards(), can_intervene=False)
    assert len(early) == 2 * len(queries)
    for (one, _), (other, _) in zip(early, late, strict=True):
        assert [step.documents for step in one.search_steps] == [step.documents for step in other.search_steps[:3]]


class Guide(Controller):
    """Intervenes after the first search, with advice for the agent, and remembers which texts it was shown."""

    kind = "guide"
    reads_text = True
    guides = True

    def __init__(self) -> None:
        self.shown: list[RunSoFar | None] = []

    @property
    def params(self) -> Mapping[str, Any]:
        return {}

    def copy(self) -> "Guide":
        return self

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        self.shown.append(observation.run)
        return certain(Action.INTERVENE if observation.row.t == 1 else Action.STOP), "Try the mine."


def test_what_an_intervention_appends_to_the_history(arena) -> None:
    """RAAC 4.2: H_t+1 = H_t + (thought, query, documents) of the re-thinker; DS-MCM eq. 18: with the suggestion."""
    query = arena.queries[0]
    agent = ScriptedAgent(KINDS["chaser"], puzzle_of(query), arena.reader, "seed")
    guide, rethinker = Guide(), HeuristicRethinker()
    session = ControlSession(guide, Guards())
    overseer = ControllerOverseer(session, SignalTracker(CONFIG, query.text, criteria=query.criteria), rethinker, "run")
    (run,) = run_in_step([Run(agent, query, "0", LoopConfig(), overseer)], arena.retriever, 5)
    first, injected = run.search_steps
    assert (first.guidance, injected.guidance) == ("Try the mine.", None)
    proposed = rethinker.propose(query, run.steps[:1], "run")
    assert proposed is not None
    assert injected.thought == f"Try the mine. {proposed.turn.thought}".strip()
    assert injected.queries == proposed.turn.queries
    (found,) = arena.retriever.search(proposed.turn.queries, 5)
    assert [document.id for document in injected.documents] == [document.id for document in found]
    shown = guide.shown[1]
    assert shown is not None
    assert (shown.question, shown.question_id) == (query.text, query.id)
    assert [step.queries for step in shown.steps] == [first.queries, injected.queries]
    assert [step.queries for step in guide.shown[0].steps] == [first.queries]  # pyright: ignore[reportOptionalMemberAccess]
