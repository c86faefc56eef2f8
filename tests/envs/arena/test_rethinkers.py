import pytest

from stopwise.data.corpus import Query
from stopwise.data.errors import UsageError
from stopwise.data.records import Criterion, Document, Step
from stopwise.envs.arena.rethinkers import (
    HeuristicRethinker,
    RandomRethinker,
    criteria_of,
    criterion_effort,
    unexplored_names,
)

QUERY = Query(
    "q",
    "Which town? It grew rich on salt. It built a maze.",
    criteria=(Criterion("The town grew rich on salt."), Criterion("The town built a maze.")),
)
STEPS = [
    Step("search", queries=(QUERY.text,), documents=(Document("a", title="Alba (town)"), Document("b", title="Solm"))),
    Step("search", queries=("town rich on salt",), documents=(Document("c", title="Alba: an outline"),)),
    Step("search", queries=("Solm salt grew rich",), documents=()),
]


def test_effort_counts_searches_about_a_criterion() -> None:
    """The whole question names every criterion and counts for none."""
    assert [criterion_effort(criterion, STEPS) for criterion in criteria_of(QUERY)] == [2, 0]


def test_names_that_no_query_has_followed() -> None:
    assert unexplored_names(STEPS) == ["Alba"]


def test_a_good_rethinker_looks_for_what_had_the_least_attention() -> None:
    injection = HeuristicRethinker(quality=1.0, harm=0.0).propose(QUERY, STEPS, "run")
    assert injection.redirects
    assert injection.turn.queries == ("town built maze",)
    assert "maze" in injection.turn.thought


def test_a_harmful_one_follows_a_name() -> None:
    assert HeuristicRethinker(harm=1.0).propose(QUERY, STEPS, "run").turn.queries == ("Alba",)


def test_a_poor_one_picks_any_criterion() -> None:
    poor = HeuristicRethinker(quality=0.0, harm=0.0)
    picked = {" ".join(poor.propose(QUERY, STEPS, f"run {n}").turn.queries).split()[-1] for n in range(40)}
    assert picked == {"salt", "maze"}


def test_same_run_same_proposal() -> None:
    rethinker = HeuristicRethinker(quality=0.5, harm=0.5)
    assert rethinker.propose(QUERY, STEPS, "run") == rethinker.propose(QUERY, STEPS, "run")


def test_the_random_control_draws_from_its_pool_and_says_nothing() -> None:
    control = RandomRethinker(("x", "y"))
    drawn = [control.propose(QUERY, STEPS, f"run {n}") for n in range(40)]
    assert {injection.turn.queries[0] for injection in drawn} == {"x", "y"}
    assert not any(injection.redirects for injection in drawn)


def test_parameters_are_checked() -> None:
    with pytest.raises(UsageError, match=r"rethinker\.quality"):
        HeuristicRethinker(quality=1.5)
    with pytest.raises(UsageError, match="pool"):
        RandomRethinker(())


def test_a_question_without_criteria_is_taken_by_its_sentences() -> None:
    assert criteria_of(Query("q", "Which town? It built a maze.")) == ("Which town?", "It built a maze.")
