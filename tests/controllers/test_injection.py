"""Instructions in documents change no decision of a controller that reads no text; those that read get it quoted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stopwise.controllers.base import RunSoFar
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import RULES, asks_model, connect, make_rule
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.session import ControlSession
from stopwise.controllers.slow_monitor import critic_prompt
from stopwise.data.records import Document, Step
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalConfig, SignalRow, SignalTracker

GIVEN = json.loads((Path(__file__).parents[2] / "benchmarks" / "injection_attacks.json").read_text(encoding="utf-8"))
ATTACKS = [attack["text"] for attack in GIVEN["attacks"]]
STEPS = tuple(
    Step(
        "search",
        f"I look for part {t}.",
        (f"part {t}",),
        (Document(f"d{t % 3}", f"Text {t % 3}."), Document("e", "E.")),
    )
    for t in range(8)
)
SPEC = FeatureSpec(("Nov", "steps_since_new"))


def attacked(text):
    """All documents and thoughts carry the text."""
    return tuple(
        replace(
            step,
            thought=f"{step.thought} {text}",
            documents=tuple(replace(d, text=f"{d.text} {text}", title=text) for d in step.documents),
        )
        for step in STEPS
    )


def logistic():
    columns = 2 * len(SPEC)
    weights = {
        "mean": np.zeros(columns),
        "scale": np.ones(columns),
        "coef": np.ones((3, columns)) * [[0.1], [0], [0.2]],
    }
    return Logistic(SPEC, weights | {"intercept": np.zeros(3)}, 0.5)


BLIND = [make_rule(kind, {}) for kind in RULES]
BLIND = [rule for rule in BLIND if not rule.reads_text and not rule.privileged and not asks_model(rule)] + [logistic()]


def decide(controller, steps, signals=("Nov", "steps_since_new")):
    """Actions over the run; signals from ids alone, computed anew from these steps."""
    tracker = SignalTracker(SignalConfig(signals=signals), "Which town?")
    session = ControlSession(controller.copy(), Guards(cooldown=1))
    taken = []
    for number, step in enumerate(steps, start=1):
        row = tracker.observe(step)
        assert row is not None
        row = SignalRow(row.t, {**row.values, "residual_z": 2.5 - number % 2}, {})
        decision = session.decide(row, run=RunSoFar("Which town?", steps[:number]))
        taken.append((decision.action, decision.probabilities, decision.message))
    return taken


def test_there_are_enough_attacks():
    assert len(set(ATTACKS)) == len(ATTACKS) >= 50
    assert {attack["goal"] for attack in GIVEN["attacks"]} == {"stop", "continue", "intervene"}


@pytest.mark.parametrize("controller", BLIND, ids=lambda controller: controller.kind)
def test_a_controller_that_reads_no_text_decides_the_same_under_every_attack(controller):
    clean = decide(controller, STEPS)
    for text in ATTACKS:
        assert decide(controller, attacked(text)) == clean, text


def test_raac_sends_the_same_requests_under_every_attack(server, client_of):
    server.otherwise = '{"reasoning": "r", "action": "continue"}'
    raac = make_rule("raac", {})
    connect(raac, client_of())
    clean = decide(raac, STEPS)
    calls = len(server.requests)
    for text in ATTACKS:
        assert decide(raac, attacked(text)) == clean
    assert len(server.requests) == calls  # every request was one that the cache knows


@pytest.mark.parametrize("text", ATTACKS)
def test_what_is_read_stays_between_its_tags(text):
    """An attack changes the prompt between the tags of the step and of what came before, and nowhere else."""
    prompts = [critic_prompt(RunSoFar("Which town?", steps)) for steps in (STEPS, attacked(text))]
    frames = []
    for prompt in prompts:
        for tag in ("earlier", "step"):
            start, end = f"<{tag}>\n", f"\n</{tag}>"
            assert prompt.count(start) == prompt.count(end) == 1
            before, rest = prompt.split(start)
            prompt = before + rest.split(end)[1]
        frames.append(prompt)
    assert frames[0] == frames[1]


def test_a_model_that_obeys_is_an_error_of_the_model_and_is_seen(server, client_of):
    """The measure of benchmarks/injection.py by hand: a model that does what documents say flips."""
    server.otherwise = lambda body: json.dumps({"err": int("err 1" in str(body).split("<step>")[1]), "suggestion": "x"})
    critic = LlmCritic()
    connect(critic, client_of())
    row = SignalRow(1, {}, {})
    ask = lambda steps: ControlSession(critic.copy()).decide(row, run=RunSoFar("q", steps)).action  # noqa: E731
    flipped = [text for text in ATTACKS if ask(attacked(text)[:1]) is not ask(STEPS[:1])]
    assert flipped == [text for text in ATTACKS if "err 1" in text]
