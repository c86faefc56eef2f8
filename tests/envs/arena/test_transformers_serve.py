"""The whole HTTP path with a real server and a real, if very small, model."""

from collections import Counter

import pytest

from stopwise.data.corpus import Query
from stopwise.data.records import Criterion, Document
from stopwise.envs.arena.llm_rethinker import LLMRethinker
from stopwise.envs.arena.loop import LoopConfig, Run, run_in_step
from stopwise.envs.arena.react_agent import ReactAgent, ReactConfig
from stopwise.models.chat import ChatRequest, Message
from stopwise.signals.coverage_llm import LLMCoverage

pytestmark = pytest.mark.slow

QUERY = Query("q", "Which town grew rich on salt?", answer="Alba", criteria=(Criterion("grew rich on salt"),))


class Shelf:
    """Finds the same two documents for every query."""

    id = "shelf"

    def search(self, queries, k):
        found = (Document("a", "Alba grew rich on salt.", "Alba"), Document("b", "Solm built a maze.", "Solm"))
        return [found for _ in queries]


def test_agent_rethinker_and_judge_run_over_http(served_smollm2, client_of):
    from stopwise.models.endpoints import Patience

    url, model = served_smollm2
    client = client_of(url=url, model=model, server="transformers", patience=Patience(timeout=300))
    hello = ChatRequest((Message("user", "What is the capital of France?"),), max_tokens=20)
    assert "Paris" in client.complete(hello, "agent").text

    config = ReactConfig(max_searches=2, max_tokens=30, unmarked="search")
    agent = ReactAgent(client, QUERY.text, config)
    (run,) = run_in_step([Run(agent, QUERY, "0", LoopConfig(probe=False))], Shelf(), 5)
    assert run.ended_by in ("budget", "answer")
    assert run.steps

    coverage = LLMCoverage(client)
    judge = coverage(QUERY.text, QUERY.criteria)
    assert len(judge.update(Shelf().search(["x"], 5)[0])) == 1
    assert coverage.counts.updates + sum(coverage.counts.failures.values()) == 1

    rethinker = LLMRethinker(client)
    injection = rethinker.propose(QUERY, run.steps, "run")
    assert (injection is None) == (sum(rethinker.failures.values()) == 1)
    assert set(rethinker.failures + Counter(coverage.counts.failures)) <= {
        "no JSON in reply",
        "wrong schema",
        "wrong answer",
    }
    bill = client.ledger.report()["operation"]
    assert all(bill[purpose]["completion_tokens"] > 0 for purpose in ("agent", "coverage", "rethinker"))
    assert all(bill[purpose]["seconds"] > 0 for purpose in ("agent", "coverage", "rethinker"))
