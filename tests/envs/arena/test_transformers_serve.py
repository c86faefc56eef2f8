"""The whole HTTP path with a real server and a real, if very small, model."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter

import pytest

from stopwise.data.corpus import Query
from stopwise.data.records import Criterion, Document
from stopwise.envs.arena.llm_rethinker import LLMRethinker
from stopwise.envs.arena.loop import LoopConfig, Run, run_in_step
from stopwise.envs.arena.react_agent import ReactAgent, ReactConfig
from stopwise.models.chat import ChatRequest, Message
from stopwise.models.smollm2 import PACKAGE, dense_smollm2
from stopwise.signals.coverage_llm import LLMCoverage

pytestmark = pytest.mark.slow

QUERY = Query("q", "Which town grew rich on salt?", answer="Alba", criteria=(Criterion("grew rich on salt"),))


class Shelf:
    """Finds the same two documents for every query."""

    id = "shelf"

    def search(self, queries, k):
        found = (Document("a", "Alba grew rich on salt.", "Alba"), Document("b", "Solm built a maze.", "Solm"))
        return [found for _ in queries]


@pytest.fixture(scope="module")
def address():
    for name in (PACKAGE, "gguf", "fastapi", "uvicorn", "openai"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    folder = dense_smollm2()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1", "--device", "cpu"]
    serving = subprocess.Popen(
        [*command, "--port", str(port), "--dtype", "float32"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert serving.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        serving.terminate()
        serving.wait(30)


def test_agent_rethinker_and_judge_run_over_http(address, client_of):
    from stopwise.models.endpoints import Patience

    url, model = address
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
