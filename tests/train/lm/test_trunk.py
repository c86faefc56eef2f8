"""The lower layers are computed once: nothing but time may change."""

import numpy as np
import pytest
import torch

from stopwise.controllers.guards import Guards
from stopwise.controllers.rendering import RenderingSpec, Tokens, fit_edges
from stopwise.envs.interventions import Noop
from stopwise.envs.rewards import Reward
from stopwise.models.causal_lm import load_causal_lm
from stopwise.models.tiny_lm import TINY
from stopwise.models.trunk import FrozenTrunk, HiddenStates, kernel_length
from stopwise.train.lm.config import LoraOptions
from stopwise.train.lm.episodes import make_episodes
from stopwise.train.lm.losses import exact_loss
from stopwise.train.lm.network import frozen_trunk, trainable
from stopwise.train.lm.scoring import action_logits, policies

LAST = LoraOptions(rank=4, targets=("q_proj", "up_proj"), layers=1)


@pytest.fixture
def learner(knowing):
    """A network with a random adapter on its last layer, its rendering and a few episodes."""
    base = load_causal_lm(TINY)
    signals = ("Cov", "Sim")
    spec = RenderingSpec(signals, fit_edges(knowing, signals), 1, 0.01)
    tokens = Tokens(spec, lambda text: base.tokenizer.encode(text, add_special_tokens=False))
    network = trainable(base, LAST, seed=0)
    torch.manual_seed(1)
    for name, weight in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    episodes = make_episodes(knowing, tokens, Reward(), Guards(max_interventions=1), Noop())[:6]
    return network, tokens, episodes


def trunk_of(network) -> FrozenTrunk:
    trunk = frozen_trunk(network, LAST)
    assert trunk is not None
    return trunk


def gradients(network, tokens, episodes, trunk):
    network.zero_grad()
    logits = action_logits(network, episodes, tokens, trunk)
    losses = [exact_loss(row, episode.lattice)[0] for row, episode in zip(logits, episodes, strict=True)]
    torch.stack(losses).mean().backward()
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


def test_logits_and_gradients_are_those_of_the_whole_network(learner):
    network, tokens, episodes = learner
    trunk = trunk_of(network)
    whole = gradients(network, tokens, episodes, None)
    top = gradients(network, tokens, episodes, trunk)
    assert whole.keys() == top.keys()
    assert len(top) == 4  # A and B of two modules of the last layer
    for name in whole:
        torch.testing.assert_close(top[name], whole[name], atol=1e-6, rtol=1e-4)
    for one, other in zip(policies(network, episodes, tokens), policies(network, episodes, tokens, trunk), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_network_is_whole_again_afterwards_even_after_an_error(learner):
    network, _, episodes = learner
    decoder = network.get_base_model().get_decoder()
    layers, norm = decoder.layers, decoder.norm
    trunk = trunk_of(network)
    trunk.hidden(episodes[0].parts[0].ids)
    with pytest.raises(RuntimeError), trunk.top():
        network(inputs_embeds=torch.zeros(1, 2, 3))  # of a width that it does not have
    with trunk.top():
        assert len(decoder.layers) == 1
    assert decoder.layers is layers
    assert decoder.norm is norm


def test_a_prefix_is_not_computed_again(learner, monkeypatch):
    network, _, episodes = learner
    trunk = trunk_of(network)
    ids = episodes[0].parts[0].ids
    states = trunk.hidden(ids)
    monkeypatch.setattr(trunk, "_part", None)  # any further pass would fail
    assert torch.equal(trunk.hidden(ids[:-8]), states[:-8])


def test_sequences_that_part_late_are_told_apart(learner):
    network, _, episodes = learner
    trunk = trunk_of(network)
    ids = episodes[0].parts[0].ids
    other = [*ids[:-1], ids[-1] + 1]
    assert not torch.equal(trunk.hidden(ids)[-1], trunk.hidden(other)[-1])


def test_no_trunk_where_nothing_is_frozen():
    network = load_causal_lm(TINY).network
    assert frozen_trunk(network, None) is None
    assert frozen_trunk(network, LoraOptions()) is None
    assert frozen_trunk(network, LoraOptions(layers=2)) is None  # both layers are trained


def test_padding_for_kernels_changes_nothing(learner, monkeypatch):
    """Runs are padded to the right, where a causal network does not look."""
    network, tokens, episodes = learner
    wanted = {
        trunk: gradients(network, tokens, episodes, trunk_of(network) if trunk else None) for trunk in (True, False)
    }
    monkeypatch.setattr("stopwise.models.trunk.kernel_length", lambda length: length + 13)
    monkeypatch.setattr("stopwise.train.lm.scoring.kernel_length", lambda length: length + 13)
    for trunk, gradient in wanted.items():
        padded = gradients(network, tokens, episodes, trunk_of(network) if trunk else None)
        for name, value in gradient.items():
            np.testing.assert_allclose(padded[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6)


def test_only_products_in_bf16_are_padded():
    assert kernel_length(65) == 65
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert [kernel_length(length) for length in (1, 64, 65)] == [64, 64, 128]
    finally:
        torch.set_float32_matmul_precision(before)


def test_frozen_layers_are_computed_as_the_rest_is_under_autocast(learner):
    """accelerate wraps the forward pass of a whole network; what goes past it must not stay in float32."""
    network, _, episodes = learner
    ids = episodes[0].parts[0].ids
    plain, halved = (frozen_trunk(network, LAST, bf16=bf16) for bf16 in (False, True))
    assert plain is not None
    assert halved is not None
    seen = []
    watched = next(m for m in network.get_base_model().get_decoder().layers[0].modules() if type(m) is torch.nn.Linear)
    handle = watched.register_forward_hook(lambda module, given, made: seen.append(made.dtype))
    states = halved.bind(network).hidden(ids)
    handle.remove()
    assert seen == [torch.bfloat16]
    assert states.dtype == torch.float32
    assert states.numpy() == pytest.approx(plain.hidden(ids).numpy(), rel=0.05, abs=0.05)


def test_hidden_states_stay_within_their_memory():
    """What was not asked for longest goes first."""
    known = HiddenStates(limit=2 * 4 * 3 * 4)  # two sequences of four tokens of width three, four bytes each
    first, second, third = (torch.full((4, 3), float(number)) for number in range(3))
    known.add((0, 1, 2, 3), first)
    known.add((0, 1, 2, 4), second)
    assert known.find((0, 1, 2, 3)) is not None  # so the other one is older
    known.add((5, 6, 7, 8), third)
    assert known.find((0, 1, 2, 4)) is None
    kept = known.find((5, 6, 7, 8))
    assert kept is not None
    assert torch.equal(kept, third)
    assert known.find((0, 1, 2, 3)) is not None
