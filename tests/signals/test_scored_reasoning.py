import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Document, Logprobs, Step, Trajectory
from stopwise.models.chat import ChatRequest, logprobs_between
from stopwise.models.local_lm import LocalLM
from stopwise.models.smollm2 import PACKAGE
from stopwise.models.transcript import WINDOW, Transcript, Window, turn_text
from stopwise.signals.entropy import TOP_K, position_entropy, reasoning_entropy
from stopwise.signals.scored_reasoning import ReasoningScorer, top_entropies

SEARCH = "\nSearch:"


@pytest.fixture
def scorer_of(tmp_path):
    opened = []

    def make(model, name="scored.sqlite", window=WINDOW):
        opened.append(ReasoningScorer(model, tmp_path / name, window))
        return opened[-1]

    yield make
    for scorer in opened:
        scorer.close()


def _entropies(step):
    return [position_entropy(row) for row in step.logprobs.top]


class Counting:
    """The model, with a note of every text that it reads."""

    def __init__(self, model, fail_after=None):
        self._model, self.id, self.context = model, model.id, model.context
        self.render, self.encode_with_spans = model.render, model.encode_with_spans
        self.passes = 0
        self._fail_after = fail_after

    def top_logprobs(self, sequences, positions, top_k):
        if self.passes == self._fail_after:
            raise KeyboardInterrupt
        self.passes += 1
        return self._model.top_logprobs(sequences, positions, top_k)


def _written_by(model, temperature, question="Which town?", steps=4, seed=0):
    """A run whose thoughts `model` wrote itself, through the client's own contract, with its log-probabilities."""
    transcript, made = Transcript(question), []
    for number in range(steps):
        request = ChatRequest(
            transcript.messages, max_tokens=20, temperature=temperature, sample=10 * seed + number, top_logprobs=TOP_K
        )
        reply = model.complete(request)
        thought = reply.text.rstrip()
        assert reply.logprobs is not None
        start = len(thought) - len(thought.lstrip())
        top = tuple(position.top for position in logprobs_between(reply.logprobs, start, len(thought)))
        documents = (Document(f"d{number}", f"The river {number} runs by.", f"River {number}"),)
        made.append(Step("search", thought, (f"river {number}",), documents, logprobs=Logprobs(top=top)))
        transcript.add(made[-1])
    return Trajectory(f"r{seed}", "q", question, tuple(made))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_scored_equals_logged_on_text_that_the_model_wrote(tiny_lm, scorer_of, temperature):
    runs = [_written_by(tiny_lm, temperature, seed=seed) for seed in range(3)]
    scored = list(scorer_of(tiny_lm).score(runs))
    checked = 0
    for run, again in zip(runs, scored, strict=True):
        for logged, step in zip(run.steps, again.steps, strict=True):
            assert step.logprobs.source == f"scored:{tiny_lm.id}"
            expected = _entropies(logged)
            np.testing.assert_allclose(step.logprobs.entropies, expected, atol=1e-4)
            assert reasoning_entropy(step.logprobs)[0] == pytest.approx(reasoning_entropy(logged.logprobs)[0], abs=1e-4)
            checked += 1
    assert checked == 12


def test_the_context_matters(tiny_lm, scorer_of):
    run = _written_by(tiny_lm, 0.0)
    alone = Trajectory("a", "q", run.question, run.steps[2:3])
    first, second = scorer_of(tiny_lm).score([run, alone])
    assert first.steps[2].logprobs != second.steps[0].logprobs


def test_everything_else_stays_and_nothing_is_mixed(tiny_lm, scorer_of):
    logged = Logprobs(entropies=(1.0,))
    steps = (
        Step("search", None, ("a",), logprobs=logged),
        Step("search", "A thought.", ("b",), logprobs=logged),
        Step("answer", "I am sure.", ("c",), logprobs=logged),
    )
    run = Trajectory("r", "q", "Which?", steps, correct=True, agent="x")
    (scored,) = scorer_of(tiny_lm).score([run])
    assert scored.steps[0].logprobs is None
    assert scored.steps[2].logprobs is None
    assert scored.steps[1].logprobs.source.startswith("scored:tiny@")
    assert (scored.correct, scored.agent, scored.steps[1].queries) == (True, "x", ("b",))


def test_a_window_cuts_what_is_read(tiny_lm, scorer_of):
    run = _written_by(tiny_lm, 0.0, steps=6)
    (scored,) = scorer_of(tiny_lm, window=Window(conversation=1000)).score([run])
    assert all(step.logprobs.entropies for step in scored.steps)
    small = Counting(tiny_lm)
    small.context = 9
    with pytest.raises(UsageError, match=r"a conversation of \d+ tokens is more than its context of 9"):
        list(scorer_of(small, "other.sqlite").score([run]))


def test_a_second_call_computes_nothing_and_is_identical(tiny_lm, scorer_of):
    runs = [_written_by(tiny_lm, 1.0, seed=seed) for seed in range(2)]
    model = Counting(tiny_lm)
    first = list(scorer_of(model).score(runs))
    passes = model.passes
    assert list(scorer_of(model).score(runs)) == first
    assert model.passes == passes


def test_an_interrupted_call_goes_on_where_it_was(tiny_lm, scorer_of, monkeypatch):
    monkeypatch.setattr("stopwise.signals.scored_reasoning.TOKENS", 1)  # a passage a pass
    runs = [_written_by(tiny_lm, 1.0, seed=seed) for seed in range(3)]
    with pytest.raises(KeyboardInterrupt):
        list(scorer_of(Counting(tiny_lm, fail_after=2)).score(runs))
    rest = Counting(tiny_lm)
    list(scorer_of(rest).score(runs))
    assert rest.passes == 1


@given(st.lists(st.lists(st.floats(-30, 0), min_size=3, max_size=3), min_size=1, max_size=5))
def test_entropies_are_those_of_one_definition(rows):
    found = top_entropies(np.array(rows, dtype=np.float32))
    np.testing.assert_allclose(found, [position_entropy(row) for row in rows], atol=1e-6)


def test_a_file_that_is_no_cache(tiny_lm, tmp_path):
    (tmp_path / "text").write_text("no database" * 200)
    with pytest.raises(DataError, match="is not a cache of scores"):
        ReasoningScorer(tiny_lm, tmp_path / "text")
    with pytest.raises(UsageError, match="cannot be opened as cache of scores"):
        ReasoningScorer(tiny_lm, tmp_path)


def test_a_template_that_changes_messages_is_refused(tiny_lm, scorer_of):
    model = Counting(tiny_lm)
    model.render = lambda messages, begin_reply=False: "shouted"
    with pytest.raises(UsageError, match="its chat template changes messages"):
        list(scorer_of(model).score([_written_by(tiny_lm, 0.0, steps=1)]))
    assert SEARCH in turn_text(Step("search", "t", ("q",)))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scored_equals_logged_for_the_embedded_model(scorer_of, temperature):
    pytest.importorskip("gguf")
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip(f"needs {PACKAGE}")
    model = LocalLM(device="cpu")
    run = _written_by(model, temperature, question="Which town lies on the Loire and has a castle?", steps=3)
    (scored,) = scorer_of(model).score([run])
    for logged, step in zip(run.steps, scored.steps, strict=True):
        expected = _entropies(logged)
        np.testing.assert_allclose(step.logprobs.entropies, expected, atol=1e-4)
