"""Small problems whose best policy is known are learned by the tiny network, by both algorithms."""

import numpy as np
import pytest

from stopwise.controllers.guards import Guards
from stopwise.envs.interventions import Forbidden
from stopwise.envs.lattice import expected
from stopwise.envs.rewards import Reward
from stopwise.train.lm import stages
from stopwise.train.lm.config import ExactOptions, GrpoOptions
from stopwise.train.lm.grpo import group_trainer
from stopwise.train.lm.scoring import policies

pytestmark = [  # a policy that has learned a bandit is sure of itself
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.trainer.CollapseWarning"),
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning"),
]
COMMON = {"warmup": 0.0, "evaluate_every": 10}


def learn(method, steps, rate, base, tokens, episodes, config, folder):
    """The mean value of the policy that is kept, from the first decision on."""
    every = len(episodes)  # all runs in each step: a batch of one kind only would push all to one action
    options = {**COMMON, "epochs": steps, "batch": every, "micro_batch": every, "learning_rate": rate}
    common = (base.network.train(), base.tokenizer, tokens, episodes, episodes)
    if method == "exact":
        trainer = stages.policy_trainer(*common, ExactOptions(**options, entropy=0.005), config, folder)
    else:
        trainer = group_trainer(*common, GrpoOptions(**options, generations=12), config, folder)
    result = stages.learn(trainer, base.network, config, folder, keep_start=True)
    print([round(e["eval_return"], 3) for e in result.curve if "eval_return" in e])
    found = policies(base.network, episodes, tokens)
    values = [expected(e.lattice, p).value - e.lattice.first for e, p in zip(episodes, found, strict=True)]
    looks = [entry["eval_return"] for entry in result.curve if "eval_return" in entry]
    return float(np.mean(values)), looks


@pytest.mark.parametrize(("method", "steps", "rate"), [("exact", 40, 1e-3), ("grpo", 60, 2e-4)])
def test_a_bandit(fresh, run_of, tokens_of, episodes_of, config_of, tmp_path, method, steps, rate):
    """One search. Where Cov is low the answer of now is right, else only that of the run's own end: worth 0.5 each."""
    runs = []
    for number in range(8):
        late = number % 2
        signals = {"Cov": [0.15 + 0.7 * late], "Sim": [number / 8]}
        runs.append(
            run_of([0.0], id=f"r{number}", question=f"q{number}", signals=signals, probes=[1.0 - late], correct=late)
        )
    base, tokens = fresh(), tokens_of(0)
    episodes = episodes_of(runs, tokens, Reward(correct=0.5), Guards(), Forbidden())
    value, looks = learn(method, steps, rate, base, tokens, episodes, config_of(), tmp_path / method)
    assert looks[0] < 0.35  # a coin is worth 0.25
    assert value > 0.48


@pytest.mark.parametrize(("method", "steps", "rate"), [("exact", 60, 5e-4), ("grpo", 60, 3e-4)])
def test_a_decision_process(fresh, run_of, tokens_of, episodes_of, config_of, uplift_of, tmp_path, method, steps, rate):
    """Two idle searches, then a find of 0.5, then nothing; a search costs 1/16, an intervention jumps with 0.8.

    Going on and stopping at the find is worth 0.5 - 2/16 = 0.375. The best is to intervene at once, 0.5 - 1/16, and
    where it fails to go on, 0.5 - 3/16: 0.8 * 0.4375 + 0.2 * 0.3125 = 0.4125.
    """
    runs = []
    for number in range(4):
        signals = {"Cov": [0.0, 0.0, 0.5, 0.5], "Sim": np.linspace(0, 1, 4).tolist()}
        runs.append(run_of([0.0, 0.0, 0.5, 0.5], id=f"r{number}", question=f"q{number}", signals=signals))
    base, tokens = fresh(), tokens_of(1)
    guards = Guards(cooldown=1, max_interventions=1)
    episodes = episodes_of(runs, tokens, Reward(search=0.0625), guards, uplift_of(0.8))
    value, looks = learn(method, steps, rate, base, tokens, episodes, config_of(), tmp_path / method)
    assert looks[0] < 0.2
    assert value > 0.4
