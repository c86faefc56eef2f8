import json

import pytest
from hypothesis import strategies as st

from stopwise.data.records import Action, AnswerProbe, Criterion, Document, Logprobs, Step, Trajectory

# --- strategies ---------------------------------------------------------------------------------------------------

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NUMBER = st.floats(allow_nan=False)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_SECONDS = st.floats(0, allow_nan=False, allow_infinity=False)
_PROBABILITY = st.floats(0, 1, exclude_min=True)
_COUNT = st.integers(0, 2**62)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)


def _maybe(strategy):
    return st.none() | strategy


def _tuples(strategy, size=3):
    return st.lists(strategy, max_size=size).map(tuple)


_DOCUMENT = st.builds(
    Document, _TEXT, _maybe(_TEXT), _maybe(_TEXT), _maybe(_TEXT), _maybe(_FINITE), _maybe(st.integers(-5, 2**40))
)
_LOGPROBS = st.builds(Logprobs, top=_tuples(_tuples(_NUMBER)), source=_TEXT.filter(bool)) | st.builds(
    Logprobs, entropies=_tuples(_NUMBER)
)
_STEP = st.builds(
    Step,
    st.sampled_from(["search", "open", "answer", "other"]),
    _maybe(_TEXT),
    _tuples(_TEXT),
    _tuples(_DOCUMENT, 4),
    _maybe(_TEXT),
    _maybe(_LOGPROBS),
    _maybe(st.builds(AnswerProbe, _maybe(_TEXT), _maybe(st.booleans()))),
    _maybe(st.sampled_from(Action)),
    _maybe(_PROBABILITY),
    _maybe(_COUNT),
    _maybe(_COUNT),
    _maybe(_SECONDS),
    _maybe(_TEXT),
)
_TRAJECTORY = st.builds(
    Trajectory,
    id=_TEXT,
    question_id=_TEXT,
    question=_TEXT,
    steps=_tuples(_STEP, 4),
    criteria=_maybe(_tuples(st.builds(Criterion, _TEXT, _maybe(_tuples(_TEXT))))),
    answer=_maybe(_TEXT),
    correct=_maybe(st.booleans()),
    gold_ids=_maybe(_tuples(_TEXT)),
    agent=_maybe(_TEXT),
    dataset=_maybe(_TEXT),
    ended_by=st.sampled_from(["answer", "budget", "error", "unknown"]),
    meta=st.dictionaries(_TEXT, _JSON, max_size=3),
)


@pytest.fixture(scope="session")
def any_trajectory():
    """A strategy for trajectories with every field in every state."""
    return _TRAJECTORY


# --- logs in the shapes of real ones, written for these tests --------------------------------------------------------

REFLEXION = """
########################################
BEGIN TRIAL 1
Trial summary: Correct: 1, Incorrect: 2, Halted: 1
#######################################
------------- BEGIN CORRECT AGENTS -------------

Question: Which river does the Old Mill Bridge of Arden cross?
Thought 1: I need to search Old Mill Bridge.
Action 1: Search[Old Mill Bridge]
Observation 1: Could not find [Old Mill Bridge]. Similar: ['Old Mill', 'Mill Bridge (Arden)', 'Bridge']
Thought 2: The similar page is what I want.
Action 2: Search[Mill Bridge (Arden)]
Observation 2: The Mill Bridge is a stone bridge.
It was built in 1610 and crosses the Tarn.
Question of its age: disputed.
Thought 3: It crosses the Tarn.
Action 3: Finish[the Tarn]
Observation 3: Answer is CORRECT
Correct answer: Tarn

------------- BEGIN INCORRECT AGENTS -----------

Question: Who painted the ceiling of Arden Hall?
Thought 1: I should look for Arden Hall.
Action 1: Search[Arden Hall]
Observation 1: Arden Hall is a manor with a painted ceiling.
Thought 2: I look up the painter.
Action 2: Lookup[painter]
Observation 2: (Result 1/2) The painter Jo Fenn lived nearby.
Thought 3: Once more.
Action 3: Lookup[ceiling]
Observation 3: No Results
Thought 4: Perhaps Jo Fenn.
Action 4: Finish[Jo Fenn]
Observation 4: Answer is INCORRECT
Correct answer: Mara Lund

Question: What is the tallest tower of Arden?
Thought 1: Search the tower.
Action 1: Search[tower]
Observation 1: Could not find [tower]. Similar: []
Correct answer: Bell Tower

------------- BEGIN HALTED AGENTS --------------

Question: What is the tallest tower of Arden?
Thought 1: Search the tower.
Action 1: Search[tower]
Observation 1: Could not find [tower]. Similar: []
Correct answer: Bell Tower

########################################
BEGIN TRIAL 2
Trial summary: Correct: 0, Incorrect: 0, Halted: 1
#######################################
------------- BEGIN CORRECT AGENTS -------------

------------- BEGIN HALTED AGENTS --------------

Question: What is the tallest tower of Arden?
Thought 1: Search the tower.
Action 1: Search[tower]
Observation 1: Could not find [tower]. Similar: []
Correct answer: Bell Tower
"""

KNOWAGENT_PROMPT = """Solve a question by actions.
Here are some examples:
Question: An example that is no episode?
ActionPath 1: Start
Thought 1: An example.
Action 1: Search[Example]
Observation 1: An example page.
ActionPath 2: Start->Search[Example]
Thought 2: Done.
Action 2: Finish[example]

(END OF EXAMPLES)
Question: Where was Ada Brook born?
ActionPath 1: Start
Thought 1: I search her.
Action 1: Search[Ada Brook]
Observation 1: Ada Brook was an engineer.
ActionPath 2: Start->Search[Ada Brook]
Thought 2: I retrieve her town.
Action 2: Retrieve[Lenn]
Observation 2: Lenn is a town.
ActionPath 3: Start->Search[Ada Brook]->Retrieve[Lenn]
Thought 3: A sum.
Action 3: Calculate[1+1]
Observation 3: Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>]
ActionPath 4:
Thought 4:
Action 4:
Observation 4: Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>]
Thought 5: I know.
Action 5: Finish[Lenn]
Observation 5: Answer is CORRECT
"""

R1_DOCUMENTS = (
    "(1)Title: Ada Brook Text:  Ada Brook (1810) was an engineer.\n"
    '(2)"Title: Lenn (town) Text:  Lenn, called ""the Hill"", is a town."\n'
    "(3)Brook   A brook is a small river (2) of water.\n"
)

SEARCH_R1 = """<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
Call <search> query </search>; results come between <information> and </information>. For example, <answer> Beijing \
</answer>. Question: where was ada brook born?
<|im_end|>
<|im_start|>assistant
<think>I need her birth place.</think>
<search> Ada Brook born </search>

<information>Doc 1(Title: "Ada Brook") Ada Brook was born in Lenn.
Doc 2(Title: "Lenn") Lenn is a town.
Doc 3(Title: "Lenn") The market of Lenn.</information>

So it is Lenn.
<search> Lenn county </search>
<information></information>
<answer> Lenn </answer>
"""


@pytest.fixture
def reflexion_log(tmp_path):
    path = tmp_path / "reflexion.txt"
    path.write_text(REFLEXION, encoding="utf-8")
    return path


@pytest.fixture
def knowagent_log(tmp_path):
    rows = [
        {
            "question": "Where was Ada Brook born?",
            "answer": "Lenn town",
            "correct": True,
            "reward": 1.0,
            "halted": False,
            "error": False,
            "prompt": KNOWAGENT_PROMPT,
        },
        {
            "question": "Where was Ada Brook born?",
            "answer": "Lenn town",
            "correct": False,
            "reward": 0,
            "halted": True,
            "error": False,
            "prompt": "Question: Where was Ada Brook born?\nThought 1: Search.\nAction 1: Search[Ada",
        },
    ]
    path = tmp_path / "knowagent.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def r1_rows():
    """R1-Searcher rows: one that searches twice, one that answers from memory, one that was cut off."""
    searched = (
        'I search for "<|begin_of_query|> Ada Brook <|end_of_query|>\n\n<|begin_of_documents|>\n'
        f"{R1_DOCUMENTS}<|end_of_documents|>\n\nNow the town. <|begin_of_query|>Lenn<|end_of_query|>"
        "<|begin_of_documents|>\nNo results found.\n<|end_of_documents|></think>\n<answer> Lenn </answer>"
    )
    row = {"question": "Where was Ada Brook born?", "answer": "Lenn", "stop_reason_final": "finished"}
    return [
        row | {"pred_ans": " Lenn ", "gen_text_store": searched, "gpt4o_output": "True"},
        row
        | {
            "pred_ans": "Oss",
            "gen_text_store": "I know it.</think> <answer>Oss</answer>",
            "gpt4o_output": "False",
            "answer": [["Lenn"], "Lenn town"],
        },
        row
        | {
            "pred_ans": "",
            "gen_text_store": "Hm. <|begin_of_query|>Ada Brook",
            "gpt4o_output": "unknown",
            "stop_reason_final": "many_retrieve",
        },
    ]


@pytest.fixture
def r1_log(tmp_path, r1_rows):
    path = tmp_path / "r1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in r1_rows), encoding="utf-8")
    return path


@pytest.fixture
def search_r1_log(tmp_path):
    path = tmp_path / "case.txt"
    path.write_text(SEARCH_R1, encoding="utf-8")
    return path
