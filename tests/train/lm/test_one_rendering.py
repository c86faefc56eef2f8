"""Training, evaluation and the live agent read the same token ids of every sample episode."""

import itertools

import numpy as np
import pytest

from stopwise.cli.output import logs_path, signals_path
from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import BaseModel, Reading, Scorer, SmallLM
from stopwise.controllers.package import PolicyPackage
from stopwise.controllers.rendering import DEFAULT_SIGNALS, RenderingSpec, Tokens, fit_edges
from stopwise.controllers.session import ControlSession
from stopwise.data.store import read_trajectories
from stopwise.envs.interventions import Forbidden
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.evaluation.rollout import rollout
from stopwise.runtime.policy import Policy
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import read_table
from stopwise.train.lm.episodes import make_episodes

WITHOUT_ENCODER = ("Nov", "steps_since_new", "score_top", "RE")
GUARDS = Guards(max_interventions=2)
EVERY = pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def samples():
    return read_table(signals_path("samples"))


class Recorder(Scorer):
    """Notes what would be read, and answers nothing in particular; no network is loaded."""

    def __init__(self, spec, encode):
        self.tokens = Tokens(spec, encode)
        self._trunk = None  # so that a whole run goes through `begin` and `append` too
        self._used = spec.interventions + 1
        self.read: list[list[int]] = []  # one list a context

    def load(self):
        pass

    def begin(self, start):
        self.read.append(list(self.tokens.header))
        return Reading(start, None)

    def append(self, reading, rows):
        self.read[-1].extend(token for row in rows for token in row)
        return np.zeros((len(rows), self._used, 3))


def recorded(spec, encode):
    controller = SmallLM(None, {}, base=BaseModel("none", ""), rendering=spec, threshold=2.0, intervene_threshold=2.0)
    controller._scorer = Recorder(spec, encode)
    return controller, controller._scorer


@EVERY
@pytest.mark.parametrize(("context_rows", "interventions"), [(128, 0), (7, 2)])
def test_training_and_a_session_read_the_same(samples, tokenizer, context_rows, interventions, every):
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    part = samples.select(range(0, 900, every))
    spec = RenderingSpec(
        DEFAULT_SIGNALS, fit_edges(samples.split("train"), DEFAULT_SIGNALS), interventions, 0.01, context_rows
    )
    made = make_episodes(part, Tokens(spec, encode), Reward(), GUARDS, Forbidden())
    by_run = {episode.run: episode for episode in made}
    assert len(by_run) == len(part)
    controller, scorer = recorded(spec, encode)
    session = ControlSession(controller, GUARDS)
    for index, run in enumerate(part.episodes):
        scorer.read.clear()
        session.begin()
        for row in range(part.offsets[index], part.offsets[index + 1]):
            session.decide(part.row(row))
        assert scorer.read == [part.ids for part in by_run[run.id].parts]
    assert (max(len(episode.parts) for episode in made) > 1) == (context_rows == 7)


def test_a_replay_reads_the_same(samples, tokenizer):
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    part = samples.split("val")
    spec = RenderingSpec(DEFAULT_SIGNALS, fit_edges(samples.split("train"), DEFAULT_SIGNALS), 0, 0.01)
    made = make_episodes(part, Tokens(spec, encode), Reward(), GUARDS, Forbidden())
    controller, scorer = recorded(spec, encode)
    rollout(ReplayEnv(part, FeatureSpec(())), controller, GUARDS)
    assert scorer.read == [episode.parts[0].ids for episode in made]


@EVERY
def test_the_live_monitor_reads_the_same(samples, tokenizer, every):
    """From the logged searches themselves, through the tracker; signals that need no encoder."""

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    spec = RenderingSpec(WITHOUT_ENCODER, fit_edges(samples.split("train"), WITHOUT_ENCODER), 1, 0.01)
    part = samples.select(range(0, 900, every))
    made = make_episodes(part, Tokens(spec, encode), Reward(), GUARDS, Forbidden())
    by_run = {episode.run: episode for episode in made}
    seen = 0
    for trajectory in itertools.islice(read_trajectories(logs_path("samples")), 0, None, every):
        controller, scorer = recorded(spec, encode)
        policy = Policy(PolicyPackage("lm", controller, GUARDS, samples.info))
        monitor = policy.monitor(trajectory.question, trajectory.criteria)
        for step in trajectory.steps:
            monitor.observe_step(step)
        assert monitor.counts.failures == 0
        seen += 1
        # the monitor runs a copy, which shares the scorer
        assert scorer.read == [part.ids for part in by_run[trajectory.id].parts]
    assert seen == 900 // every
