import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from stopwise.controllers.baselines import Random
from stopwise.controllers.guards import Guards
from stopwise.data.errors import DataError
from stopwise.data.records import Action, Document, Step, Trajectory
from stopwise.envs.arena.agents import Turn
from stopwise.envs.arena.branching import BranchOutcome
from stopwise.envs.arena.loop import Injection
from stopwise.envs.logged import Logged
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.retrieve import Retrieve
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, UpliftFit, read_fit, write_fit
from stopwise.evaluation.rollout import rollout
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalConfig
from stopwise.train.uplift import UpliftOptions, fit_uplift

CONTINUE, INTERVENE, STOP = Action
PRICES = Reward(recall=1.0, correct=2.0, search=0.125, intervention=0.25)
SPEC = FeatureSpec(("Nov",))


def constant(probability):
    """An uplift of the same probability everywhere."""
    size = 2 * len(SPEC)
    intercept = (
        math.log(probability / (1 - probability)) if 0 < probability < 1 else math.copysign(99, probability - 0.5)
    )
    return Uplift(UpliftFit(SPEC, np.zeros(size), np.ones(size), np.zeros(size), intercept, 100, 50, 2))


@pytest.fixture
def table(run_of, table_of):
    nov = {"Nov": [1.0, 0.5, 0.0, 0.5, 0.0]}
    return table_of([run_of([0.25, 0.25, 0.25, 0.75, 0.75], id="a", signals=nov, correct=1.0)])


class TestUplift:
    def test_a_sure_uplift_jumps_to_the_next_productive_step(self, table):
        env = ReplayEnv(table, SPEC, reward=PRICES, intervention=constant(1))
        env.reset(options={"episode": 0})
        _, reward, terminated, _, info = env.step(INTERVENE)
        assert reward == 0.5 - 0.125 - 0.25  # the gain of step 4, for one search and one intervention
        assert (info["t"], info["searches"], info["interventions"], terminated) == (4, 2, 1, False)
        _, reward, _, _, info = env.step(INTERVENE)  # nothing is left to find: it stays
        assert (reward, info["t"], info["searches"]) == (-0.125 - 0.25, 4, 3)

    def test_a_hopeless_one_only_costs(self, table):
        env = ReplayEnv(table, SPEC, reward=PRICES, intervention=constant(0))
        env.reset(options={"episode": 0})
        _, reward, _, _, info = env.step(INTERVENE)
        assert (reward, info["t"], info["searches"]) == (-0.375, 1, 2)

    def test_it_jumps_as_often_as_its_probability_says(self, table):
        env = ReplayEnv(table, SPEC, intervention=constant(0.3))
        jumps = 0
        for seed in range(2000):
            env.reset(seed=seed, options={"episode": 0})
            jumps += env.step(INTERVENE)[4]["t"] == 4
        assert jumps / 2000 == pytest.approx(0.3, abs=4 * math.sqrt(0.3 * 0.7 / 2000))

    def test_no_policy_gains_more_than_the_log_held(self, table):
        env = ReplayEnv(table, SPEC, intervention=constant(0.7))
        runs = [rollout(env, Random(0.1, 0.5), Guards(cooldown=0), seed=seed)[0] for seed in range(50)]
        assert max(run.recall for run in runs) <= 0.75
        assert len({run.searches for run in runs}) > 3

    @pytest.mark.filterwarnings("ignore:.*Box observation space (m..imum|maximum|minimum).*infinity.*")
    def test_gymnasium_accepts_it(self, table):
        check_env(ReplayEnv(table, SPEC, intervention=constant(0.5)), skip_render_check=True)

    def test_the_fit_finds_what_tells_productive_interventions(self, run_of, table_of, questions_of, tmp_path):
        # an intervention after Nov = 1 is productive, after Nov = 0 it is not
        runs = []
        for number, question in enumerate(questions_of("train", 120)):
            good = number % 2 == 0
            recall = [0.0, 0.5, 0.5] if good else [0.0, 0.0, 0.0]
            episode, rows, labels = run_of(recall, question=question, signals={"Nov": [float(good), 0.5, 0.5]})
            labels[0, -2] = INTERVENE
            runs.append((episode, rows, labels))
        table = table_of(runs)
        fit = fit_uplift(table, SPEC, UpliftOptions(horizon=1, C=10.0))
        assert (fit.interventions, fit.productive) == (120, 60)
        features = ReplayEnv(table, SPEC)._log.features[table.offsets[:2]]
        high, low = fit.probability(features)
        assert high > 0.9
        assert low < 0.1
        write_fit(tmp_path / "uplift.json", fit)
        assert read_fit(tmp_path / "uplift.json").probability(features).tolist() == [high, low]

    def test_too_few_interventions_are_refused(self, table):
        with pytest.raises(DataError, match="0 interventions on training questions"):
            fit_uplift(table, SPEC)

    def test_another_file_is_no_fit(self, tmp_path):
        (tmp_path / "x.json").write_text('{"kind": "tea"}')
        with pytest.raises(DataError, match="is no uplift fit"):
            read_fit(tmp_path / "x.json")


class TestLogged:
    @pytest.fixture
    def env(self, table):
        def outcome(action, rollout, gain, searches, correct):
            return BranchOutcome("a", "q0", "x", 2, action, rollout, 0.25, gain, searches, correct, 0.5)

        branches = [
            outcome(INTERVENE, 0, 0.5, 4, True),
            outcome(INTERVENE, 1, 0.25, 2, False),
            outcome(CONTINUE, 0, 0.0, 1, False),
        ]
        return ReplayEnv(table, SPEC, reward=PRICES, intervention=Logged(branches))

    def test_a_branched_state_ends_as_its_rollouts_did(self, env):
        env.reset(options={"episode": 0})
        _, _, _, _, info = env.step(INTERVENE)  # at t = 1 there is no branch: carried out as continue
        assert (info["action"], info["t"], info["action_mask"].tolist()) == (CONTINUE, 2, [1, 1, 1])
        _, reward, terminated, _, info = env.step(INTERVENE)
        assert reward == 0.375 - 3 * 0.125 - 0.25 + 2 * 0.5  # means of gain, searches and correctness
        assert (terminated, info["ended_by"], info["searches"]) == (True, "branch", 5)
        assert (env.end.recall, env.end.correct) == (0.625, 0.5)

    def test_controllers_are_told_where_it_is_possible(self, env):
        (run,) = rollout(env, Random(0.0, 1.0), Guards(cooldown=0))
        assert (run.interventions, run.searches, run.recall) == (1, 5, 0.625)

    def test_branches_without_interventions_are_refused(self):
        with pytest.raises(DataError, match="no branch with an intervention"):
            Logged([])


class TestRetrieve:
    """A run of three searches; the rethinker's query finds the gold document that the agent never found."""

    @pytest.fixture
    def run(self):
        found = [("a", "b"), ("b", "g"), ("g", "h")]
        steps = [Step("search", queries=(f"q{t}",), documents=tuple(map(Document, ids))) for t, ids in enumerate(found)]
        steps.insert(1, Step("open", documents=(Document("c"),)))
        return Trajectory(
            "run", "q0", "who?", tuple(steps), correct=True, gold_ids=("g", "hidden"), ended_by="answer", answer="x"
        )

    @pytest.fixture
    def env(self, run):
        class Shelf:
            id = "shelf"

            def search(self, queries, k):
                assert queries == ("look there",)
                return [(Document("hidden"), Document("b"), Document("g"))][:k]

        class Hint:
            id = "hint"

            def propose(self, question, steps, run_id):
                assert (question.text, len(steps), run_id) == ("who?", 1, "run")
                return Injection(Turn("search", "Stuck.", ("look there",)))

        table = compute_table(lambda: [run], SignalConfig(signals=("Nov",)), None)
        return ReplayEnv(table, SPEC, reward=PRICES, intervention=Retrieve([run], Shelf(), Hint(), None))

    def test_the_injected_search_is_observed_and_charged(self, env):
        env.reset(options={"episode": 0})
        _, reward, _, _, info = env.step(INTERVENE)
        assert reward == 1.0 - 0.125 - 0.25  # both gold documents at once
        assert (info["t"], info["searches"]) == (2, 2)
        assert env.signal_row.values == {"Nov": pytest.approx(2 / 3)}  # b was seen; c is opened only afterwards

    def test_then_the_log_resumes_with_novelty_recomputed(self, env):
        env.reset(options={"episode": 0})
        env.step(INTERVENE)
        _, reward, _, _, info = env.step(CONTINUE)
        assert (env.signal_row.values["Nov"], info["t"]) == (0.0, 3)  # b and g: in the plain log g was new
        assert reward == -0.125
        env.step(CONTINUE)
        assert env.signal_row.values["Nov"] == 0.5
        _, reward, terminated, _, info = env.step(CONTINUE)
        assert (reward, terminated, info["ended_by"], info["searches"]) == (2.0, True, "answer", 4)
        assert env.end.recall == 1.0

    def test_the_next_episode_is_the_plain_log_again(self, env):
        env.reset(options={"episode": 0})
        env.step(INTERVENE)
        env.reset(options={"episode": 0})
        env.step(CONTINUE)
        assert env.signal_row.values["Nov"] == 0.5  # b was seen, g is new

    def test_logs_of_another_table_are_refused(self, env):
        env.intervention._logs.clear()
        env.reset(options={"episode": 0})
        with pytest.raises(DataError, match="have no run 'run'"):
            env.step(INTERVENE)
