import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stopwise.controllers.base import Controller, mask
from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import choose_by_thresholds
from stopwise.controllers.session import ControlSession
from stopwise.controllers.thresholded import Thresholded
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import Forbidden, Noop
from stopwise.envs.lattice import (
    Lattice,
    by_thresholds,
    expected,
    lattices,
    limits,
    masked,
    question_weights,
    solve,
)
from stopwise.envs.logged import Logged
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, UpliftFit
from stopwise.signals.features import FeatureSpec

CONTINUE, INTERVENE, STOP = Action
SPEC = FeatureSpec(("Nov",))
PRICES = Reward(recall=1.0, correct=0.5, search=0.125, intervention=0.0625, controller=0.03125)
RECALL = [0.25, 0.25, 0.75]


def constant(probability):
    """An uplift of the same probability everywhere."""
    size = 2 * len(SPEC)
    intercept = math.log(probability / (1 - probability))
    return Uplift(UpliftFit(SPEC, np.zeros(size), np.ones(size), np.zeros(size), intercept, 100, 50, 2))


MODELS = [Forbidden(), Noop(), constant(0.25)]


def named(model):
    return model.name


@pytest.fixture
def table(run_of, table_of):
    """A run of three searches that ends with a correct answer; only its second prefix was probed, and was right."""
    run = run_of(RECALL, id="a", signals={"Nov": [1.0, 0.5, 0.0]}, correct=1.0, probes=[0.0, 1.0, math.nan])
    return table_of([run])


def the_lattice(table, model, reward=PRICES, guards=Guards(cooldown=1, max_interventions=1)):
    [run] = lattices(table, reward, guards, model)
    assert run is not None
    return run


def random_policy(run: Lattice, rng, sharp=1.0):
    """Probabilities after the masks, (T, M + 1, C + 1, 3)."""
    raw = rng.dirichlet(np.full(3, sharp), size=run.shape[:2])
    return masked(raw, run.legal)


class Tree:
    """The averages of a policy over every way that a run may take, from rewards and guards alone: no lattice."""

    def __init__(self, recall, reward, guards, model, policy, *, chance=0.0, probes=None, correct=0.0, final=None):
        self.recall, self.reward, self.guards, self.model, self.policy = recall, reward, guards, model, policy
        self.chance = chance
        self.probes = [0.0] * len(recall) if probes is None else probes
        self.correct = correct
        self.final = recall[-1] if final is None else final
        self.totals = np.zeros(7)  # return, recall, searches, interventions, three actions
        self.walk(0, 0, None, 1.0, np.array([reward.recall * recall[0], 0, 1.0, 0, 0, 0, 0]))

    def walk(self, row, used, since, likely, sums):
        """`sums` has been come to with probability `likely`; a decision is due at `row`."""
        if likely == 0:
            return
        reward, last = self.reward, len(self.recall) - 1
        legal = self.guards.legal(row + 1, used, since, can_intervene=self.model.available)
        left = 0 if since is None else max(self.guards.cooldown + 1 - since, 0)
        for action in Action:
            if not legal[action]:
                continue
            now = sums.copy()
            now[4 + action] += 1
            now[0] -= reward.controller
            share = likely * self.policy[row, used, left, action]
            if action is STOP:
                self.end(share, now, reward.correct * self.probes[row], self.recall[row])
                continue
            if action is INTERVENE:
                now[0] -= reward.intervention
                now[3] += 1
            further = (used + 1, 1) if action is INTERVENE else (used, None if since is None else since + 1)
            if action is CONTINUE or isinstance(self.model, Noop):
                if row == last:
                    now[0] += reward.recall * (self.final - self.recall[row])
                    self.end(share, now, reward.correct * self.correct, self.final)
                else:
                    self.move(row, row + 1, share, now, *further)
                continue
            higher = [ahead for ahead in range(row + 1, last + 1) if self.recall[ahead] > self.recall[row]]
            chance = self.chance if higher else 0.0
            if higher:
                self.move(row, higher[0], share * chance, now.copy(), *further)
            self.move(row, row, share * (1 - chance), now, *further)

    def move(self, row, target, likely, sums, used, since):
        now = sums.copy()
        now[0] += self.reward.recall * (self.recall[target] - self.recall[row]) - self.reward.search
        now[2] += 1
        self.walk(target, used, since, likely, now)

    def end(self, likely, sums, extra, recall):
        sums = sums.copy()
        sums[0] += extra
        sums[1] = recall
        self.totals += likely * sums


def figures(found):
    return np.array([found.value, found.recall, found.searches, found.interventions, *found.actions])


class TestByHand:
    def test_forbidden(self, table):
        run = the_lattice(table, Forbidden())
        # going on costs a search and a decision, and past the end only the decision; the answer is worth a half
        assert run.shape == (3, 1, 1)
        assert run.first == 0.25
        assert run.going_on.tolist() == [-0.125 - 0.03125, 0.5 - 0.125 - 0.03125, 0.5 - 0.03125]
        assert run.stopping.tolist() == [-0.03125, 0.5 - 0.03125, -0.03125]
        half = masked(np.full((3, 1, 3), 0.5), run.legal)
        found = solve(run, half)
        v2 = 0.5 * 0.46875 + 0.5 * -0.03125
        v1 = 0.5 * (0.34375 + v2) + 0.5 * 0.46875
        v0 = 0.5 * (-0.15625 + v1) + 0.5 * -0.03125
        assert found.value == v0
        assert found.q[:, 0, 0].tolist() == [
            [-0.15625 + v1, 0.0, -0.03125],
            [0.34375 + v2, 0.0, 0.46875],
            [0.46875, 0.0, -0.03125],
        ]
        assert found.reach.ravel().tolist() == [1.0, 0.5, 0.25]
        averages = expected(run, half)
        assert averages.value == 0.25 + v0
        assert averages.searches == 1 * 0.5 + 2 * 0.25 + 3 * 0.25
        assert averages.recall == 0.75 * 0.25 + 0.25 * 0.75
        assert averages.interventions == 0
        assert averages.actions.tolist() == [0.5 + 0.25 + 0.125, 0, 0.5 + 0.25 + 0.125]

    def test_noop(self, table):
        run = the_lattice(table, Noop())
        assert run.shape == (3, 2, 2)
        third = masked(np.full((3, 2, 3), 1 / 3), run.legal)
        found = solve(run, third)
        going, stop, nudge = run.going_on, run.stopping, -0.0625
        # with the intervention used: a coin between going on and stopping
        w2 = (going[2] + stop[2]) / 2
        w1 = (going[1] + w2 + stop[1]) / 2
        # before: a third each; an intervention goes the same way, one more used, for its price
        v2 = (going[2] + going[2] + nudge + stop[2]) / 3
        v1 = (going[1] + v2 + going[1] + nudge + w2 + stop[1]) / 3
        v0 = (going[0] + v1 + going[0] + nudge + w1 + stop[0]) / 3
        assert found.value == pytest.approx(v0)
        assert found.q[0, 0, 0] == pytest.approx([going[0] + v1, going[0] + nudge + w1, stop[0]])
        assert found.q[1, 1, 1] == pytest.approx([going[1] + w2, 0, stop[1]])
        assert found.reach[0].ravel() == pytest.approx([1, 0, 0, 0])
        assert found.reach[1] == pytest.approx(np.array([[1 / 3, 0], [0, 1 / 3]]))  # it has not rested after the nudge
        assert found.reach[2] == pytest.approx(np.array([[1 / 9, 0], [1 / 6, 1 / 9]]))
        # an intervention at the last search costs no further one: the run's own end comes
        assert expected(run, third).searches == pytest.approx(1 + 2 / 3 + 2 / 9 + 1 / 6)

    def test_uplift(self, table):
        run = the_lattice(table, constant(0.25))
        assert run.hit.tolist() == [2, 2, 2]
        assert run.chance == pytest.approx([0.25, 0.25, 0.0])  # nothing is left to find after the last search
        assert run.miss.tolist() == [0, 1, 2]
        third = masked(np.full((3, 2, 3), 1 / 3), run.legal)
        found = solve(run, third)
        going, stop, spent = run.going_on, run.stopping, -0.125 - 0.0625 - 0.03125
        w2 = (going[2] + stop[2]) / 2
        w1 = (going[1] + w2 + stop[1]) / 2
        w0 = (going[0] + w1 + stop[0]) / 2
        nudge2 = spent + w2
        v2 = (going[2] + nudge2 + stop[2]) / 3
        nudge1 = spent + 0.25 * (0.5 + w2) + 0.75 * w1
        v1 = (going[1] + v2 + nudge1 + stop[1]) / 3
        nudge0 = spent + 0.25 * (0.5 + w2) + 0.75 * w0
        v0 = (going[0] + v1 + nudge0 + stop[0]) / 3
        assert found.value == pytest.approx(v0)
        assert found.q[0, 0, 0] == pytest.approx([going[0] + v1, nudge0, stop[0]])
        assert found.reach[0] == pytest.approx(np.array([[1, 0], [0, 0.75 / 3]]))  # a failure stays where it is
        # at the second search: on from the first (after a failure with its rest over), or a failure there
        assert found.reach[1] == pytest.approx(np.array([[1 / 3, 0], [0.125, 0.75 / 9]]))
        # at the third: on from the second; hits from the first two, and a failure there
        on = np.array([[1 / 9, 0], [(0.125 + 0.75 / 9) / 2, 0.25 / 3 + 0.25 / 9 + 1 / 27]])
        assert found.reach[2] == pytest.approx(on)

    def test_what_intervenes_by_more_than_the_state_is_refused(self, table):
        with pytest.raises(UsageError, match="expected forbidden, noop or uplift"):
            lattices(table, PRICES, Guards(), Logged.__new__(Logged))

    def test_a_run_without_a_search_has_no_lattice(self, run_of, table_of):
        runs = [run_of([], id="empty", final_recall=0.0), run_of([1.0], id="one", signals={"Nov": [1.0]})]
        first, second = lattices(table_of(runs, signals=("Nov",)), PRICES, Guards())
        assert first is None
        assert second is not None
        assert second.going_on.tolist() == [-0.03125]

    def test_recall_of_pages_opened_after_the_last_search_comes_with_going_on(self, run_of, table_of):
        run = the_lattice(table_of([run_of([0.5], final_recall=0.75, signals={"Nov": [1.0]})]), Forbidden())
        assert run.going_on.tolist() == [0.25 - 0.03125]
        assert expected(run, masked(np.array([[[1.0, 0, 0]]]), run.legal)).recall == 0.75


class TestAgainstEveryWay:
    @given(
        finds=st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=5),
        model=st.sampled_from(MODELS),
        cooldown=st.integers(0, 2),
        most=st.integers(0, 2),
        first_stop=st.integers(1, 3),
        last=st.integers(3, 6),
        seed=st.integers(0, 2**32 - 1),
    )
    @settings(max_examples=60)
    def test_equal(self, run_of, table_of, finds, model, cooldown, most, first_stop, last, seed):
        rng = np.random.default_rng(seed)
        recall = (np.cumsum(finds) / 10).tolist()
        probes = rng.integers(0, 2, len(finds)).astype(float).tolist()
        guards = Guards(min_steps=first_stop, max_steps=last, cooldown=cooldown, max_interventions=most)
        table = table_of(
            [run_of(recall, correct=1.0, probes=probes, final_recall=1.0, signals={"Nov": [0.5] * len(finds)})]
        )
        run = the_lattice(table, model, guards=guards)
        policy = random_policy(run, rng)
        tree = Tree(recall, PRICES, guards, model, policy, chance=0.25, probes=probes, correct=1.0, final=1.0)
        found = expected(run, policy)
        assert figures(found) == pytest.approx(tree.totals, abs=1e-12)
        solution = solve(run, policy)
        # one decision at a time: what is reached is what the actions add up to, and only one end comes
        assert solution.reach.sum() == pytest.approx(found.actions.sum())
        assert solution.reach[0, 0, 0] == 1
        assert (solution.reach >= 0).all()
        assert (solution.reach[~run.legal.any(axis=-1)] == 0).all()
        ended = found.actions[STOP] + (solution.reach[..., None] * policy)[-1, ..., CONTINUE].sum()
        if isinstance(model, Noop):
            ended += (solution.reach[..., None] * policy)[-1, ..., INTERVENE].sum()
        assert ended == pytest.approx(1)
        # V is the policy's mean of q, at every state that is reached
        assert found.value == pytest.approx(run.first + float((policy * solution.q)[0, 0, 0].sum()))

    def test_policies_may_be_stacked(self, table):
        rng = np.random.default_rng(0)
        run = the_lattice(table, constant(0.25))
        stack = np.stack([random_policy(run, rng) for _ in range(6)]).reshape(2, 3, *run.legal.shape)
        together = expected(run, stack)
        assert together.actions.shape == (2, 3, 3)
        for index in np.ndindex(2, 3):
            alone = figures(expected(run, stack[index]))
            assert np.array([together.value[index], together.recall[index], together.searches[index]]) == pytest.approx(
                alone[:3]
            )
            assert together.actions[index] == pytest.approx(alone[4:])
            assert solve(run, stack).reach[index] == pytest.approx(solve(run, stack[index]).reach)


class Follows(Controller):
    """Follows a lattice policy in a replay: always its most probable action, or by the dice."""

    kind = "follows"
    privileged = False

    def __init__(self, policy, cooldown, rng=None):
        self.policy, self.cooldown, self.rng = policy, cooldown, rng

    def distribution(self, observation):
        since = observation.since_intervention
        left = 0 if since is None else max(self.cooldown + 1 - since, 0)
        used = min(observation.interventions, self.policy.shape[1] - 1)
        return self.policy[observation.row.t - 1, used, min(left, self.policy.shape[2] - 1)], None

    def choose(self, probabilities, legal):
        if self.rng is None:
            return Action(int(probabilities.argmax()))
        return Action(int(self.rng.choice(3, p=probabilities)))

    @property
    def params(self):
        return {}


def replay(env, session, episode, seed):
    """Return, recall, searches, interventions and actions of one replayed run."""
    env.reset(seed=seed, options={"episode": episode})
    session.begin()
    # the first search comes before the first decision: the environment does not pay for what it found
    total, counts = env.reward.recall * float(env.table.label("recall")[env.table.offsets[episode]]), np.zeros(3)
    while True:
        decision = session.decide(env.signal_row, can_intervene=env.can_intervene)
        counts[decision.action] += 1
        _, reward, terminated, truncated, info = env.step(decision.action)
        total += reward
        if terminated or truncated:
            return np.array([total, env.end.recall, info["searches"], info["interventions"], *counts])


@pytest.fixture(scope="module")
def runs(run_of, table_of):
    rng = np.random.default_rng(3)
    made = []
    for number in range(6):
        length = int(rng.integers(1, 7))
        recall = np.cumsum(rng.integers(0, 2, length)) / 8
        nov = rng.random(length).tolist()
        probes = rng.integers(0, 2, length).astype(float).tolist()
        end = "answer" if number % 2 else "budget"
        made.append(
            run_of(recall.tolist(), id=f"r{number}", signals={"Nov": nov}, correct=1.0, probes=probes, ended_by=end)
        )
    return table_of(made)


class TestAgainstReplay:
    guards = Guards(min_steps=2, max_steps=6, cooldown=1, max_interventions=2)

    @pytest.mark.parametrize("model", MODELS[:2], ids=named)
    def test_deterministic_policies_are_equal(self, runs, model):
        env = ReplayEnv(runs, SPEC, reward=PRICES, intervention=model)
        rng = np.random.default_rng(1)
        for episode, run in enumerate(lattices(runs, PRICES, self.guards, model)):
            assert run is not None
            for _ in range(8):
                chosen = random_policy(run, rng).argmax(axis=-1)
                policy = np.eye(3)[chosen]
                session = ControlSession(Follows(policy, 1), self.guards)
                assert figures(expected(run, policy)) == pytest.approx(replay(env, session, episode, 0), abs=1e-12)

    @pytest.mark.parametrize("model", MODELS, ids=named)
    def test_random_ones_agree_within_their_error(self, runs, model):
        env = ReplayEnv(runs, SPEC, reward=PRICES, intervention=model)
        rng = np.random.default_rng(2)
        for episode, run in enumerate(lattices(runs, PRICES, self.guards, model)):
            assert run is not None
            policy = random_policy(run, rng, sharp=3.0)
            session = ControlSession(Follows(policy, 1, rng), self.guards)
            played = np.array([replay(env, session, episode, seed) for seed in range(400)])
            error = played.std(axis=0) / 20
            assert (np.abs(figures(expected(run, policy)) - played.mean(axis=0)) <= 4.5 * error + 1e-9).all()


class Chooser(Thresholded):
    """A `Thresholded` whose probabilities do not matter here."""

    kind = "chooser"

    def __init__(self, threshold, intervene_threshold):
        self.threshold, self.intervene_threshold = threshold, intervene_threshold

    def probabilities(self, features):
        raise NotImplementedError


PROBABILITIES = st.one_of(
    st.sampled_from([(1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)]),
    st.tuples(*[st.floats(0, 1)] * 3)
    .filter(lambda cell: sum(cell) > 1e-3)
    .map(lambda cell: tuple(np.array(cell) / sum(cell))),
)
LEGAL = st.tuples(*[st.booleans()] * 3).filter(any)
LEVEL = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.0 + 1e-9]), st.floats(0, 1))


class TestByThresholds:
    @given(PROBABILITIES, LEGAL, LEVEL, LEVEL)
    @example((0, 0, 1.0), (True, True, True), 1.0 + 1e-9, 0.5)  # sure of stopping, and never allowed to: it goes on
    def test_it_chooses_as_the_controllers_do(self, raw, legal, stop, nudge):
        allowed = np.array(legal)
        probabilities = mask(np.array(raw), allowed)
        given_ = probabilities[None, None, None]
        [found] = by_thresholds(given_, allowed[None, None, None], np.array([stop]), np.array([nudge]))
        chosen = Action(int(found[0, 0, 0].argmax()))
        assert found.sum() == 1
        if not allowed[CONTINUE] and allowed[INTERVENE]:
            return  # no guards leave this: who may intervene may go on
        assert chosen is Chooser(stop, nudge).choose(probabilities, allowed)
        assert chosen is choose_by_thresholds(probabilities, allowed, stop, nudge)
        assert allowed[chosen]

    def test_many_thresholds_at_once(self, table):
        rng = np.random.default_rng(4)
        run = the_lattice(table, Noop())
        policy = random_policy(run, rng)
        stops, nudges = rng.random(5), rng.random(5)
        found = by_thresholds(policy, run.legal, stops, nudges)
        assert found.shape == (5, *run.legal.shape)
        for number, place in itertools.product(range(5), np.ndindex(run.shape)):
            controller = Chooser(stops[number], nudges[number])
            action = controller.choose(policy[place], run.legal[place])
            assert found[(number, *place)].argmax() == action


class TestMasks:
    @given(PROBABILITIES, LEGAL)
    def test_as_the_controllers_mask(self, raw, legal):
        allowed = np.array(legal)
        found = masked(np.array(raw)[None, None], allowed[None, None, None])
        assert found[0, 0, 0] == pytest.approx(mask(np.array(raw), allowed))

    def test_limits_are_the_guards(self):
        guards = Guards(min_steps=2, max_steps=4, cooldown=2, max_interventions=1)
        found = limits(5, guards, True)
        assert found.shape == (5, 2, 3, 3)
        assert found[0, 0, 0].tolist() == [True, True, False]  # no stop before the second search
        assert found[1, 0, 0].tolist() == [True, True, True]
        assert found[1, 0, 1].tolist() == [True, False, True]  # not rested
        assert found[1, 1, 0].tolist() == [True, False, True]  # used up
        assert (found[3:] == [False, False, True]).all()  # from the fourth on it must stop
        assert limits(2, guards, False).shape == (2, 1, 1, 3)
        assert not limits(2, guards, False)[..., INTERVENE].any()

    def test_cooldown_counts_as_in_a_session(self):
        """c falls by one a search step, and where it is 0 the session allows another intervention."""
        guards = Guards(cooldown=2, max_interventions=3)
        legal = limits(6, guards, True)
        left, since = 2, 1
        for t in range(2, 6):
            assert (legal[t - 1, 1, left] == guards.legal(t, 1, since, can_intervene=True)).all()
            left, since = max(left - 1, 0), since + 1


class TestMeans:
    @given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    def test_every_question_counts_once(self, questions):
        weights = question_weights(np.array(questions))
        assert weights.sum() == pytest.approx(1)
        for question in set(questions):
            mine = np.array(questions) == question
            assert weights[mine].sum() == pytest.approx(1 / len(set(questions)))
            assert len(set(weights[mine])) == 1
