"""Every kind of reply that a model's server may give, and what each prompted controller makes of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from stopwise.controllers.base import Observation, RunSoFar
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import asks_memory, asks_model, connect, connect_like, make_rule
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.memory.entries import Recalled
from stopwise.controllers.package import PolicyPackage, read_package, write_package
from stopwise.controllers.raac import Raac
from stopwise.controllers.session import ControlSession
from stopwise.data.errors import UsageError
from stopwise.data.records import Action, Document, Step
from stopwise.models.endpoints import Patience
from stopwise.models.ledger import Budget, BudgetSpent
from stopwise.models.prompts import load_prompt
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig, SignalRow

RUN = RunSoFar("Which town?", (Step("search", "I look.", ("town",), (Document("a", "It is Alba."),)),), "q0")
ROW = SignalRow(1, {"Nov": 0.0, "Cov": 0.5, "Div": 0.0, "Sim": 0.5, "residual_z": 3.0}, {})


class Empty:
    """A memory without entries."""

    def nearest(self, session, history, k):
        return Recalled((), ())

    def add(self, entry):
        raise AssertionError(entry)


def observe(**fields):
    legal = fields.pop("legal", (True, True, True))
    return Observation(ROW, None, np.array(legal), run=RUN, **fields)


MAKE = {
    "raac": Raac,
    "llm_critic": LlmCritic,
    "ds_mcm": lambda: DsMcm(slow=True),
    "ds_mcm without memory": lambda: DsMcm(slow=True, recall=0),
}
YES = {"raac": {"reasoning": "Nothing comes.", "action": "intervene"}}
NO = {"raac": {"reasoning": "It goes on.", "action": "continue"}}
FLAG, FINE = {"err": 1, "suggestion": "Look for the mine."}, {"err": 0, "suggestion": ""}


@pytest.fixture(params=MAKE)
def name(request):
    return request.param


@pytest.fixture
def make(name, client_of):
    def connected(**fields):
        controller = MAKE[name]()
        connect(controller, client_of(**fields), Empty())
        return controller

    return connected


@pytest.fixture
def yes(name):
    return json.dumps(YES.get(name, FLAG))


@pytest.fixture
def no(name):
    return json.dumps(NO.get(name, FINE))


def test_what_the_model_says_is_done(server, make, yes, no):
    server.script = [yes, no]
    decision = make().decide(observe())
    assert decision.action is Action.INTERVENE
    assert decision.message in ("Nothing comes.", "Look for the mine.")
    assert (decision.cost.calls, decision.cost.tokens, decision.cost.failure) == (1, 13, None)
    assert decision.cost.seconds > 0
    assert server.requests[0]["max_tokens"] == 300
    assert make().decide(observe()).action is Action.CONTINUE


def dressed(text):
    return {
        "fenced": f"```json\n{text}\n```",
        "chatty": f'<think>{{"err": 7}}</think>Of course! Here it is: {text} I hope this helps.',
        "late": {"text": text, "hang": 0.05},
        "with further keys": text[:-1] + ', "confidence": 0.9}',
    }


@pytest.mark.parametrize("how", dressed("{}"))
def test_a_usable_reply_in_any_dress_is_used(server, make, yes, how):
    server.script = [dressed(yes)[how]]
    decision = make().decide(observe())
    assert (decision.action, decision.cost.calls, decision.cost.failure) == (Action.INTERVENE, 1, None)


PASSING = {
    "429": {"status": 429, "headers": {"Retry-After": "3"}},
    "500": {"status": 500},
    "cut": {"text": "x" * 200, "cut": True},
    "dropped": {"drop": True},
    "empty": {"text": ""},
    "no JSON body": {"raw": "<html>"},
}


@pytest.mark.parametrize("how", PASSING)
def test_a_passing_fault_is_retried(server, make, yes, how):
    server.script = [PASSING[how], yes]
    controller = make()
    decision = controller.decide(observe())
    assert (decision.action, decision.cost.calls, decision.cost.failure) == (Action.INTERVENE, 2, None)
    assert len(controller.client.waits) == 1


@pytest.mark.parametrize("wrong", ["I would go on.", '{"answer": 42}', "[1]", '{"err": 2, "action": "halt"}'])
def test_a_reply_that_cannot_be_read_is_sent_back_once(server, make, yes, wrong):
    server.script = [wrong, yes]
    decision = make().decide(observe())
    assert (decision.action, decision.cost.calls, decision.cost.tokens) == (Action.INTERVENE, 2, 26)
    assert "That was not usable" in server.requests[1]["messages"][-1]["content"]


LASTING = {
    "chat without JSON": ("I would go on.", "no JSON in reply", 2, 26),
    "wrong schema": ('{"answer": 42}', "wrong schema", 2, 26),
    "empty": ({"text": ""}, "empty choice", 3, 39),
    "429": ({"status": 429}, "rate limited", 3, 0),
    "slow": ({"text": "{}", "hang": 30}, "timeout", 3, 0),
    "cut": ({"text": "x" * 200, "cut": True}, "cut", 3, 0),
    "dropped": ({"drop": True}, "connection", 3, 0),
    "server error": ({"status": 503}, "server error", 3, 0),
    "refused": ({"status": 401}, "refused", 1, 0),
    "no completion": ({"raw": "{}"}, "bad JSON", 3, 0),
}


def test_a_failure_takes_the_time_it_took_when_it_was_made(server, make, tmp_path):
    """Or a benchmark that is made again from the cache would find failing quicker than it is."""
    server.otherwise = {"text": "I would go on.", "hang": 0.05}
    first = make(cache=tmp_path / "replies.sqlite").decide(observe())
    again = make(cache=tmp_path / "replies.sqlite").decide(observe())
    assert len(server.requests) == 2  # the question, and what was said to its reply: the second time both are known
    assert first.cost == again.cost
    assert again.cost.seconds >= 0.1


def test_a_failing_endpoint_takes_time_too(server, make):
    server.otherwise = {"status": 503, "hang": 0.05}
    assert make(patience=Patience(attempts=2)).decide(observe()).cost.seconds >= 0.1


@pytest.mark.parametrize("how", LASTING)
def test_a_lasting_failure_is_continue_and_counted(server, make, how):
    server.otherwise, kind, calls, tokens = LASTING[how]
    controller = make(patience=Patience(attempts=3, timeout=0.2))
    session = ControlSession(controller, fail_open=False)
    decision = session.decide(ROW, run=RUN)
    assert decision.action is Action.CONTINUE
    assert decision.probabilities == (1, 0, 0)
    assert decision.message == f"the model brought no usable reply ({kind}); the run goes on"
    assert (decision.cost.calls, decision.cost.tokens, decision.cost.failure) == (calls, tokens, kind)
    assert (session.counts.failures, session.counts.failure_kinds) == (1, {kind: 1})
    assert session.counts.calls == calls
    server.otherwise = '{"reasoning": "r", "action": "continue", "err": 0, "suggestion": ""}'
    session.decide(ROW, run=replace(RUN, question="Which river?"))
    assert session.counts.failures == 1
    assert session.counts.decisions == 2


def test_a_spent_budget_ends_the_evaluation_and_not_a_live_agent(make):
    with pytest.raises(BudgetSpent):
        ControlSession(make(budget=Budget(calls=0))).decide(ROW, run=RUN)
    live = ControlSession(make(budget=Budget(calls=0)), fail_open=True)
    assert live.decide(ROW, run=RUN).action is Action.CONTINUE
    assert live.counts.failure_kinds == {"BudgetSpent": 1}


def test_a_second_run_costs_nothing_and_decides_the_same(server, make, yes, tmp_path):
    server.script = [{"text": yes, "hang": 0.1}]
    decisions = []
    for _ in range(2):
        session = ControlSession(make(cache=tmp_path / "replies.sqlite"))
        decisions.append(session.decide(ROW, run=RUN))
        assert session.counts.seconds >= 0.1  # as long as the reply took when it was made
    assert len(server.requests) == 1
    assert decisions[0].action is decisions[1].action
    assert decisions[0].message == decisions[1].message
    assert decisions[0].cost.calls == decisions[1].cost.calls == 1
    assert decisions[0].cost.tokens == decisions[1].cost.tokens


def test_copies_share_the_model_and_nothing_else(server, make, yes):
    server.otherwise = yes
    first = make()
    twin = first.copy()
    assert twin.client is first.client
    first.decide(observe())
    first.decide(observe())
    before = len(server.requests)
    assert twin.decide(observe()).action is Action.INTERVENE
    assert len(server.requests) == before  # its state is that of a fresh run: the first run's first request again


def test_without_a_model_it_does_not_run(name):
    controller = MAKE[name]()
    assert asks_model(controller)
    with pytest.raises(UsageError, match=r"name one under `(llm|memory)`"):
        controller.decide(observe())
    with pytest.raises(UsageError, match=f"{controller.kind}: asks a language model; name one under `llm`"):
        connect(controller, None, Empty())


def test_model_and_prompts_are_named(server, make, no, name):
    server.otherwise = {"text": no, "model": "m-2026"}
    controller = make()
    assert controller.described["served_model"] is None
    controller.decide(observe())
    described = controller.described
    assert described["model"].startswith("test-model@http://127.0.0.1")
    assert described["served_model"] == "m-2026"
    wanted = {"raac": ["raac", "raac_signals"], "llm_critic": ["critic"], "ds_mcm": ["slow_monitor"]}
    assert described["prompts"] == [load_prompt(prompt).version for prompt in wanted.get(name, ["critic"])]


def test_a_package_holds_it_without_its_model(server, make, yes, name, tmp_path):
    controller = make()
    info = SignalInfo(SignalConfig(signals=("Nov",)), None, (), None)
    write_package(tmp_path / "policy", PolicyPackage(name, controller, Guards(), info))
    loaded = read_package(tmp_path / "policy").controller
    assert loaded.params == controller.params
    connect_like(loaded, controller)
    server.otherwise = yes
    assert loaded.decide(observe()).action is controller.decide(observe()).action is Action.INTERVENE


def test_another_version_of_a_prompt_is_refused(name):
    params = dict(MAKE[name]().params)
    kind = MAKE[name]().kind
    make_rule(kind, params)
    prompt, version = next(iter(params["prompts"].items()))
    with pytest.raises(UsageError, match=f"prompts.{prompt}: {prompt}@old; expected {version}"):
        make_rule(kind, params | {"prompts": {prompt: f"{prompt}@old"}})
    with pytest.raises(UsageError, match="expected no such prompt"):
        make_rule(kind, params | {"prompts": {"judge_answer": "x"}})


def test_who_asks_what():
    assert not asks_model(DsMcm())
    assert not asks_memory(DsMcm())
    assert asks_memory(DsMcm(slow=True))
    assert not asks_memory(DsMcm(slow=True, recall=0))
    connect(DsMcm(), None)
    with pytest.raises(UsageError, match="asks a memory; name one under `memory`, or set recall: 0"):
        connect(DsMcm(slow=True), object(), None)  # pyright: ignore[reportArgumentType]
    assert DsMcm().described == {}
