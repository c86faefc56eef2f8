import math

import numpy as np
import pytest

from stopwise.envs.uplift import Uplift, UpliftFit
from stopwise.signals.features import FeatureSpec

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from stopwise.controllers.rendering import RenderingSpec, Tokens  # noqa: E402 - torch may be missing
from stopwise.models.causal_lm import load_causal_lm  # noqa: E402
from stopwise.train.lm.config import ExactOptions, GrpoOptions, LmConfig, SftOptions  # noqa: E402
from stopwise.train.lm.episodes import make_episodes  # noqa: E402
from stopwise.train.targets import TargetOptions  # noqa: E402

SIGNALS = ("Cov", "Sim")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Sums in a fixed order, and two cores for others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fresh():
    """``fresh()``: the tiny random model, for this test alone."""
    return lambda: load_causal_lm("tiny-random", device="cpu")


@pytest.fixture(scope="session")
def tokenizer(fresh):
    return fresh().tokenizer


@pytest.fixture(scope="session")
def tokens_of(tokenizer):
    """``tokens_of(interventions=1)``: a rendering of Cov and Sim, both with an edge at each tenth."""

    def make(interventions=0, price=0.01, signals=SIGNALS, **changes):
        edges = tuple(tuple(np.arange(1, 10) / 10) for _ in signals)
        spec = RenderingSpec(signals, edges, interventions, price, **changes)
        return Tokens(spec, lambda text: tokenizer.encode(text, add_special_tokens=False))

    return make


@pytest.fixture(scope="session")
def episodes_of(table_of):
    """``episodes_of(runs, tokens, reward, guards, model)`` of runs made by ``run_of``."""

    def make(runs, tokens, reward, guards, model):
        return make_episodes(table_of(runs, signals=SIGNALS), tokens, reward, guards, model)

    return make


@pytest.fixture(scope="session")
def uplift_of():
    """``uplift_of(0.25)``: an uplift of the same probability everywhere."""

    def make(probability):
        spec = FeatureSpec(("Cov",))
        intercept = math.log(probability / (1 - probability))
        size = 2 * len(spec)
        return Uplift(UpliftFit(spec, np.zeros(size), np.ones(size), np.zeros(size), intercept, 100, 50, 2))

    return make


@pytest.fixture(scope="session")
def config_of():
    """``config_of(method="grpo", ...)``: a run of seconds on the tiny model and the table `knowing`."""

    def make(**changes):
        few = {"epochs": 1.0, "batch": 4, "micro_batch": 2, "evaluate_every": 2, "learning_rate": 5e-4}
        return LmConfig(
            **{
                "signals": "nowhere",
                "base": "tiny-random",
                "lora": None,
                "features": SIGNALS,
                "runs": 16,
                "validation_runs": 6,
                "sft": SftOptions(**few),
                "exact": ExactOptions(**few),
                "grpo": GrpoOptions(**few, generations=4),
                "targets": TargetOptions(folds=3, min_rows=30),
            }
            | changes
        )

    return make
