"""The whole of DS-MCM: monitors, an experience memory on disk, a critic behind HTTP."""

import json

import numpy as np
import pytest

from stopwise.controllers.base import Observation, RunSoFar
from stopwise.controllers.connections import Connections
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.memory.entries import Entry
from stopwise.controllers.memory.memory import ExperienceMemory
from stopwise.data.errors import DataError
from stopwise.data.records import Action, Document, Step
from stopwise.models.chat_config import ChatConfig
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.endpoints import Endpoint
from stopwise.signals.tracker import SignalRow

pytest.importorskip("faiss")

STEP = Step("search", "I look for salt.", ("salt town",), (Document("d", "Salt was traded.", "Alba"),))
RUN = RunSoFar("Which town grew rich on salt?", (STEP,), "q7")


class Letters:
    """Embeds a text as counts of its letters."""

    id = "letters"

    def encode(self, texts):
        counts = np.array([[text.lower().count(chr(97 + n)) + 0.01 for n in range(26)] for text in texts])
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("stopwise.models.encoders.SentenceTransformerEncoder", lambda model: Letters())
    memory = ExperienceMemory(tmp_path / "memory", CachedEncoder(Letters(), ":memory:"))
    for label in ("success", "failure"):
        for number, words in enumerate(("salt trade town", "mine lead silver", "zzz xxx qqq", "kkk jjj vvv")):
            memory.add(Entry(words, "", f"{label} lesson {number}", label, f"other{number}"))
    memory.close()
    return tmp_path / "memory"


@pytest.fixture
def opened(server, tmp_path):
    config = ChatConfig(Endpoint(server.url, "m"), cache=str(tmp_path / "replies.sqlite"))

    def make(questions=("q7",)):
        return Connections(config, None, questions)

    return make


def flag(controller, z=3.0):
    return controller.decide(Observation(SignalRow(1, {"residual_z": z}, {}), None, np.ones(3, dtype=bool), run=RUN))


def test_the_nearest_two_of_each_pool_reach_the_critic(server, opened, folder):
    server.otherwise = json.dumps({"err": 1, "suggestion": "Look for the mine."})
    controller = DsMcm(slow=True)
    with opened() as connections:
        connections.connect(controller, str(folder), "controllers.0")
        decision = flag(controller)
    assert (decision.action, decision.message) == (Action.INTERVENE, "Look for the mine.")
    prompt = server.requests[0]["messages"][0]["content"]
    for label in ("success", "failure"):
        assert f"{label} lesson 0" in prompt
        assert f"{label} lesson 2" not in prompt
    report = connections.report()
    assert report is not None
    assert report["operation"]["controller"]["calls"] == 1


def test_a_question_of_the_evaluation_is_refused_before_anything_runs(server, opened, folder):
    with opened(("q1", "other3")) as connections, pytest.raises(DataError, match="holds 1 questions of the evaluation"):
        connections.connect(DsMcm(slow=True), str(folder), "controllers.0")
    assert server.requests == []


def test_an_evaluation_that_learns_leaves_the_memory_as_it_was(server, opened, folder):
    server.otherwise = json.dumps({"err": 1, "suggestion": "Look for the mine."})
    controller = DsMcm(slow=True, online=True)
    with opened() as connections:
        connections.connect(controller, str(folder), "controllers.0")
        flag(controller)
        flag(controller, z=0.0)
        memory = controller.memory
        assert isinstance(memory, ExperienceMemory)
        assert memory.counts() == {"success": 5, "failure": 5}
    again = ExperienceMemory(folder, CachedEncoder(Letters(), ":memory:"))
    assert again.counts() == {"success": 4, "failure": 4}
    again.close()
