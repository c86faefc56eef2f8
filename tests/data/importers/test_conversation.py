import json

import pytest

from stopwise.data.importers.code_searches import searches_in_code
from stopwise.data.importers.conversation import (
    UNANSWERED,
    Call,
    Message,
    call_queries,
    final_answer,
    is_forced_answer,
    read_conversation,
    split_thought,
)
from stopwise.data.importers.tools import TOOLS
from stopwise.data.records import Logprobs

A, B = [{"url": "http://a", "text": "a"}], [{"url": "http://b", "text": "b"}]


def _ask(*calls: Call, **fields) -> Message:
    return Message("assistant", calls=list(calls), **fields)


def _tool(content, call_id=None, name=None) -> Message:
    return Message("tool", content=content, call_id=call_id, name=name)


def _search(query, call_id=None) -> Call:
    return Call("search", {"query": query}, call_id)


def _steps(*messages, tools=TOOLS):
    run = read_conversation([Message("user", "Where?"), *messages], tools)
    return [(step.kind, step.queries, [d.id for d in step.documents], step.error) for step in run.steps]


def test_several_queries_and_several_calls_of_one_turn_are_one_decision():
    turn = _ask(_search(["q1", "q2"], "1"), Call("visit", {"url": "http://p"}, "2"), _search("q3", "3"))
    assert _steps(turn, _tool(B, "3"), _tool("A page.", "2"), _tool(A, "1")) == [
        ("search", ("q1", "q2", "q3"), ["url:a", "url:b"], None),
        ("open", ("http://p",), ["url:p"], None),
    ]


def test_results_go_by_id_not_by_position_and_an_id_may_come_again():
    first, second = _ask(_search("q1", "x")), _ask(_search("q2", "x"))
    assert _steps(first, _tool(A, "x"), second, _tool(B, "x")) == [
        ("search", ("q1",), ["url:a"], None),
        ("search", ("q2",), ["url:b"], None),
    ]


def test_a_late_result_still_finds_its_call_and_a_foreign_one_is_counted():
    run = read_conversation(
        [
            Message("user", "?"),
            _ask(_search("q1", "1")),
            _ask(_search("q2", "2")),
            _tool(B, "2"),
            _tool(A, "1"),
            _tool(A, "9"),
        ]
    )
    assert [[d.id for d in step.documents] for step in run.steps] == [["url:a"], ["url:b"]]
    assert run.unpaired == 1


def test_results_without_ids_go_by_name_then_by_order():
    turn = _ask(Call("visit", {"url": "http://p"}), _search("q1"), _search("q2"))
    assert _steps(turn, _tool(A, name="search"), _tool("Page.", name="visit"), _tool(B)) == [
        ("open", ("http://p",), ["url:p"], None),
        ("search", ("q1", "q2"), ["url:a", "url:b"], None),
    ]


def test_calls_that_were_logged_but_not_executed_are_no_searches():
    assert _steps(_ask(_search("q1", "1"), _search("q2", "2")), _tool(A, "1"), Message("assistant", "Lenn")) == [
        ("search", ("q1",), ["url:a"], None),
        ("other", ("q2",), [], UNANSWERED),
        ("answer", ("Lenn",), [], None),
    ]


def test_a_run_cut_at_its_last_call():
    assert _steps(_ask(_search("q1", "1"))) == [("search", ("q1",), [], UNANSWERED)]


def test_errors_and_empty_results():
    turn = _ask(_search("q1", "1"), _search("q2", "2"))
    assert _steps(turn, _tool("[]", "1"), _tool("Error: quota", "2")) == [
        ("search", ("q1", "q2"), [], "no results; Error: quota")
    ]
    turn = _ask(_search("q1", "1"), _search("q2", "2"))
    assert _steps(turn, _tool(A, "1"), _tool("Error: quota", "2"))[0] == ("search", ("q1", "q2"), ["url:a"], None)


def test_a_result_overwritten_by_an_instruction_to_answer_is_no_observation():
    forced = "You have now reached the maximum context length. You should stop making tool calls and answer."
    for last in (_tool(forced, "1"), Message("user", forced)):
        run = read_conversation([Message("user", "?"), _ask(_search("q1", "1")), last, Message("assistant", "Lenn")])
        assert run.ended_by == "budget"
        assert (run.steps[0].documents, run.steps[0].error is not None, run.answer) == ((), True, "Lenn")


def test_an_instruction_at_the_beginning_forces_nothing():
    run = read_conversation([Message("user", "Think, then give your final answer now."), Message("assistant", "Lenn")])
    assert run.ended_by == "answer"
    assert not is_forced_answer("The train reached its limit of 60 tokens in the search for an answer.")


def test_no_search_at_all_and_silence():
    assert _steps(Message("assistant", "Lenn")) == [("answer", ("Lenn",), [], None)]
    assert _steps(
        Message("assistant", "I search."), _ask(_search("q", "1")), _tool(A, "1"), Message("assistant", "")
    ) == [
        ("other", (), [], None),
        ("search", ("q",), ["url:a"], None),
    ]
    assert read_conversation([Message("user", "?")]).steps == ()


def test_thought_logprobs_and_cost_belong_to_the_first_step_of_a_turn():
    logprobs = Logprobs(top=((-0.5,),))
    turn = _ask(_search("q", "1"), Call("visit", {"url": "u"}, "2"), text="<think>a</think>b", thought="c")
    turn.logprobs, turn.tokens_in, turn.tokens_out, turn.seconds = logprobs, 7, 8, 0.5
    first, second = read_conversation([turn, _tool(A, "1"), _tool("Page", "2")]).steps
    assert (first.thought, first.logprobs, first.tokens_in, first.tokens_out, first.seconds) == (
        "c\na\nb",
        logprobs,
        7,
        8,
        0.5,
    )
    assert (second.thought, second.logprobs, second.tokens_in) == (None, None, None)


def test_an_answer_tool_and_marked_answers():
    run = read_conversation([_ask(Call("final_answer", '{"answer": "Lenn"}'))])
    assert (run.answer, run.ended_by, run.steps[0].kind) == ("Lenn", "answer", "answer")
    text = "Explanation: because [7].\n**Exact Answer:** Lenn\nConfidence: 85%"
    assert final_answer(text) == ("Lenn", 85.0)
    assert final_answer("<answer> Lenn </answer>") == ("Lenn", None)
    assert final_answer(" ") == (None, None)


def test_thinking_tags():
    assert split_thought("<think>a</think> b") == ("a", "b")
    assert split_thought("a</think>b") == ("a", "b")
    assert split_thought("<think>a") == ("a", None)
    assert split_thought("b") == (None, "b")


@pytest.mark.parametrize(
    ("arguments", "kind", "queries"),
    [
        ({"query": "a", "num": 5}, "search", ("a",)),
        ('{"query": ["a", "b"]}', "search", ("a", "b")),
        ("{'queries': [{'q': 'a'}]}", "search", ("a",)),
        ({"needle": "a"}, "search", ("a",)),
        ("plain words", "search", ("plain words",)),
        ('{"query": "cut', "search", ('{"query": "cut',)),
        ({"url": ["u1", "u2"], "goal": "g"}, "open", ("u1", "u2")),
        ({"docid": 7}, "open", ("7",)),
        ({"path": "x", "mode": "r"}, "other", ('{"path": "x", "mode": "r"}',)),
        ({}, "search", ()),
        (None, "search", ()),
    ],
)
def test_queries_of_calls(arguments, kind, queries):
    assert call_queries(arguments, kind) == queries


CODE = """
import re
results = web_search(query="Ada Brook")
for name in ("x",):
    more = tools.wikipedia_search("Lenn" if name else "")
    re.search("pattern", more)
print(web_search("Ada Brook"), web_search(name))
"""


def test_queries_inside_python_source():
    assert searches_in_code(CODE) == ("Ada Brook",)
    assert searches_in_code("q = 'a b'\nweb_search(q, count=5)") == ("a b",)
    assert searches_in_code("perform_web_search(f'{name} town')") == ("f'{name} town'",)
    assert searches_in_code("web_search(") == ()
    turn = _ask(Call("python_interpreter", json.dumps({"code": CODE}), "1"))
    assert _steps(turn, _tool("Ada Brook was an engineer.", "1"))[0][:2] == ("search", ("Ada Brook",))
    assert _steps(_ask(Call("python", "print(1)", "1")), _tool("1", "1"))[0][0] == "other"


def test_open_pages_have_the_address_that_was_asked_for():
    turn = _ask(Call("visit", {"url": "https://lenn.org/a"}, "1"), Call("get_document", {"docid": "7"}, "2"))
    assert _steps(turn, _tool("# Lenn\n\n[x](http://y)\n", "1"), _tool('{"docid": "7", "text": "t"}', "2")) == [
        ("open", ("https://lenn.org/a",), ["url:lenn.org/a"], None),
        ("open", ("7",), ["7"], None),
    ]
    failed = _tool("# Untitled\n\nError: 451", "1")
    assert _steps(_ask(Call("visit", {"url": "http://p"}, "1")), failed) == [("open", ("http://p",), [], "Error: 451")]
