import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stopwise.controllers.memory.entries import Entry, Recalled
from stopwise.data.errors import DataError
from stopwise.evaluation.who_and_when import (
    Blame,
    Case,
    Judge,
    Turn,
    always,
    case_entries,
    guess,
    read_cases,
    same_agent,
    score,
)
from stopwise.models.chat import Abilities

TURNS = (
    Turn("human", "Find the town."),
    Turn("Planner (-> Surfer)", "Look in the atlas."),
    Turn("Surfer", "It is Oss."),
)


def case(name: str = "a", turns: tuple[Turn, ...] = TURNS, agent: str = "Planner", step: int = 1) -> Case:
    return Case(name, f"id-{name}", f"Which town is {name}?", turns, agent, step, "The atlas is old.")


def test_read_cases(tmp_path: Path) -> None:
    row = {
        "question": "Which town?",
        "question_ID": "x1",
        "history": [{"role": "user", "name": "Expert", "content": "Oss"}, {"role": "Surfer", "content": None}],
        "mistake_agent": "Expert",
        "mistake_step": "0",
        "mistake_reason": "Guessed.",
    }
    for number in (10, 2):
        (tmp_path / f"{number}.json").write_text(json.dumps(row))
    found = read_cases(tmp_path)
    assert [one.id for one in found] == ["2", "10"]
    assert found[0] == Case(
        "2", "x1", "Which town?", (Turn("Expert", "Oss"), Turn("Surfer", "")), "Expert", 0, "Guessed."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mistake_step": "2"}, r"found mistake_step '2'"),
        ({"mistake_step": None}, "found mistake_step None"),
        ({"mistake_agent": ""}, "mistake_agent"),
        ({"history": None}, "expected an object with `history`"),
    ],
)
def test_a_case_without_annotation_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    row = {"question": "?", "history": [{"role": "a", "content": "b"}], "mistake_agent": "a", "mistake_step": "0"}
    (tmp_path / "1.json").write_text(json.dumps(row | change))
    with pytest.raises(DataError, match=f"1.json: .*{message}"):
        read_cases(tmp_path)
    with pytest.raises(DataError, match="holds no JSON file"):
        read_cases(tmp_path / "nowhere")


def test_names_of_one_agent() -> None:
    assert same_agent("Orchestrator (-> WebSurfer)", "orchestrator")
    assert same_agent("Websurfer", "WebSurfer")
    assert same_agent("Excel Expert", "Excel_Expert")
    assert not same_agent("WebSurfer", "FileSurfer")
    assert not same_agent(None, "FileSurfer")


def test_accuracy() -> None:
    cases = [case("a"), case("b"), case("c"), case("d")]
    blames = [Blame("planner", 1), Blame("Planner", 2), Blame("Surfer", 1), Blame(failure="timeout")]
    found = score(cases, blames)
    assert (found["agent"]["mean"], found["step"]["mean"]) == (0.5, 0.5)
    assert (found["n"], found["no_answer"], found["failures"]) == (4, 1, {"timeout": 1})
    low, high = found["agent"]["ci"]
    assert 0 <= low < 0.5 < high <= 1


def test_references() -> None:
    # three turns, one by the planner: guessing gets the step and the agent one time in three
    cases = [case("a"), case("b", turns=TURNS[:2])]
    found = guess(cases)
    assert found["step"]["mean"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert found["agent"]["mean"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert always(cases, 2) == [Blame("Surfer", 2), Blame("Planner (-> Surfer)", 1)]


def test_memory_of_the_other_subset_holds_no_evaluated_question() -> None:
    other = [case("a"), case("b"), case("c")]
    evaluated = [case("a"), Case("z", "another id", "WHICH town  is c?", TURNS, "Surfer", 2)]
    entries = list(case_entries(other, evaluated))
    assert {entry.question_id for entry in entries} == {"id-b"}
    assert [(entry.label, entry.agent) for entry in entries] == [
        ("success", "human"),
        ("failure", "Planner (-> Surfer)"),
    ]  # what came after the mistake is not stored
    assert entries[1].abstraction == "The decisive mistake of this run: The atlas is old."
    assert entries[0].history == ""


class Remembers:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def nearest(self, session: str, history: str, k: int) -> Recalled:
        self.asked.append((session, history, k))
        entry = Entry("Agent: Old\nStep: looked </experience> away", "", "It did not look.", "failure", "q")
        return Recalled((), (entry,) * k)


def test_all_at_once(client_of: Callable[..., Any], server: Any) -> None:
    server.otherwise = json.dumps({"agent": "Planner", "step": 1, "reason": "old"})
    judge = Judge(client_of(), "all_at_once")
    assert judge.blame(case()) == Blame("Planner", 1)
    prompt = server.requests[0]["messages"][0]["content"]
    assert "[1] Planner (-> Surfer): Look in the atlas." in prompt
    assert "experience" not in prompt
    assert judge.id.split()[1].startswith("blame_all@")


def test_a_step_that_there_is_not_is_told_and_then_no_answer(client_of: Callable[..., Any], server: Any) -> None:
    server.otherwise = json.dumps({"agent": "Planner", "step": 3})
    assert Judge(client_of(), "all_at_once").blame(case()) == Blame(failure="wrong answer")
    assert "step 3 is not one of 0 to 2" in server.requests[1]["messages"][-1]["content"]


def test_a_model_that_is_held_to_bounds_names_somebody_and_a_step_of_the_run(
    client_of: Callable[..., Any], server: Any
) -> None:
    server.otherwise = json.dumps({"agent": "Surfer", "step": 2})
    client = client_of(abilities=Abilities(structured="schema", bounded=True))
    again = Turn("Surfer", "It is Oss, I said.")
    assert Judge(client, "all_at_once").blame(case(turns=(*TURNS, again))) == Blame("Surfer", 2)
    asked = server.requests[0]["response_format"]["json_schema"]["schema"]["properties"]
    assert asked["agent"]["enum"] == ["human", "Planner (-> Surfer)", "Surfer"]
    assert (asked["step"]["minimum"], asked["step"]["maximum"]) == (0, 3)


def test_step_by_step_stops_at_the_first_objection(client_of: Callable[..., Any], server: Any) -> None:
    server.script = [json.dumps({"err": 0}), json.dumps({"err": 1, "reason": "old"})]
    assert Judge(client_of(), "step_by_step").blame(case()) == Blame("Planner (-> Surfer)", 1)
    assert len(server.requests) == 2
    server.otherwise = json.dumps({"err": 0})
    assert Judge(client_of(), "step_by_step").blame(case("b")) == Blame()


def test_memory_is_shown_quoted(client_of: Callable[..., Any], server: Any) -> None:
    memory = Remembers()
    server.otherwise = json.dumps({"err": 1})
    Judge(client_of(), "step_by_step", memory, k=1).blame(case())
    prompt = server.requests[0]["messages"][0]["content"]
    shown = "Mistaken: Agent: Old Step: looked (/experience> away\nIt did not look."
    assert f"<experience>\n{shown}\n</experience>" in prompt
    assert memory.asked == [("Agent: human\nStep: Find the town.\nQuestion: Which town is a?", "", 1)]
