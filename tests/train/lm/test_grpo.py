"""Sampling, decoding, log-probabilities and the gradient of group-relative policy optimisation."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainerCallback

from stopwise.controllers.guards import Guards
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.envs.interventions import Forbidden, Noop
from stopwise.envs.lattice import expected, lattices, masked
from stopwise.envs.rewards import Reward
from stopwise.train.lm import grpo
from stopwise.train.lm import trainer as lm_trainer
from stopwise.train.lm.config import GrpoOptions, LoraOptions
from stopwise.train.lm.episodes import LmEpisode, Part
from stopwise.train.lm.grpo import Draws, GroupTrainer, NoSpreadWarning, TimeLimit, group_trainer, sample_episode
from stopwise.train.lm.network import changed_arrays, former_names, trainable
from stopwise.train.lm.scoring import policies
from stopwise.train.lm.stages import learn

CONTINUE, INTERVENE, STOP = Action
GUARDS = Guards(min_steps=1, max_steps=8, cooldown=1, max_interventions=2)


def some_runs(run_of, lengths=(5, 3, 7, 1), seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        signals = {"Cov": rng.random(length).tolist(), "Sim": rng.random(length).tolist()}
        recall = (np.cumsum(rng.integers(0, 2, length)) / 8).tolist()
        made.append(run_of(recall, id=f"r{number}", question=f"q{number}", signals=signals))
    return made


@pytest.fixture
def trainer_of(fresh, run_of, tokens_of, episodes_of, config_of, tmp_path):
    """A trainer on a fresh tiny model, its episodes sampled under uplift."""

    def make(model, guards=GUARDS, generations=4, **options):
        base = fresh()
        tokens = tokens_of(guards.max_interventions if model.available else 0)
        episodes = episodes_of(some_runs(run_of), tokens, Reward(search=0.05), guards, model)
        values: dict[str, Any] = {"batch": 4, "micro_batch": 4, "generations": generations} | options
        chosen = GrpoOptions(**values)
        return group_trainer(
            base.network, base.tokenizer, tokens, episodes, episodes, chosen, config_of(), tmp_path / "grpo"
        )

    return make


class TestSampling:
    @pytest.mark.parametrize("name", ["noop", "uplift"])
    def test_samples_come_to_what_the_lattice_expects(self, run_of, table_of, uplift_of, name):
        model = Noop() if name == "noop" else uplift_of(0.4)
        recall = [0.25, 0.25, 0.5, 0.5, 0.75]
        table = table_of([run_of(recall, signals={"Cov": [0.5] * 5})])
        [run] = lattices(table, Reward(search=0.125, intervention=0.0625), GUARDS, model)
        assert run is not None
        rng = np.random.default_rng(0)
        policy = masked(rng.dirichlet(np.full(3, 3.0), size=run.shape[:2]), run.legal)
        torch.manual_seed(0)
        draws = Draws()
        samples = [sample_episode(run, policy, draws) for _ in range(4000)]
        found = np.array([[one.value, *np.bincount(one.actions, minlength=3)] for one in samples])
        wanted = expected(run, policy)
        error = found.std(axis=0) / np.sqrt(len(samples))
        assert (np.abs(found.mean(axis=0) - [wanted.value - run.first, *wanted.actions]) <= 4.5 * error).all()
        for sample in samples[:200]:
            assert sample.states[0] == (0, 0, 0)
            assert all(run.legal[place][action] for place, action in zip(sample.states, sample.actions, strict=True))
            assert sample.rows == sample.states[-1][0] + 1

    def test_draws_follow_the_global_generator(self):
        torch.manual_seed(5)
        first = [Draws(block=4).next() for _ in range(3)]
        torch.manual_seed(5)
        assert [Draws(block=4).next() for _ in range(3)] == first
        assert len(set(first)) == 3


class TestDecoding:
    @given(
        seed=st.integers(0, 2**31),
        chance=st.sampled_from([None, 0.05, 0.5, 0.95]),
        cooldown=st.integers(0, 2),
        most=st.integers(0, 3),
    )
    @settings(max_examples=60)
    def test_a_completion_says_what_was_sampled(
        self, run_of, episodes_of, tokens_of, uplift_of, seed, chance, cooldown, most
    ):
        guards = Guards(cooldown=cooldown, max_interventions=most)
        model = Noop() if chance is None else uplift_of(chance)
        tokens = tokens_of(most)
        episodes = episodes_of(some_runs(run_of, (7,), seed % 7), tokens, Reward(), guards, model)
        bare = GroupTrainer.__new__(GroupTrainer)  # without a network
        bare.tokens, bare.episodes = tokens, episodes
        rng = np.random.default_rng(seed)
        run = episodes[0].lattice
        policy = masked(rng.dirichlet([1.0, 2.0, 0.3], size=run.shape[:2]), run.legal)
        torch.manual_seed(seed)
        draws = Draws()
        for _ in range(5):
            sample = sample_episode(run, policy, draws)
            ids, mask = bare._completion(episodes[0], sample)
            assert len(ids) == len(mask) == sample.rows * tokens.spec.row_tokens
            assert sum(mask) == len(sample.actions)
            asks = tokens.ask_positions(run.shape[0]) - len(tokens.header)
            places, states, actions = bare._decisions(ids, asks)
            assert tuple(states) == sample.states
            assert tuple(actions) == sample.actions
            assert places == np.flatnonzero(mask).tolist()
            assert tokens.as_asked(ids) == episodes[0].parts[0].ids[len(tokens.header) :][: len(ids)]


@pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning")  # four samples may be alike
class TestLogProbabilities:
    @pytest.mark.parametrize("name", ["forbidden", "noop", "uplift"])
    def test_they_are_those_of_a_plain_forward_of_each_sample(self, trainer_of, uplift_of, monkeypatch, name):
        model = {"forbidden": Forbidden(), "noop": Noop(), "uplift": uplift_of(0.4)}[name]
        trainer = trainer_of(model)
        samples = []
        monkeypatch.setattr(grpo, "sample_episode", lambda *args: samples.append(sample_episode(*args)) or samples[-1])
        torch.manual_seed(0)
        prompts = [str(number) for number in range(4) for _ in range(4)]
        out = trainer._rollout(prompts, trainer)
        assert out["episode_return"] == [sample.value for sample in samples]
        longest = max(len(ids) for ids in out["completion_ids"])
        prompt = torch.tensor(out["prompt_ids"])
        padded = torch.zeros(len(samples), longest, dtype=torch.long)
        there = torch.zeros_like(padded)
        for row, ids in enumerate(out["completion_ids"]):
            padded[row, : len(ids)] = torch.tensor(ids)
            there[row, : len(ids)] = 1
        trainer.model.eval()
        with torch.no_grad():
            logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([prompt, padded], dim=1),
                torch.cat([torch.ones_like(prompt), there], dim=1),
                longest,
                compute_entropy=True,
            )
        assert entropies is not None
        header, actions = len(trainer.tokens.header), list(trainer.tokens.actions)
        for index, sample in enumerate(samples):
            episode = trainer.episodes[int(prompts[index])]
            read = episode.parts[0].ids[: header + len(out["completion_ids"][index])]
            with torch.no_grad():
                logits = trainer.model(torch.tensor([read])).logits[0].double()
            asked = np.flatnonzero(out["env_mask"][index])
            assert len(asked) == len(sample.actions)
            for place, state, action in zip(asked, sample.states, sample.actions, strict=True):
                legal = torch.from_numpy(episode.lattice.legal[state])
                chosen = logits[header + place, actions].masked_fill(~legal, -torch.inf).log_softmax(-1)
                assert float(logps[index, place]) == pytest.approx(float(chosen[action]), abs=1e-5)
                nats = -float((chosen.exp() * chosen.masked_fill(~legal, 0)).sum())
                assert float(entropies[index, place]) == pytest.approx(nats, abs=1e-5)
            elsewhere = np.setdiff1d(np.arange(longest), asked)
            assert (logps[index, elsewhere] == 0).all()

    def test_the_gradient_is_advantages_times_scores(self, trainer_of, uplift_of):
        trainer = trainer_of(uplift_of(0.4), scale_rewards="group")  # as in the paper
        trainer.model.train()
        torch.manual_seed(1)
        inputs = [{"prompt": str(number)} for number in (0, 2) for _ in range(4)]
        with former_names():
            batch = trainer._generate_and_score_completions(inputs)
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        found = {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
        trainer.model.zero_grad()
        value = 0.0
        decisions = int((batch["completion_mask"] * batch["tool_mask"]).sum())
        header = len(trainer.tokens.header)
        returns = [use.value for use in trainer._uses]
        actions = list(trainer.tokens.actions)
        groups = torch.tensor(returns, dtype=torch.float32).view(2, 4)
        centred = groups - groups.mean(dim=1, keepdim=True)
        advantages = (centred / (groups.std(dim=1, keepdim=True) + 1e-4)).flatten()
        assert float(advantages.abs().max()) > 0.1
        assert batch["advantages"].numpy() == pytest.approx(advantages.numpy(), abs=1e-4)
        for index, ids in enumerate(batch["completion_ids"]):
            episode = trainer.episodes[(0, 2)[index // 4]]
            count = int(batch["completion_mask"][index].sum())
            read = episode.parts[0].ids[: header + count]
            logits = trainer.model(torch.tensor([read])).logits[0]
            asks = trainer.tokens.ask_positions(episode.lattice.shape[0]) - header
            for place, state, action in zip(*trainer._decisions(ids[:count].tolist(), asks), strict=True):
                legal = torch.from_numpy(episode.lattice.legal[state])
                log_policy = logits[header + place, actions].masked_fill(~legal, -torch.inf).log_softmax(-1)
                value = value - advantages[index] * log_policy[action] / decisions
        assert isinstance(value, torch.Tensor)
        value.backward()
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            assert found[name].numpy() == pytest.approx(parameter.grad.numpy(), abs=2e-5)
        assert max(float(gradient.abs().max()) for gradient in found.values()) > 1e-3

    @pytest.mark.parametrize("scale", ["group", "batch", "none"])
    def test_by_whose_spread_advantages_are_divided(self, trainer_of, uplift_of, scale):
        trainer = trainer_of(uplift_of(0.4), scale_rewards=scale)
        torch.manual_seed(1)
        with former_names():
            batch = trainer._generate_and_score_completions([{"prompt": str(n)} for n in (0, 2) for _ in range(4)])
        groups = torch.tensor([use.value for use in trainer._uses], dtype=torch.float32).view(2, 4)
        spreads = {"group": groups.std(dim=1, keepdim=True), "batch": groups.std(), "none": torch.tensor(1 - 1e-4)}
        wanted = (groups - groups.mean(dim=1, keepdim=True)) / (spreads[scale] + 1e-4)
        assert len({round(float(spread), 3) for spread in (*spreads["group"].flatten(), groups.std())}) == 3
        assert batch["advantages"].numpy() == pytest.approx(wanted.flatten().numpy(), abs=1e-4)

    def test_one_pass_reads_all_episodes_of_a_run(self, trainer_of, uplift_of, monkeypatch):
        trainer = trainer_of(uplift_of(0.4))
        passes = []
        score = grpo.action_logits
        monkeypatch.setattr(
            grpo,
            "action_logits",
            lambda net, parts, tokens, trunk: passes.append(len(parts)) or score(net, parts, tokens),
        )
        torch.manual_seed(0)
        inputs = [{"prompt": str(number)} for number in range(4) for _ in range(4)]
        with former_names():
            batch = trainer._generate_and_score_completions(inputs)
        trainer.current_gradient_accumulation_steps = 1
        trainer.compute_loss(trainer.model, batch)
        assert passes[-1] <= 4


class TestWarnings:
    def test_groups_without_spread_are_warned_of(self, trainer_of):
        trainer = trainer_of(Forbidden(), guards=Guards(max_steps=1))  # stop at once, whatever the network says
        with pytest.warns(NoSpreadWarning, match="all 4 episodes of each of 2 groups had the same return"):
            trainer._rollout(["0"] * 4 + ["1"] * 4, trainer)

    def test_a_run_longer_than_one_context_is_refused(self, trainer_of, uplift_of, fresh):
        trainer = trainer_of(uplift_of(0.4))
        first = trainer.episodes[0]
        part = first.parts[0]
        long = replace(first, parts=(part, Part(part.ids, 1, part.rows)))
        base = fresh()
        with pytest.raises(DataError, match=r"run 'r0' is longer than one context; raise `context_rows`"):
            GroupTrainer(base.network, trainer.args, trainer.tokens, base.tokenizer, [long], [first])


class Clock:
    """Stands for `time`."""

    def __init__(self, now=100.0):
        self.now = now

    def monotonic(self):
        return self.now


class Ticking(TrainerCallback):
    """Every step takes as long."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def on_step_begin(self, args, state, control, **kwargs):
        self.clock.now += self.seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (grpo, lm_trainer):
        monkeypatch.setattr(module, "time", made)
    return made


class TestTimeLimit:
    @pytest.mark.parametrize(
        ("warmup", "wanted"),
        [
            (0.0, {0: 1.0, 15: 0.75, 45: 0.25, 60: 0.0, 66: 0.0}),
            (0.1, {0: 0.0, 3: 0.5, 6: 1.0, 33: 0.5, 60: 0.0}),
            (1.0, {0: 0.0, 45: 0.75, 60: 0.0}),
        ],
    )
    def test_the_rate_by_the_clock(self, clock, warmup, wanted):
        limit, control = TimeLimit(1.0, warmup), SimpleNamespace(should_training_stop=False)
        state = SimpleNamespace(global_step=7, max_steps=10**9, log_history=[])
        clock.now = 130.0  # TRL's initialisation does not count
        limit.on_train_begin(None, state, control)
        for seconds, rate in wanted.items():
            clock.now = 130.0 + seconds
            limit.on_optimizer_step(None, state, control)
            assert limit.rate() == pytest.approx(rate, abs=1e-5)
            limit.on_step_end(None, state, control)
            assert control.should_training_stop is (seconds >= 60)

    def test_a_resumed_stage_has_used_a_part_of_its_time(self, clock):
        limit = TimeLimit(1.0)
        state = SimpleNamespace(global_step=7, max_steps=10**9, log_history=[{"seconds": 15.0}, {"seconds": 30.0}])
        limit.on_train_begin(None, state, None)
        clock.now += 15
        limit.on_optimizer_step(None, state, None)
        assert limit.rate() == pytest.approx(0.25)

    def test_steps_that_end_first_decide(self, clock):
        limit = TimeLimit(1.0)
        limit.on_train_begin(None, SimpleNamespace(log_history=[]), None)
        clock.now += 6
        limit.on_optimizer_step(None, SimpleNamespace(global_step=2, max_steps=4), None)
        assert limit.rate() == pytest.approx(0.25)  # three of four steps are done, and a tenth of the time

    @pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning")
    def test_training_uses_it(self, clock, fresh, run_of, tokens_of, episodes_of, config_of, tmp_path):
        base, tokens = fresh(), tokens_of(0)
        episodes = episodes_of(some_runs(run_of), tokens, Reward(search=0.05), GUARDS, Forbidden())
        options = GrpoOptions(
            epochs=1000, batch=4, micro_batch=4, generations=4, learning_rate=1e-4, warmup=0, evaluate_every=2,
            minutes=0.5,
        )  # fmt: skip
        given = (base.network.train(), base.tokenizer, tokens, episodes, episodes)
        trainer = group_trainer(*given, options, config_of(), tmp_path / "grpo", [Ticking(clock, 6.0)])
        result = learn(trainer, base.network, config_of(), tmp_path / "grpo", keep_start=True)
        rates = [entry["learning_rate"] for entry in result.curve if "loss" in entry]
        assert rates == pytest.approx([1e-4, 0.8e-4, 0.6e-4, 0.4e-4, 0.2e-4], rel=1e-3)
        assert [entry["step"] for entry in result.curve if "eval_return" in entry] == [0, 2, 4, 5]
        assert result.seconds == pytest.approx(30)


@pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning")
@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2, alpha=4)])
def test_the_reference_is_the_policy_it_starts_from(
    fresh, run_of, tokens_of, episodes_of, config_of, uplift_of, tmp_path, monkeypatch, lora
):
    """Not the base below it: the divergence is zero at the first step."""
    samples = []
    monkeypatch.setattr(grpo, "sample_episode", lambda *args: samples.append(sample_episode(*args)) or samples[-1])
    base, tokens = fresh(), tokens_of(2)
    network = trainable(base, lora, 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    episodes = episodes_of(some_runs(run_of), tokens, Reward(search=0.05), GUARDS, uplift_of(0.4))
    options = GrpoOptions(epochs=3, batch=4, micro_batch=4, generations=4, warmup=0, kl=0.1)
    options = replace(options, learning_rate=1e-4 if lora is None else 1e-2)
    config, folder = config_of(lora=lora), tmp_path / "grpo"
    trainer = group_trainer(network, base.tokenizer, tokens, episodes, episodes, options, config, folder)
    result = learn(trainer, network, config, folder, keep_start=True)
    steps = [entry for entry in result.curve if "loss" in entry]
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-7)
    assert steps[2]["kl"] > 1e-4
    # each sampled decision counts once, and not again for the reference
    assert steps[-1]["state_gradients"] == sum(len(sample.actions) for sample in samples)


@pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning")
@pytest.mark.parametrize(("returns", "kept"), [((0.1, 0.3, 0.2), 1), ((0.1, 0.2, 0.3), 2), ((0.3, 0.1, 0.2), 0)])
def test_the_weights_of_the_best_look_are_kept(
    fresh, run_of, tokens_of, episodes_of, config_of, uplift_of, tmp_path, monkeypatch, returns, kept
):
    base, tokens = fresh(), tokens_of(2)
    episodes = episodes_of(some_runs(run_of), tokens, Reward(search=0.05), GUARDS, uplift_of(0.4))
    seen = []
    look = lm_trainer.validation_figures

    def figures(network, *words):
        sums, found = look(network, *words)
        seen.append(changed_arrays(network, None))
        return [returns[len(seen) - 1], *sums[1:]], found

    monkeypatch.setattr(lm_trainer, "validation_figures", figures)
    options = GrpoOptions(epochs=2, batch=4, micro_batch=4, generations=4, warmup=0, evaluate_every=1)
    given = (base.network.train(), base.tokenizer, tokens, episodes, episodes)
    trainer = group_trainer(*given, options, config_of(), tmp_path / "grpo")
    result = learn(trainer, base.network, config_of(), tmp_path / "grpo", keep_start=True)
    assert result.best_return == returns[kept]
    own = changed_arrays(base.network, None)
    same = [all((array == own[name]).all() for name, array in arrays.items()) for arrays in seen]
    assert same == [number == kept for number in range(3)]


def value_of(network, episodes: list[LmEpisode], tokens) -> float:
    found = policies(network, episodes, tokens)
    return float(np.mean([expected(e.lattice, p).value for e, p in zip(episodes, found, strict=True)]))


@pytest.mark.filterwarnings("ignore::stopwise.train.lm.trainer.CollapseWarning")
@pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning")
class TestRightAnswers:
    def test_the_curve_says_how_the_policy_acts(
        self, fresh, run_of, tokens_of, episodes_of, config_of, tmp_path, uplift_of
    ):
        base, tokens = fresh(), tokens_of(2)
        episodes = episodes_of(some_runs(run_of), tokens, Reward(search=0.05), GUARDS, uplift_of(0.4))
        options = GrpoOptions(epochs=2, batch=4, micro_batch=2, generations=4, learning_rate=1e-4, evaluate_every=1)
        config, folder = config_of(), tmp_path / "grpo"
        trainer = group_trainer(base.network, base.tokenizer, tokens, episodes, episodes, options, config, folder)
        result = learn(trainer, base.network, config, folder, keep_start=True)
        steps = [entry for entry in result.curve if "loss" in entry]
        looks = [entry for entry in result.curve if "eval_return" in entry]
        assert [entry["step"] for entry in looks] == [0, 1, 2]
        assert [entry["step"] for entry in steps] == [1, 2]
        for entry in steps:
            assert 0 <= entry["frac_reward_zero_std"] <= 1
            assert 0 < entry["entropy"] < np.log(3)
            rates = [entry[f"rate_{action.name.lower()}"] for action in Action]
            assert sum(rates) == pytest.approx(1)
            assert min(rates) >= 0
            assert entry["return"] == pytest.approx(entry["reward"], abs=1e-6)
            assert "reward_std" in entry
        assert steps[1]["state_gradients"] > steps[0]["state_gradients"] > 0
        assert steps[1]["seconds"] >= steps[0]["seconds"]
