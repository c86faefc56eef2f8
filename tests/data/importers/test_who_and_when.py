SCREEN = (
    "Here is a screenshot of [Ada Brook - Search](https://www.bing.com/search?q=Ada+Brook&x=1). The viewport shows 9%."
)
PAGE = "Here is a screenshot of [Lenn (town)](https://lenn.org/wiki/Lenn_(town)). Ada Brook was born here."


def _row(history, **fields):
    return {
        "question": "Where was Ada Brook born?", "question_ID": "id17", "ground_truth": "Lenn", "is_corrected": False,
        "history": history, "mistake_agent": "WebSurfer", "mistake_step": "2", "mistake_reason": "It did not look.",
        **fields,
    }  # fmt: skip


def test_magentic_entries_are_steps_one_by_one(read_as):
    (run,) = read_as(
        "who_and_when",
        _row(
            [
                {"role": "human", "content": "Where was Ada Brook born?"},
                {"role": "Orchestrator (-> WebSurfer)", "content": "Search for Ada Brook."},
                {
                    "role": "WebSurfer",
                    "content": f"I typed 'Ada Brook's town' into '0 characters out of 2000'.\n\n{SCREEN}",
                },
                {"role": "WebSurfer", "content": f"I clicked 'Lenn'.\n\n{PAGE}"},
                {"role": "WebSurfer", "content": f"I typed 'https://lenn.org' into the browser address bar.\n\n{PAGE}"},
                {"role": "WebSurfer", "content": "I clicked the control."},
                {"role": "WebSurfer", "content": "The town is Lenn."},
                {
                    "role": "Orchestrator (termination condition)",
                    "content": "Max rounds.\nFINAL ANSWER: Oss\nRUN COMPLETE",
                },
            ]
        ),
    )
    assert [(s.kind, s.queries, s.error, [d.id for d in s.documents]) for s in run.steps] == [
        ("other", (), None, []),
        ("other", (), None, []),
        ("search", ("Ada Brook's town",), None, ["url:bing.com/search?q=Ada+Brook&x=1"]),
        ("open", ("https://lenn.org/wiki/Lenn_(town)",), None, ["url:lenn.org/wiki/Lenn_(town)"]),
        ("open", ("https://lenn.org",), None, ["url:lenn.org/wiki/Lenn_(town)"]),
        ("open", (), "no page in the log", []),
        ("other", (), None, []),
        ("other", (), None, []),
    ]
    assert (run.answer, run.correct, run.outcome, run.question_id) == ("Oss", False, "incorrect", "id17")
    assert run.meta == {
        "reference_answer": "Lenn",
        "mistake_step": 2,
        "mistake_agent": "WebSurfer",
        "mistake_reason": "It did not look.",
    }


def test_searches_inside_python_and_what_it_printed(read_as):
    code = "I search.\n```python\nq = 'Ada Brook'\nprint(perform_web_search(q, count=2))\n```"
    printed = "exitcode: 0 (execution succeeded)\nCode output: Search Result 1:\nLenn\nhttp://lenn.org\nA town.\n"
    (run,) = read_as(
        "who_and_when",
        _row(
            [
                {"role": "assistant", "name": "Expert", "content": code},
                {"role": "user", "name": "Computer_terminal", "content": printed},
                {"role": "assistant", "name": "Expert", "content": code},
                {
                    "role": "user",
                    "name": "Computer_terminal",
                    "content": "exitcode: 1 (execution failed)\nCode output: x",
                },
                {"role": "assistant", "name": "Expert", "content": code},
                {"role": "user", "name": "Expert2", "content": "TERMINATE"},
            ],
            is_correct=False,
            mistake_step="none",
        ),
    )
    assert [(s.kind, s.queries, [d.id for d in s.documents]) for s in run.steps][:2] == [
        ("search", ("Ada Brook",), ["url:lenn.org"]),
        ("other", (), []),
    ]
    assert run.steps[0].thought == code
    assert (run.steps[2].error or "")[:11] == "exitcode: 1"
    assert run.steps[4].error == "not executed"
    assert (run.answer, run.ended_by, "mistake_step" in run.meta) == (None, "unknown", False)


def test_a_null_history_is_a_crashed_run(read_as):
    (run,) = read_as("who_and_when", _row(None))
    assert (run.steps, run.outcome) == ((), "halted")


def test_what_is_no_log_is_a_problem(problems_as):
    assert problems_as("who_and_when", {"history": []}, _row(7), [7]) == [
        "line 1: question: found none",
        "line 2: history: found a number; expected a list",
        "line 3, record 1: found a number; expected an object with history",
    ]
