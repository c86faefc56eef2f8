def _turn(role, text):
    return {"role": role, "content": [{"type": "text", "text": text}]}


CALL = "Calling tools:\n[{'id': 'c1', 'function': {'name': 'web_search', 'arguments': {'query': 'Ada'}}}]"
FOUND = (
    "Call id: c1\nObservation:\n## Search Results\n\n[Lenn](http://lenn.org)\nA town.\n\n[Ada](http://ada.org)\nWho?"
)
STEPS = [
    _turn("system", "You are an agent."),
    _turn("user", "New task:\nWhere was Ada Brook born?"),
    _turn("assistant", "I search."),
    _turn("tool-call", CALL),
    _turn("tool-response", FOUND),
    _turn(
        "tool-call",
        CALL.replace("web_search", "visit_webpage")
        .replace("'query': 'Ada'", "'url': 'http://lenn.org'")
        .replace("c1", "c2"),
    ),
    _turn("tool-response", "Call id: c2\nError: 404\nNow let's retry: take care not to repeat previous errors!"),
    _turn(
        "tool-call",
        CALL.replace("web_search", "final_answer").replace("'query': 'Ada'", "'answer': 'Lenn'").replace("c1", "c3"),
    ),
    _turn("tool-response", "Call id: c3\nObservation:\nLenn"),
]


def _steps(run):
    return [(s.kind, s.thought, s.queries, s.error, [d.id for d in s.documents]) for s in run.steps]


def test_calls_as_python_reprs(read_as):
    (run,) = read_as(
        "smolagents",
        {
            "agent_name": "m",
            "question": "Where?",
            "prediction": "Lenn",
            "intermediate_steps": STEPS,
            "true_answer": "Lenn town",
        },
    )
    assert _steps(run) == [
        ("search", "I search.", ("Ada",), None, ["url:lenn.org", "url:ada.org"]),
        ("open", None, ("http://lenn.org",), "Error: 404", []),
        ("answer", None, ("Lenn",), None, []),
    ]
    assert (run.question, run.answer, run.agent, run.ended_by) == ("Where?", "Lenn", "m", "answer")
    assert run.meta == {"reference_answer": "Lenn town"}


def test_the_task_is_the_question_where_none_is_given(read_as):
    (run,) = read_as("smolagents", {"intermediate_steps": STEPS})
    assert run.question == "Where was Ada Brook born?"


def test_searches_inside_python_source_and_enum_roles(read_as):
    code = "Calling tools:\n```py\nresults = web_search('Ada')\nprint(results)\n```"
    (run,) = read_as(
        "smolagents",
        {
            "question": "Where?",
            "intermediate_steps": [
                _turn("MessageRole.ASSISTANT", "Thought: I search."),
                _turn("MessageRole.TOOL_CALL", code),
                _turn("MessageRole.TOOL_RESPONSE", "Observation:\n" + FOUND),
                _turn("tool-call", "Calling tools:\nprint(1)"),
            ],
        },
    )
    assert _steps(run)[0][:3] == ("search", "Thought: I search.", ("Ada",))
    assert _steps(run)[1][0] == "other"


def test_limits_and_crashes(read_as, problems_as):
    (run,) = read_as("smolagents", {"question": "?", "intermediate_steps": STEPS[:5], "iteration_limit_exceeded": True})
    assert run.ended_by == "budget"
    (run,) = read_as("smolagents", {"question": "?", "intermediate_steps": [], "agent_error": "boom"})
    assert (run.ended_by, run.steps, run.meta) == ("error", (), {"agent_error": "boom"})
    assert problems_as("smolagents", {"question": "?", "intermediate_steps": []}, {"intermediate_steps": None}, 7) == [
        "line 1: intermediate_steps: found no step",
        "line 2: found no question",
        "line 3: found a number; expected an object with intermediate_steps",
    ]
