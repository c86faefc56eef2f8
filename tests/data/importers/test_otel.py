import json

import pytest

from stopwise.data.importers.otel import _seconds

RESULTS = json.dumps({"query": "Ada", "results": [{"title": "Lenn", "url": "http://lenn.org", "content": "A town."}]})


def _span(id, start, name, attributes, events=(), parent=None, **fields):
    return {
        "name": name,
        "context": {"trace_id": "t1", "span_id": id},
        "parent_id": parent,
        "start_time": f"2026-01-01T00:00:{start:02d}Z",
        "end_time": f"2026-01-01T00:00:{start + 2:02d}Z",
        "attributes": attributes,
        "events": [{"name": key, "attributes": value} for key, value in events],
        **fields,
    }


MONOCLE = [
    _span(
        "tool",
        3,
        "web_search",
        {"span.type": "agentic.tool.invocation", "entity.1.name": "web_search"},
        [("data.input", {"input": "{'query': 'Ada', 'max_results': 5}"}), ("data.output", {"response": RESULTS})],
        "agent",
    ),
    _span("raw", 2, "openai", {"span.type": "inference.modelapi"}, parent="model"),
    _span(
        "model",
        1,
        "invoke",
        {"span.type": "inference.framework"},
        [
            ("data.input", {"input": "['...']"}),
            ("data.output", {"response": '{"ai": {"name": "web_search", "args": {"query": "Ada"}}}'}),
            ("metadata", {"prompt_tokens": 7, "completion_tokens": 8}),
        ],
        "agent",
    ),
    _span(
        "fetch",
        4,
        "web_fetch",
        {"span.type": "agentic.tool.invocation", "entity.1.name": "web_fetch"},
        [("data.input", {"input": "{'url': 'http://lenn.org'}"}), ("data.output", {"response": "Error: 401"})],
        "agent",
    ),
    _span(
        "last",
        6,
        "invoke",
        {"span.type": "inference.framework"},
        [("data.output", {"response": '{"ai": "Lenn."}'})],
        "agent",
    ),
    _span(
        "agent",
        0,
        "stream",
        {"span.type": "agentic.turn", "workflow.name": "flow"},
        [("data.input", {"input": '["Where was Ada Brook born?"]'}), ("data.output", {"response": "Lenn."})],
    ),
]


def _steps(run):
    return [(s.kind, s.queries, s.error, [d.id for d in s.documents]) for s in run.steps]


def test_monocle_events(read_as):
    (run,) = read_as("otel", MONOCLE)
    assert _steps(run) == [
        ("search", ("Ada",), None, ["url:lenn.org"]),
        ("open", ("http://lenn.org",), "Error: 401", []),
        ("answer", ("Lenn.",), None, []),
    ]
    assert (run.id, run.question, run.answer, run.agent) == ("t1", "Where was Ada Brook born?", "Lenn.", "flow")
    assert (run.steps[0].tokens_in, run.steps[0].tokens_out, run.steps[0].seconds) == (7, 8, 2.0)


def test_spans_one_a_line_and_two_traces(read_as):
    second = [json.loads(json.dumps(span).replace('"t1"', '"t2"')) for span in MONOCLE]
    runs = read_as("otel", *[span for pair in zip(MONOCLE, second, strict=True) for span in pair])
    assert [run.id for run in runs] == ["t1", "t2"]
    assert _steps(runs[0]) == _steps(runs[1])


OPENINFERENCE = [
    _span(
        "agent",
        0,
        "agent",
        {
            "openinference.span.kind": "AGENT",
            "input.value": '{"messages": [{"role": "user", "content": "Where?"}]}',
            "output.value": "Lenn.",
        },
    ),
    _span(
        "tool",
        1,
        "lookup",
        {"openinference.span.kind": "TOOL", "tool.name": "search", "input.value": '{"query": "Ada"}'},
        parent="agent",
    ),
    _span(
        "retriever",
        2,
        "vectors",
        {
            "openinference.span.kind": "RETRIEVER",
            "input.value": "Ada",
            "retrieval.documents.1.document.content": "Second.",
            "retrieval.documents.1.document.id": "d2",
            "retrieval.documents.0.document.id": "d1",
            "retrieval.documents.0.document.content": "First.",
            "retrieval.documents.0.document.score": 0.5,
            "retrieval.documents.0.document.metadata": '{"title": "One"}',
        },
        parent="tool",
    ),
]


def test_openinference_documents_of_a_retriever_inside_a_tool(read_as):
    (run,) = read_as("otel", OPENINFERENCE)
    assert _steps(run) == [("search", ("Ada",), None, ["d1", "d2"])]
    first = run.steps[0].documents[0]
    assert (first.text, first.title, first.score, first.rank) == ("First.", "One", 0.5, 1)
    assert (run.question, run.answer) == ("Where?", "Lenn.")
    (run,) = read_as("otel", [OPENINFERENCE[0], OPENINFERENCE[2] | {"parent_id": "agent"}])
    assert _steps(run) == [("search", ("Ada",), None, ["d1", "d2"])]


def _otlp(*spans):
    def attributes(values):
        return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]

    raw = [
        {
            "traceId": "t",
            "spanId": str(i),
            "parentSpanId": "" if i == 0 else "0",
            "name": name,
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + i * 10**9),
            "endTimeUnixNano": str(1_700_000_001_500_000_000 + i * 10**9),
            "attributes": attributes(values),
            "status": status,
        }
        for i, (name, values, status) in enumerate(spans)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": raw}]}]}


def test_genai_semantic_conventions_in_otlp(read_as):
    user = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Where?"}]}])
    said = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Lenn."}]}])
    (run,) = read_as(
        "otel",
        _otlp(
            (
                "agent",
                {
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.input.messages": user,
                    "gen_ai.output.messages": said,
                },
                {},
            ),
            ("chat", {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": "7"}, {}),
            (
                "tool",
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "search",
                    "gen_ai.tool.call.arguments": '{"q": "Ada"}',
                    "gen_ai.tool.call.result": RESULTS,
                },
                {},
            ),
            (
                "tool",
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "search",
                    "gen_ai.tool.call.arguments": '{"q": "Ox"}',
                },
                {"code": 2, "message": "quota"},
            ),
            ("chat", {"gen_ai.operation.name": "chat", "gen_ai.output.messages": said}, {}),
        ),
    )
    assert _steps(run) == [("search", ("Ada", "Ox"), None, ["url:lenn.org"]), ("answer", ("Lenn.",), None, [])]
    assert (run.question, run.answer, run.steps[0].tokens_in, run.steps[0].seconds) == ("Where?", "Lenn.", 7, 1.5)


def test_a_failed_tool_is_a_step_with_an_error(read_as):
    failed = MONOCLE[0] | {
        "events": MONOCLE[0]["events"][:1],
        "status": {"status_code": "ERROR", "description": "quota"},
    }
    (run,) = read_as("otel", [failed, MONOCLE[-1]])
    assert _steps(run) == [("search", ("Ada",), "quota", [])]


def test_what_is_no_trace_is_a_problem(problems_as):
    assert problems_as("otel", [7, {"name": "x"}, MONOCLE[0]]) == [
        "span 1: found a number; expected a span",
        "span 2: found no span id",
        "trace t1: found no question: no agent span or model span with an input",
    ]
    assert problems_as("otel", [MONOCLE[-1]]) == ["trace t1: found no span of a model, a tool or a retriever"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1700000000000000000", 1.7e9),
        (1700000000000, 1.7e9),
        ("2023-11-14T22:13:20Z", 1.7e9),
        ("x", None),
        (None, None),
    ],
)
def test_times_in_their_units(value, seconds):
    assert _seconds(value) == seconds
