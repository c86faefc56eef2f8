"""Batched scoring for training equals one run at a time, and the streaming controller with its cache."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import BaseModel, SmallLM, softmax
from stopwise.envs.interventions import Noop
from stopwise.envs.lattice import masked
from stopwise.envs.rewards import Reward
from stopwise.train.lm.episodes import LmEpisode
from stopwise.train.lm.network import LoraOptions, changed_arrays, restore, scaling, trainable
from stopwise.train.lm.scoring import action_logits, policies

GUARDS = Guards(min_steps=2, max_steps=60, cooldown=1, max_interventions=2)


@pytest.fixture(scope="module")
def base(fresh):
    return fresh()


@pytest.fixture(scope="module")
def some_runs(run_of):
    rng = np.random.default_rng(0)
    made = []
    for number, length in enumerate((1, 9, 4, 23, 12)):
        cov = [float(value) if value > 0.2 else "first step" for value in rng.random(length)]
        signals = {"Cov": cov, "Sim": rng.random(length).tolist()}
        made.append(run_of(np.linspace(0, 1, length).tolist(), id=f"r{number}", question=f"q{number}", signals=signals))
    return made


def plain_logits(network, episode: LmEpisode, tokens, part):
    """By the network's plain forward on one context, every logit computed."""
    with torch.no_grad():
        logits = network(torch.tensor([part.ids])).logits[0]
    return logits[tokens.ask_positions(part.rows)][:, :, list(tokens.actions)][part.skip :]


class TestBatches:
    @pytest.mark.parametrize("context_rows", [128, 5])
    def test_padding_and_contexts_change_nothing(self, base, some_runs, tokens_of, episodes_of, context_rows):
        tokens = tokens_of(2, context_rows=context_rows)
        episodes = episodes_of(some_runs, tokens, Reward(), GUARDS, Noop())
        assert any(len(episode.parts) > 1 for episode in episodes) == (context_rows == 5)
        with torch.no_grad():
            together = action_logits(base.network, episodes, tokens)
        for episode, found in zip(episodes, together, strict=True):
            alone = torch.cat([plain_logits(base.network, episode, tokens, part) for part in episode.parts])
            assert found.shape == (episode.lattice.shape[0], 3, 3)
            assert found.numpy() == pytest.approx(alone.numpy(), abs=1e-5)

    def test_policies_keep_the_order_and_the_mode(self, base, some_runs, tokens_of, episodes_of):
        tokens = tokens_of(2)
        episodes = episodes_of(some_runs, tokens, Reward(), GUARDS, Noop())
        base.network.train()
        found = list(policies(base.network, episodes, tokens, batch_tokens=400))  # several batches
        assert base.network.training
        base.network.eval()
        for episode, policy in zip(episodes, found, strict=True):
            with torch.no_grad():
                [logits] = action_logits(base.network, [episode], tokens)
            wanted = masked(softmax(logits.double().numpy()), episode.lattice.legal)
            assert policy == pytest.approx(wanted, abs=1e-6)
            assert policy[~episode.lattice.legal].max(initial=0) == 0
            assert policy.sum(axis=-1) == pytest.approx(1)


class TestStreaming:
    @given(length=st.integers(1, 14), context_rows=st.integers(2, 9), seed=st.integers(0, 99))
    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_the_controller_sees_the_logits_of_training(
        self, base, run_of, table_of, tokens_of, episodes_of, length, context_rows, seed
    ):
        rng = np.random.default_rng(seed)
        signals = {"Cov": rng.random(length).tolist(), "Sim": rng.random(length).tolist()}
        run = run_of([0.0] * length, signals=signals)
        tokens = tokens_of(1, context_rows=context_rows)
        [episode] = episodes_of([run], tokens, Reward(), GUARDS, Noop())
        with torch.no_grad():
            [wanted] = action_logits(base.network, [episode], tokens)
        controller = SmallLM(None, {}, base=BaseModel(base.name, base.sha256), rendering=tokens.spec)
        session = session_of(controller)
        table = table_of([run])
        for row in range(length):
            session.decide(table.row(row))
            assert controller._logits == pytest.approx(wanted[row].numpy(), abs=1e-5)


def session_of(controller):
    from stopwise.controllers.session import ControlSession

    return ControlSession(controller, Guards(min_steps=100))


class TestNetwork:
    def test_an_adapter_begins_as_the_base(self, fresh, some_runs, tokens_of, episodes_of):
        tokens = tokens_of(1)
        episodes = episodes_of(some_runs, tokens, Reward(), GUARDS, Noop())
        with torch.no_grad():
            bare = action_logits(fresh().network, episodes, tokens)
            adapted = action_logits(trainable(fresh(), LoraOptions(rank=2), seed=0), episodes, tokens)
        assert all(torch.equal(one, other) for one, other in zip(bare, adapted, strict=True))

    @pytest.mark.parametrize("lora", [None, LoraOptions(rank=2, alpha=6)])
    def test_what_changed_can_be_put_back_and_served(self, fresh, some_runs, tokens_of, episodes_of, lora):
        tokens = tokens_of(1)
        episodes = episodes_of(some_runs, tokens, Reward(), GUARDS, Noop())
        base = fresh()
        network = trainable(base, lora, seed=0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        arrays = changed_arrays(network, lora)
        with torch.no_grad():
            trained = action_logits(network, episodes, tokens)

        again = trainable(fresh(), lora, seed=5)
        restore(again, lora, arrays)
        with torch.no_grad():
            restored = action_logits(again, episodes, tokens)
        assert all(torch.equal(one, other) for one, other in zip(trained, restored, strict=True))

        spec = tokens.spec
        served = SmallLM(None, arrays, base=BaseModel(base.name, base.sha256), rendering=spec, scaling=scaling(lora))
        served.prepare()
        with torch.no_grad():
            merged = action_logits(served.network, episodes, tokens)
            bare = action_logits(fresh().network, episodes, tokens)
        for one, other, before in zip(trained, merged, bare, strict=True):
            assert one.numpy() == pytest.approx(other.numpy(), abs=2e-5)
            assert float((one - before).abs().max()) > 0.01

    def test_an_unknown_module_is_named(self, fresh):
        from stopwise.data.errors import UsageError

        with pytest.raises(UsageError, match=r"lora\.targets: .*nowhere"):
            trainable(fresh(), LoraOptions(rank=2, targets=("nowhere",)), seed=0)

    def test_weights_of_another_kind_do_not_fit(self, fresh):
        from stopwise.data.errors import DataError

        arrays = changed_arrays(trainable(fresh(), LoraOptions(rank=2), seed=0), LoraOptions(rank=2))
        with pytest.raises(DataError, match="its weights do not fit this run's `lora` and `base`"):
            restore(trainable(fresh(), LoraOptions(rank=3), seed=0), LoraOptions(rank=3), arrays)
        with pytest.raises(DataError, match="its weights do not fit"):
            restore(trainable(fresh(), None, seed=0), None, arrays)
