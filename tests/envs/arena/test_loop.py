from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stopwise.data.corpus import Query
from stopwise.data.records import Action, Document, Step, Trajectory
from stopwise.envs.arena.agents import ScriptedAgent, Turn
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import Injection, LoopConfig, Run, Verdict, run_in_step
from stopwise.envs.arena.population import BANDS, curves, figures, run_population, sample_queries
from stopwise.envs.arena.puzzle import puzzle_of

ALL_KINDS = tuple(KINDS.values())


def run_all(arena, config: LoopConfig, kinds=ALL_KINDS, queries: slice = slice(8)) -> list[Trajectory]:
    return list(run_population(kinds, arena.queries[queries], arena.reader, arena.retriever, config))


def test_same_seed_same_run(arena) -> None:
    assert run_all(arena, LoopConfig()) == run_all(arena, LoopConfig())


def test_a_run_does_not_depend_on_its_company(arena) -> None:
    together = run_all(arena, LoopConfig())
    alone = run_all(arena, LoopConfig(), kinds=(KINDS["verifier"],), queries=slice(3, 4))
    assert alone[0] in together


def test_probe_does_not_disturb_the_run(arena) -> None:
    probed, unprobed = run_all(arena, LoopConfig()), run_all(arena, LoopConfig(probe=False))
    assert any(step.answer_probe is not None for run in probed for step in run.steps)
    assert [without_probes(run) for run in probed] == unprobed


def without_probes(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, steps=tuple(replace(step, answer_probe=None) for step in trajectory.steps))


def test_what_a_run_records(arena) -> None:
    for run in run_all(arena, LoopConfig(dataset="toy")):
        query = next(query for query in arena.queries if query.id == run.question_id)
        assert run.criteria == query.criteria
        assert run.gold_ids == query.gold_ids
        assert run.meta["reference_answer"] == query.answer
        assert run.id == f"toy/{run.agent}/{query.id}/0"
        assert run.ended_by in ("answer", "budget")
        assert (run.answer is None) == (run.ended_by == "budget")
        assert run.correct == (run.answer is not None and run.answer.casefold() == (query.answer or "").casefold())
        assert run.search_steps[0].queries == (query.text,)
        for step in run.search_steps:
            assert step.thought
            assert step.answer_probe is not None
            assert len(step.documents) == len({document.id for document in step.documents})
            assert 5 <= len(step.documents) <= 10


def test_parallel_queries_are_one_step(arena) -> None:
    runs = run_all(arena, LoopConfig(), kinds=(KINDS["rephraser"],))
    assert {len(step.queries) for run in runs for step in run.search_steps} == {1, 2}


class Fixed:
    """Stops or redirects at given searches, and sends on at attempts."""

    def __init__(self, actions: dict[int, Verdict], attempts: Sequence[Action] = ()) -> None:
        self._actions = actions
        self._attempts = list(attempts)

    def after_search(self, question: Query, steps: Sequence[Step]) -> Verdict:
        return self._actions.get(sum(step.kind == "search" for step in steps), Verdict())

    def at_attempt(self, question: Query, steps: Sequence[Step], answer: str | None) -> Verdict:
        return Verdict(self._attempts.pop(0) if self._attempts else Action.STOP)


def run_one(arena, overseer: Fixed | None, kind: str = "chaser", number: int = 0) -> Trajectory:
    query = arena.queries[number]
    agent = ScriptedAgent(KINDS[kind], puzzle_of(query), arena.reader, "one")
    return next(iter(run_in_step([Run(agent, query, "0", LoopConfig(), overseer)], arena.retriever, 5)))


def test_an_overseer_that_only_watches_changes_nothing_but_the_record(arena) -> None:
    watched = run_one(arena, Fixed({}))
    assert all(step.logged_action is Action.CONTINUE for step in watched.search_steps)
    assert tuple(replace(step, logged_action=None) for step in watched.steps) == run_one(arena, None).steps


def test_stop_answers_from_the_last_probe(arena) -> None:
    """RAAC 4.2, Stop: the final answer is the agent's own, given what it has."""
    free = run_one(arena, None)
    stopped = run_one(arena, Fixed({6: Verdict(Action.STOP, 0.25)}))
    assert len(stopped.search_steps) == 6
    assert [step.documents for step in stopped.search_steps] == [step.documents for step in free.search_steps[:6]]
    assert stopped.ended_by == "answer"
    probe = stopped.search_steps[-1].answer_probe
    assert probe is not None
    assert stopped.answer == (probe.answer or "unknown")
    assert stopped.search_steps[-1].propensity == 0.25


def test_an_intervention_is_a_search_of_its_own(arena) -> None:
    turn = Turn("search", "Try the last criterion instead.", ("a town that built a maze",))
    redirected = run_one(arena, Fixed({3: Verdict(Action.INTERVENE, None, Injection(turn))}))
    injected = redirected.search_steps[3]
    assert injected.queries == turn.queries
    assert injected.thought == turn.thought
    assert injected.documents
    assert redirected.search_steps[2].logged_action is Action.INTERVENE
    assert injected.logged_action is Action.CONTINUE  # it is a decision point like any other


def test_a_refused_attempt_sends_the_agent_on(arena) -> None:
    number = next(n for n in range(8) if run_one(arena, None, "quitter", n).ended_by == "answer")
    free = run_one(arena, None, "quitter", number)
    sent_on = run_one(arena, Fixed({}, [Action.INTERVENE]), "quitter", number)
    refused = [step for step in sent_on.steps if step.kind == "other"]
    assert len(refused) == 1
    assert refused[0].logged_action is Action.INTERVENE
    assert len(sent_on.search_steps) > len(free.search_steps)


def test_curves_by_hand() -> None:
    def step(*ids: str) -> Step:
        return Step("search", documents=tuple(Document(id=name) for name in ids))

    run = Trajectory("t", "q", "x", (step("a", "b"), step("a", "c"), step("a", "d")), gold_ids=("a", "c"), correct=True)
    short = Trajectory("u", "q", "x", (step("b"),), gold_ids=("a", "c"), correct=False)
    by_step = curves([run, short])
    np.testing.assert_array_equal(by_step.recall, [[0.5, 1.0, 1.0], [0, 0, 0]])
    np.testing.assert_array_equal(by_step.novelty, [[1, 0.5, 0.5], [1, np.nan, np.nan]])
    np.testing.assert_array_equal(by_step.gain, [[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(by_step.relevant_seen[0], [0, 0.5, 0.5])
    population = figures([run, short])
    assert (population.searches, population.recall_first, population.recall_final) == (2.0, 0.25, 0.5)
    assert (population.no_gold, population.all_gold, population.accuracy) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="no gold"):
        curves([replace(run, gold_ids=None)])


def test_sample_is_fixed_and_in_order(arena) -> None:
    few, more = sample_queries(arena.queries, 5), sample_queries(arena.queries, 20)
    assert len(few) == 5
    assert set(few) <= set(more)
    assert [query for query in arena.queries if query in more] == more
    assert set(BANDS) <= set(figures(run_all(arena, LoopConfig())).__dataclass_fields__)


def test_a_fork_with_the_same_seed_goes_on_as_the_run_does(arena) -> None:
    """Forks made at every state of a run, with the run's own seed, all end as the run itself ends."""
    query = arena.queries[2]
    run = Run(
        ScriptedAgent(KINDS["drifter"], puzzle_of(query), arena.reader, "s"), query, "0", LoopConfig(forkable=True)
    )

    def fork(run: Run) -> list[Run]:
        return [run.fork(f"fork {run.searches}", "s")]

    original, *forks = run_in_step([run], arena.retriever, 5, fork)
    assert len(forks) == len(original.search_steps)
    assert all(forked.steps == original.steps for forked in forks)


def test_a_fork_with_another_seed_shares_the_past_only(arena) -> None:
    query = arena.queries[2]
    run = Run(
        ScriptedAgent(KINDS["drifter"], puzzle_of(query), arena.reader, "s"), query, "0", LoopConfig(forkable=True)
    )

    def fork(run: Run) -> list[Run]:
        return [run.fork(str(number), f"other {number}") for number in range(3)] if run.searches == 5 else []

    original, *forks = run_in_step([run], arena.retriever, 5, fork)
    assert len({original.steps, *(forked.steps for forked in forks)}) == 4
    assert all(forked.steps[:5] == original.steps[:5] for forked in forks)
    assert [forked.id.split("/")[-1] for forked in forks] == ["0", "1", "2"]
