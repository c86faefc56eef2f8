"""The right answers of imitation and of the exact policy gradient, on free logits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stopwise.controllers.guards import Guards
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.envs.interventions import Forbidden, Noop
from stopwise.envs.lattice import Lattice, expected, lattices, limits, masked
from stopwise.envs.rewards import Reward
from stopwise.train.lm.config import SftOptions
from stopwise.train.lm.episodes import LmEpisode, Part, with_targets
from stopwise.train.lm.losses import exact_loss, imitation_loss, masked_log_policy

CONTINUE, INTERVENE, STOP = Action
PRICES = Reward(recall=1.0, correct=0.5, search=0.125, intervention=0.0625, controller=0.03125)
GUARDS = Guards(min_steps=1, max_steps=9, cooldown=1, max_interventions=2)


@pytest.fixture(scope="module")
def lattice_of(run_of, table_of):
    def make(model, recall=(0.25, 0.25, 0.5, 0.5, 0.75), guards=GUARDS, reward=PRICES):
        cov = np.linspace(0, 1, len(recall)).tolist()
        [run] = lattices(table_of([run_of(list(recall), signals={"Cov": cov}, correct=1.0)]), reward, guards, model)
        assert run is not None
        return run

    return make


def free_logits(run: Lattice, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    shape = (*run.shape[:2], 3)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


def value_of_start(logits: torch.Tensor, run: Lattice) -> torch.Tensor:
    """V(start), differentiable through everything: the reference."""
    log_policy, _ = masked_log_policy(logits, run)
    policy = log_policy.exp() * torch.from_numpy(run.legal)
    known: dict[tuple[int, int, int], torch.Tensor] = {}
    rows, _, rest = run.shape

    def value(row: int, used: int, left: int) -> torch.Tensor:
        if row == rows:
            return torch.zeros((), dtype=torch.float64)
        place = (row, used, left)
        if place not in known:
            legal, pi = run.legal[place], policy[place]
            total = torch.zeros((), dtype=torch.float64)
            if legal[CONTINUE]:
                total = total + pi[CONTINUE] * (run.going_on[row] + value(row + 1, used, max(left - 1, 0)))
            if legal[STOP]:
                total = total + pi[STOP] * run.stopping[row]
            if legal[INTERVENE]:
                hit = run.hitting[row] + value(int(run.hit[row]), used + 1, rest - 1)
                miss = run.missing[row] + value(int(run.miss[row]), used + 1, rest - 1)
                total = total + pi[INTERVENE] * (run.chance[row] * hit + (1 - run.chance[row]) * miss)
            known[place] = total
        return known[place]

    return value(0, 0, 0)


def reinforce(run: Lattice, logits: torch.Tensor, count: int, seed: int):
    """Means and standard errors of `count` gradients, return times score, each of a sampled episode."""
    rng = np.random.default_rng(seed)
    raw = torch.softmax(logits.detach(), -1).numpy()
    policy = masked(raw, run.legal)
    rows, _, rest = run.shape
    row, used, left = (np.zeros(count, dtype=int) for _ in range(3))
    alive, total = np.ones(count, dtype=bool), np.zeros(count)
    score = np.zeros((count, *raw.shape))
    while alive.any():
        who = np.flatnonzero(alive)
        r, u, c = row[who], used[who], left[who]
        pi = policy[r, u, c]
        action = (rng.random(len(who))[:, None] > pi.cumsum(axis=1)).sum(axis=1).clip(max=2)
        score[who, r, u] -= pi
        score[who, r, u, action] += 1
        works = rng.random(len(who)) < run.chance[r]
        total[who] += np.select(
            [action == CONTINUE, action == STOP, works],
            [run.going_on[r], run.stopping[r], run.hitting[r]],
            run.missing[r],
        )
        nudged = action == INTERVENE
        row[who] = np.select([action == CONTINUE, nudged & works, nudged], [r + 1, run.hit[r], run.miss[r]], r)
        left[who] = np.where(nudged, rest - 1, np.maximum(c - 1, 0))
        used[who] += nudged
        alive[who] = (action != STOP) & (row[who] < rows)
    gradients = total[:, None, None, None] * score
    return gradients.mean(axis=0), gradients.std(axis=0) / np.sqrt(count)


MODELS = {"forbidden": Forbidden, "noop": Noop}


@pytest.fixture(scope="module")
def model_of(uplift_of):
    return lambda name: uplift_of(0.4) if name == "uplift" else MODELS[name]()


class TestExactGradient:
    @pytest.mark.parametrize("name", ["forbidden", "noop", "uplift"])
    def test_it_is_autograd_through_the_value_of_the_start(self, lattice_of, model_of, name):
        for seed in range(5):
            run = lattice_of(model_of(name))
            logits = free_logits(run, seed)
            (expected_gradient,) = torch.autograd.grad(value_of_start(logits, run), logits)
            loss, use = exact_loss(logits, run)
            (found,) = torch.autograd.grad(-loss, logits)
            assert found.numpy() == pytest.approx(expected_gradient.numpy(), abs=1e-12)
            assert float(found.abs().max()) > 0.001
            assert use.value == pytest.approx(float(value_of_start(logits, run).detach()))

    @pytest.mark.parametrize("name", ["noop", "uplift"])
    def test_without_reach_weights_it_is_not(self, lattice_of, model_of, name):
        run = lattice_of(model_of(name))
        logits = free_logits(run)
        (expected_gradient,) = torch.autograd.grad(value_of_start(logits, run), logits)
        (found,) = torch.autograd.grad(-exact_loss(logits, run, with_reach=False)[0], logits)
        assert float((found - expected_gradient).abs().max()) > 0.02

    @pytest.mark.parametrize("name", ["forbidden", "noop", "uplift"])
    def test_the_mean_of_100_000_sampled_gradients_agrees(self, lattice_of, model_of, name):
        run = lattice_of(model_of(name), recall=(0.25, 0.25, 0.75))
        logits = free_logits(run, 3)
        sampled, error = reinforce(run, logits, 100_000, seed=1)
        assert error.max() < 0.005

        def agrees(**options):
            (exact,) = torch.autograd.grad(-exact_loss(logits, run, **options)[0], logits)
            return (np.abs(exact.numpy() - sampled) <= 4.5 * error + 1e-12).all()

        assert agrees()
        assert not agrees(with_reach=False)

    def test_float32_and_a_bonus(self, lattice_of, model_of):
        """Entropy and divergence are weighed by the same visits, which are not differentiated."""
        run = lattice_of(model_of("uplift"))
        logits, reference = free_logits(run, 1), free_logits(run, 2).detach()
        plain = exact_loss(logits, run)[0]
        loss, use = exact_loss(logits, run, entropy=0.3, kl=0.2, reference=reference)
        log_policy, legal = masked_log_policy(logits.detach(), run)
        policy = (log_policy.exp() * legal).numpy()
        from stopwise.envs.lattice import solve

        reach = solve(run, policy).reach
        nats = -(policy * log_policy.numpy()).sum(-1)
        far = (policy * (log_policy - masked_log_policy(reference, run)[0]).numpy()).sum(-1)
        bonus = 0.3 * (reach * nats).sum() - 0.2 * (reach * far).sum()
        assert float(loss.detach()) == pytest.approx(float(plain.detach()) - bonus)
        assert use.entropy == pytest.approx((reach * nats).sum() / reach.sum())
        single = exact_loss(
            logits.detach().float().requires_grad_(), run, entropy=0.3, kl=0.2, reference=reference.float()
        )
        assert float(single[0].detach()) == pytest.approx(float(loss.detach()), abs=1e-5)

    def test_how_the_policy_acts_is_what_the_lattice_says(self, lattice_of, model_of):
        run = lattice_of(model_of("uplift"))
        logits = free_logits(run, 4)
        _, use = exact_loss(logits, run)
        found = expected(run, masked(torch.softmax(logits.detach(), -1).numpy(), run.legal))
        assert use.rates == pytest.approx(tuple(found.actions / found.actions.sum()))
        assert use.visits == pytest.approx(found.actions.sum())
        assert run.first + use.value == pytest.approx(found.value)

    def test_illegal_actions_get_no_gradient(self, lattice_of):
        run = lattice_of(Noop(), guards=Guards(min_steps=3, max_steps=4, cooldown=1, max_interventions=1))
        logits = free_logits(run)
        exact_loss(logits, run, entropy=0.1)[0].backward()
        assert logits.grad is not None
        assert torch.isfinite(logits.grad).all()
        assert (logits.grad[:2, :, STOP] == 0).all()
        assert (logits.grad[:, 1, INTERVENE] == 0).all()
        assert (logits.grad[3:] == 0).all()  # it has to stop there: nothing to choose


def climb(run: Lattice, steps: int, rate=0.3, **options) -> float:
    """The value that gradient ascent by `exact_loss` comes to."""
    logits = torch.zeros((*run.shape[:2], 3), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        exact_loss(logits, run, **options)[0].backward()
        optimizer.step()
    return exact_loss(logits, run)[1].value


class TestRightAnswers:
    def test_a_bandit(self, lattice_of):
        """One search, then: going on brings half of the gold, stopping nothing."""
        run = lattice_of(Forbidden(), recall=(0.25,), reward=Reward(correct=0.5))  # the agent's answer is correct
        assert climb(run, 100) == pytest.approx(0.5, abs=0.01)

    def test_a_small_decision_process_with_interventions(self, lattice_of, uplift_of):
        """Idle searches and one late find: intervene at once, then go on if that failed, and stop after the find.

        A search costs 1/8: with u = 0.4 the intervention brings 0.5 for 1/8, else three searches bring it for 3/8
        more; after the find nothing comes but one more search. So the best is 0.4 (0.5 - 1/8) + 0.6 (0.5 - 4/8) = 0.15,
        while going on at once is worth 0.5 - 3/8 = 0.125.
        """
        reward = Reward(search=0.125)
        guards = Guards(cooldown=1, max_interventions=1)
        run = lattice_of(uplift_of(0.4), recall=(0, 0, 0, 0.5, 0.5), guards=guards, reward=reward)
        assert climb(run, 400) == pytest.approx(0.15, abs=0.005)

    def test_entropy_keeps_it_from_being_sure(self, lattice_of):
        run = lattice_of(Forbidden(), recall=(0.25,), reward=Reward(correct=0.5))
        # with a bonus of 0.5 a nat the optimum is softmax(q / 0.5), whose share of going on is 1 / (1 + exp(-1))
        assert climb(run, 300, entropy=0.5) == pytest.approx(0.5 / (1 + np.exp(-1)), abs=0.005)


class TestMaskedPolicy:
    @given(seed=st.integers(0, 1000), most=st.integers(0, 2), rest=st.integers(0, 2))
    @settings(max_examples=30)
    def test_it_is_the_policy_that_the_controllers_make(self, seed, most, rest):
        guards = Guards(min_steps=2, max_steps=3, cooldown=rest, max_interventions=most)
        legal = limits(4, guards, True)
        nothing, places = np.zeros(4), np.zeros(4, dtype=int)
        run = Lattice(nothing, nothing, nothing, places, nothing, places, nothing, legal, np.zeros(5))
        logits = free_logits(run, seed, 3.0).detach()
        log_policy, mask = masked_log_policy(logits, run)
        assert (mask.numpy() == legal).all()
        assert (log_policy[~mask] == 0).all()
        found = (log_policy.exp() * mask).numpy()
        assert found == pytest.approx(masked(torch.softmax(logits, -1).numpy(), legal))


def episode(legal, targets=None, weights=None):
    rows = len(legal)
    nothing, places = np.zeros(rows), np.zeros(rows, dtype=int)
    run = Lattice(nothing, nothing, nothing, places, nothing, places, nothing, legal, np.zeros(rows + 1))
    return LmEpisode("run", "question", (Part([], 0, rows),), run, targets, weights)


class TestImitation:
    def test_by_hand(self):
        legal = np.array([[[[True, False, True]]], [[[True, True, True]]]])
        targets = np.array([[[0.25, 0.0, 0.75]], [[0.0, 1.0, 0.0]]])
        logits = torch.log(torch.tensor([[[0.2, 0.7, 0.6]], [[0.5, 0.25, 0.25]]]))
        loss = imitation_loss(logits, episode(legal, targets, np.array([[2.0], [1.0]])))
        first = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))  # 0.2 and 0.6 are 1 : 3 without the illegal action
        assert float(loss) == pytest.approx((2 * first - np.log(0.25)) / 2, abs=1e-6)

    def test_without_targets_there_is_nothing_to_imitate(self):
        with pytest.raises(DataError, match="run: has no targets to imitate"):
            imitation_loss(torch.zeros(1, 1, 3), episode(np.ones((1, 1, 1, 3), dtype=bool)))

    def test_soft_and_hard_targets(self):
        legal = np.ones((2, 1, 1, 3), dtype=bool)
        legal[:, :, :, INTERVENE] = False
        q = np.array([[0.0, 9.0, 0.1], [0.2, np.nan, 0.0]])
        options = SftOptions(labels="soft", temperature=0.1)
        [soft] = with_targets([episode(legal)], [q], options)
        assert soft.targets is not None
        assert soft.weights is not None
        high = 1 / (1 + np.exp(-1.0))
        assert soft.targets[0, 0] == pytest.approx([1 - high, 0, high])
        assert soft.targets[1, 0] == pytest.approx([1 / (1 + np.exp(-2.0)), 0, 1 - 1 / (1 + np.exp(-2.0))])
        assert soft.weights.ravel() == pytest.approx([1, 1])
        [hard] = with_targets([episode(legal)], [q], SftOptions(labels="hard"))
        assert hard.targets is not None
        assert hard.weights is not None
        assert hard.targets[:, 0].tolist() == [[0, 0, 1], [1, 0, 0]]
        assert hard.weights.ravel() == pytest.approx([2 / 3, 4 / 3])  # leads of 0.1 and 0.2, of mean 1

    def test_realised_returns_weigh_each_action_by_its_lead_over_the_worst(self):
        legal = np.ones((2, 1, 1, 3), dtype=bool)
        returns = np.array([[0.5, 0.2, 0.1], [0.3, 0.3, 0.3]])
        [made] = with_targets([episode(legal)], [returns], SftOptions())
        assert made.targets is not None
        assert made.weights is not None
        assert made.targets[0, 0] == pytest.approx([0.8, 0.2, 0.0])  # leads of 0.4, 0.1 and 0
        assert made.weights.ravel() == pytest.approx([2.0, 0.0])  # 0.5 and 0, of mean 1: a tie teaches nothing
        assert made.targets[1, 0] == pytest.approx([1.0, 0.0, 0.0])

    @pytest.mark.parametrize("labels", ["hard", "returns", "soft"])
    def test_balance_gives_each_best_action_the_same_weight(self, labels):
        legal = np.ones((5, 1, 1, 3), dtype=bool)
        q = np.array([[1.0, 0, 0]] * 4 + [[0, 0, 1.0]])
        options = SftOptions(labels=labels, balanced=True)
        made = with_targets([episode(legal), episode(legal)], [q, q], options)
        weights = np.concatenate([one.weights for one in made if one.weights is not None]).ravel()
        best = np.concatenate([q, q]).argmax(axis=1)
        assert weights[best == CONTINUE].sum() == pytest.approx(weights[best == STOP].sum())
        assert weights.mean() == pytest.approx(1)
