import numpy as np
import pytest

from stopwise.data.corpus import Query
from stopwise.data.errors import UsageError
from stopwise.data.records import Action, AnswerProbe, Document, Logprobs, Step
from stopwise.envs.arena.agents import Turn
from stopwise.envs.arena.llm_turns import ReadTurn, read_turn
from stopwise.envs.arena.loop import Injection, LoopConfig, Run, Verdict, run_in_step
from stopwise.envs.arena.react_agent import ReactAgent, ReactConfig
from stopwise.models.chat_client import ChatClient
from stopwise.models.ledger import Ledger
from stopwise.models.response_cache import ResponseCache
from stopwise.models.transcript import Transcript, Window
from stopwise.signals.entropy import position_entropy
from stopwise.signals.scored_reasoning import ReasoningScorer

QUERY = Query("q", "Which town grew rich on salt?", answer="Alba", gold_ids=("salt",))
QUIET = LoopConfig(probe=False, dataset="toy")


class Shelf:
    """Finds one document a query, named after it."""

    id = "shelf"

    def search(self, queries, k):
        return [(Document(query, f"Of {query}.", query.title(), rank=1),) for query in queries]


class Judge:
    """Gives verdicts by search number; refuses the first `refusals` answers."""

    def __init__(self, verdicts=(), refusals=0):
        self._verdicts, self._refusals = dict(verdicts), refusals

    def after_search(self, question, steps):
        return self._verdicts.get(sum(step.kind == "search" for step in steps), Verdict())

    def at_attempt(self, question, steps, answer):
        self._refusals -= 1
        return Verdict(Action.INTERVENE if self._refusals >= 0 else Action.STOP)


def _run(client, config=None, loop=QUIET, overseer=None, seed="s"):
    agent = ReactAgent(client, QUERY.text, config, seed)
    (trajectory,) = run_in_step([Run(agent, QUERY, "0", loop, overseer)], Shelf(), 5)
    return trajectory


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("I look.\nSearch: salt town", ReadTurn("I look.", ("salt town",))),
        ("I look.\n\nSearch: a\nSearch: b\nAnswer: c", ReadTurn("I look.", ("a", "b"))),
        ("Search: a\nand so on\nSearch: b", ReadTurn("", ("a",))),
        ("It is Alba.\n**Answer:** Alba\nmore", ReadTurn("It is Alba.", answer="Alba")),
        (' Hm.\n  search : "salt"', ReadTurn(" Hm.", ("salt",))),
        ("Search:\nAnswer: `Alba`", ReadTurn("Search:", answer="Alba")),
        ("The answer: Alba", None),
        ("I would Search: a", None),
        ("", None),
    ],
)
def test_how_a_turn_is_read(text, read):
    assert read_turn(text) == read


def test_it_searches_reads_and_answers(server, client_of):
    server.script = ["I look for salt.\nSearch: salt\nSearch: town", "So it is Alba.\nAnswer: Alba"]
    run = _run(client_of())
    search, answer = run.steps
    assert (search.thought, search.queries) == ("I look for salt.", ("salt", "town"))
    assert [document.id for document in search.documents] == ["salt", "town"]
    assert (search.tokens_in, search.tokens_out) == (10, 3)
    assert search.seconds is not None
    assert search.logprobs is None
    assert (answer.thought, run.answer, run.correct, run.ended_by) == ("So it is Alba.", "Alba", True, "answer")
    assert run.id == "toy/react/q/0"
    # what the model reads is the transcript of what was logged
    transcript = Transcript(QUERY.text)
    transcript.add(search)
    sent = [(message["role"], message["content"]) for message in server.requests[1]["messages"]]
    assert sent == [(message.role, message.content) for message in transcript.messages]


def test_logprobs_are_kept_for_the_thoughts_positions(server, client_of):
    tokens = ["I", " look", ".", "\n", "Search", ":", " salt"]
    rows = [
        {"token": t, "logprob": -n, "top_logprobs": [{"logprob": -n}, {"logprob": -9}]} for n, t in enumerate(tokens)
    ]
    server.script = [{"text": "".join(tokens), "logprobs": rows}, {"text": "Answer: x", "logprobs": rows[:1]}]
    run = _run(client_of(server="vllm"))
    assert run.steps[0].logprobs == Logprobs(top=((0.0, -9.0), (-1.0, -9.0), (-2.0, -9.0)))
    assert run.steps[1].logprobs is None  # no thought
    assert server.requests[0]["top_logprobs"] == 20


def test_a_repeated_run_costs_nothing_and_is_identical(server, client_of, tmp_path):
    server.script = ["I look.\nSearch: salt", "Answer: Alba"]
    first = _run(client_of(cache=tmp_path / "c.sqlite"))
    assert _run(client_of(cache=tmp_path / "c.sqlite"), seed="another") == first  # greedy runs share their replies
    assert len(server.requests) == 2


def test_sampled_runs_differ_by_their_seed(server, client_of):
    server.otherwise = "Answer: x"
    client = client_of(server="vllm", abilities=None)
    server.otherwise = {"text": "Answer: x", "logprobs": []}
    for seed in ("a", "b", "a"):
        _run(client, ReactConfig(temperature=0.7), seed=seed)
    assert len(server.requests) == 2
    assert server.requests[0]["seed"] != server.requests[1]["seed"]


def test_an_unmarked_turn_is_reminded_of_the_form(server, client_of):
    server.script = ["Let me see.", "I look.\nSearch: salt", "Answer: Alba"]
    run = _run(client_of())
    assert run.steps[0].thought == "I look."
    assert (run.steps[0].tokens_in, run.steps[0].tokens_out) == (20, 6)  # both calls
    assert "did not end with a line" in server.requests[1]["messages"][-1]["content"]
    assert "did not end" not in str(server.requests[2])  # the run goes on as if it had not happened


def test_a_model_that_does_not_follow_the_form_fails_the_run(server, client_of):
    server.script = ["Search: salt", "Let me see.", "Let me think."]
    run = _run(client_of())
    assert (run.ended_by, run.answer, len(run.steps)) == ("error", None, 1)
    assert run.meta["error"] == "The model said neither what to search nor an answer: Let me think."


def test_or_its_last_sentence_is_searched_for(server, client_of):
    server.script = ["Hm. Maybe salt made it rich?", "Answer: Alba"]
    run = _run(client_of(), ReactConfig(unmarked="search"))
    assert run.steps[0].queries == ("Maybe salt made it rich?",)
    assert run.steps[0].thought == "Hm. Maybe salt made it rich?"


def test_no_fault_loses_what_was_done(server, client_of):
    server.script = ["Search: salt", {"status": 400}]
    run = _run(client_of())
    assert (run.ended_by, len(run.search_steps)) == ("error", 1)
    assert run.meta["error"] == "The model did not answer: refused."


def test_it_is_cut_at_its_budget(server, client_of):
    server.otherwise = lambda body: f"Search: {len(body['messages'])}"
    run = _run(client_of(), ReactConfig(max_searches=3))
    assert (len(run.search_steps), run.ended_by, run.answer) == (3, "budget", None)


def test_probes_are_a_branch_with_no_candidate_allowed(server, client_of):
    server.script = [
        "Search: salt",
        "Nothing yet.\nAnswer: no candidate",
        "Search: town",
        "Answer: Solm\nOr rather:\nAnswer: Alba",
        "Search: more",
        {"status": 400},
        "Answer: Alba",
    ]
    client = client_of()
    run = _run(client, loop=LoopConfig())
    probes = [step.answer_probe for step in run.search_steps]
    # a failed probe is not "no candidate"
    assert probes == [AnswerProbe(None), AnswerProbe("Alba", True), None]
    assert "no candidate" in server.requests[1]["messages"][-1]["content"]
    assert "no candidate" not in str(server.requests[2]["messages"])
    report = client.ledger.report()
    assert report["evaluation"]["reader"]["calls"] == 2
    assert report["operation"]["agent"]["calls"] == 4


def test_a_stopped_agent_answers_from_what_it_has(server, client_of):
    server.script = ["Search: salt", "Answer: Alba"]
    run = _run(client_of(), overseer=Judge({1: Verdict(Action.STOP)}))
    assert (run.answer, run.ended_by) == ("Alba", "answer")
    server.script = ["Search: pepper", {"status": 400}]
    run = _run(client_of(), overseer=Judge({1: Verdict(Action.STOP)}))
    assert (run.answer, run.ended_by, run.meta["error"]) == (None, "error", "No answer: refused.")


def test_an_injected_turn_joins_its_history(server, client_of):
    server.script = ["Search: salt", "Answer: Alba"]
    injection = Injection(Turn("search", "You neglect mines.", ("salt mine",)))
    run = _run(client_of(), overseer=Judge({1: Verdict(Action.INTERVENE, 1.0, injection)}))
    assert [step.queries for step in run.search_steps] == [("salt",), ("salt mine",)]
    shown = [message["content"] for message in server.requests[1]["messages"]]
    assert shown[-2] == "You neglect mines.\nSearch: salt mine"
    assert "Of salt mine." in shown[-1]


def test_a_refused_answer_is_told_to_go_on(server, client_of):
    server.script = ["It is Solm.\nAnswer: Solm", "Search: salt", "Answer: Alba"]
    run = _run(client_of(), overseer=Judge(refusals=1))
    assert [step.kind for step in run.steps] == ["other", "search", "answer"]
    shown = [message["content"] for message in server.requests[1]["messages"]]
    assert shown[-2:] == ["It is Solm.\nAnswer: Solm", "That is not enough yet. Go on searching."]


def test_a_fork_goes_its_own_way(server, client_of):
    server.script = ["Search: salt"]
    agent = ReactAgent(client_of(), QUERY.text)
    agent.turn()
    agent.observe([Document("a", "A.")])
    fork = agent.fork("other")
    server.script = ["Search: one", "Search: two"]
    agent.turn()
    agent.observe([Document("b", "Only for the first.")])
    assert "Only for the first" not in str(server.requests[-1])
    fork.turn()
    assert "Only for the first" not in str(server.requests[-1]["messages"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scoring_its_log_finds_the_entropies_that_it_logged(tiny_lm, tmp_path, temperature):
    cache = ResponseCache(tmp_path / "c.sqlite")
    client = ChatClient(tiny_lm, cache, Ledger())
    window = Window(document=60, conversation=2500)
    config = ReactConfig(max_searches=4, max_tokens=16, temperature=temperature, unmarked="search", window=window)
    run = _run(client, config)
    scorer = ReasoningScorer(tiny_lm, ":memory:", window)
    (scored,) = scorer.score([run])
    assert len(run.search_steps) == 4
    for logged, again in zip(run.steps, scored.steps, strict=True):
        if logged.logprobs is None:
            continue
        expected = [position_entropy(row) for row in logged.logprobs.top or ()]
        assert again.logprobs is not None
        np.testing.assert_allclose(again.logprobs.entropies or (), expected, atol=1e-4)
    scorer.close()
    cache.close()


def test_configs_that_cannot_be():
    with pytest.raises(UsageError, match="max_searches 101; expected 1 to 100"):
        ReactConfig(max_searches=101)
    with pytest.raises(UsageError, match="max_parallel; expected at least 1"):
        ReactConfig(max_parallel=0)
    assert Step("search").logprobs is None
