from collections.abc import Sequence

import numpy as np
import pytest

from stopwise.data.corpus import Query
from stopwise.data.errors import UsageError
from stopwise.data.records import Action, Document, Step
from stopwise.envs.arena.agents import Turn
from stopwise.envs.arena.branching import BranchConfig, BranchOutcome, action_values, branch
from stopwise.envs.arena.chance import Chance
from stopwise.envs.arena.loop import Injection, LoopConfig, Run

BUDGET = 6
HIT = 0.15  # probability a turn of finding the one gold document
HIT_AFTER = 0.35  # the same once it was told to change course


class Toy:
    """Finds the gold with a fixed probability a turn, and stops searching when it has it or its budget is used up."""

    kind = "toy"

    def __init__(self, seed: str) -> None:
        self._chance = Chance(seed)
        self._turn = 0
        self._hit = HIT
        self._found = False

    def turn(self) -> Turn:
        if self._found or self._turn >= BUDGET:
            return Turn("answer", "Done.", answer="gold" if self._found else "none")
        hit = self._chance.uniform(self._turn) < self._hit
        return Turn("search", "Again.", ("hit" if hit else "miss",))

    def observe(self, documents: Sequence[Document]) -> None:
        self._turn += 1
        self._found |= any(document.id == "gold" for document in documents)

    def probe(self, history: Sequence[Step]) -> str | None:
        return "gold" if self._found else None

    def send_on(self) -> None:
        raise AssertionError("nobody refuses")

    def intervene(self, queries: Sequence[str], documents: Sequence[Document], *, redirects: bool) -> None:
        self.observe(documents)
        self._hit = HIT_AFTER if redirects else self._hit

    def fork(self, seed: str | None = None) -> "Toy":
        other = Toy("")
        other._chance = self._chance if seed is None else Chance(seed)
        other._turn, other._hit, other._found = self._turn, self._hit, self._found
        return other


class Miss:
    """An intervention whose own search finds nothing."""

    id = "miss"

    def propose(self, question: Query, steps: Sequence[Step], run_id: str) -> Injection:
        return Injection(Turn("search", "Try this.", ("miss",)))


QUERY = Query("q", "Where is it?", answer="gold", gold_ids=("gold",))


class TwoQueries:
    """``hit`` finds the gold, ``miss`` something else."""

    id = "two"

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Document, ...]]:
        return [(Document("gold" if query == "hit" else "other", rank=1),) for query in queries]


def branched(config: BranchConfig, runs: int) -> list[BranchOutcome]:
    fresh = [Run(Toy(f"run {n}"), QUERY, str(n), LoopConfig(forkable=True)) for n in range(runs)]
    return branch(fresh, TwoQueries(), 1, Miss(), config)[1]


def gain(hit: float, turns: int) -> float:
    """Probability of finding the gold within so many turns."""
    return 1 - (1 - hit) ** turns


def searches(hit: float, turns: int) -> float:
    """Expected number of turns until it is found or they are used up."""
    return sum((1 - hit) ** number for number in range(turns))


def test_estimates_cover_the_known_values() -> None:
    """At t = 2, not found yet: 4 turns are left to continue, 3 and the injected one to intervene."""
    outcomes = [
        outcome for outcome in branched(BranchConfig(1.0, 400), 12) if outcome.t == 2 and not outcome.recall_before
    ]
    values = action_values(outcomes, recall=1.0, search=0.01, correct=0.5)
    expected = {
        Action.CONTINUE: 1.5 * gain(HIT, 4) - 0.01 * searches(HIT, 4),
        Action.INTERVENE: 1.5 * gain(HIT_AFTER, 3) - 0.01 * (1 + searches(HIT_AFTER, 3)),
        Action.STOP: 0.0,
    }
    assert len(values.states) >= 5
    for action in (Action.CONTINUE, Action.INTERVENE):
        off = (values.mean[:, action] - expected[action]) / values.error[:, action]
        assert np.abs(off).max() < 3.5
        assert abs(off.mean()) * len(off) ** 0.5 < 3.5
    assert (values.mean[:, Action.STOP] == 0).all()
    assert values.difference == pytest.approx(values.mean[:, Action.INTERVENE] - values.mean[:, Action.CONTINUE])


def test_common_random_numbers_shrink_the_error_of_differences() -> None:
    shared = action_values(branched(BranchConfig(1.0, 200), 10))
    apart = action_values(branched(BranchConfig(1.0, 200, common=False), 10))
    assert np.mean(shared.difference_error**2) < 0.85 * np.mean(apart.difference_error**2)


def test_runs_are_not_disturbed_and_states_are_drawn_at_the_given_rate() -> None:
    fresh = [Run(Toy(f"run {n}"), QUERY, str(n), LoopConfig(forkable=True)) for n in range(400)]
    trajectories, outcomes = branch(fresh, TwoQueries(), 1, Miss(), BranchConfig(0.2, 1))
    plain = [Run(Toy(f"run {n}"), QUERY, str(n), LoopConfig(forkable=True)) for n in range(400)]
    assert trajectories == branch(plain, TwoQueries(), 1, Miss(), BranchConfig(0.9, 1))[0]
    states = sum(len(run.search_steps) for run in trajectories)
    drawn = len({(outcome.trajectory_id, outcome.t) for outcome in outcomes})
    assert abs(drawn / states - 0.2) < 4 * (0.16 / states) ** 0.5
    assert {outcome.propensity for outcome in outcomes} == {0.2}
    assert len(outcomes) == 3 * drawn


def test_the_last_state_is_branched_too() -> None:
    """Where the agent would answer next, continuing brings nothing and intervening still can."""
    outcomes = branched(BranchConfig(1.0, 2), 40)
    last = [outcome for outcome in outcomes if outcome.t == BUDGET and not outcome.recall_before]
    going_on = [outcome for outcome in last if outcome.action is Action.CONTINUE]
    assert going_on
    assert all(outcome.searches == 0 and outcome.recall_gain == 0 for outcome in going_on)
    assert all(outcome.searches == 1 for outcome in last if outcome.action is Action.INTERVENE)


def test_same_seed_same_branches() -> None:
    assert branched(BranchConfig(0.5, 3), 8) == branched(BranchConfig(0.5, 3), 8)
    assert branched(BranchConfig(0.5, 3), 8) != branched(BranchConfig(0.5, 3, seed=1), 8)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="probability"):
        BranchConfig(probability=0.0)
    run = Run(Toy("r"), QUERY, "0", LoopConfig())
    with pytest.raises(ValueError, match="forkable"):
        run.fork("x", "s")
