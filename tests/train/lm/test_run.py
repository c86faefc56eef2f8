"""Whole runs on the tiny model: the same twice, golden curves, collapse, what is refused, the package."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import SmallLM
from stopwise.controllers.package import read_package, write_package
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.arena.branch_store import write_branches
from stopwise.envs.arena.branching import BranchOutcome
from stopwise.envs.lattice import by_thresholds, expected, question_weights
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import write_fit
from stopwise.evaluation.rollout import rollout
from stopwise.evaluation.statistics import question_means
from stopwise.signals.features import FeatureSpec
from stopwise.train.lm.config import ExactOptions, LoraOptions, SftOptions
from stopwise.train.lm.network import restore, trainable
from stopwise.train.lm.run import learn_stages, prepare, train_lm
from stopwise.train.lm.scoring import action_logits, policies
from stopwise.train.lm.trainer import CollapseWarning, PolicyTrainer
from stopwise.train.teacher import TeacherOptions
from stopwise.train.tune import Objective, pair_on_lattices

GOLDEN = Path(__file__).parent / "golden"
METHODS = ("sft", "exact", "grpo")
pytestmark = [  # four steps of a random network may end anywhere
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.trainer.CollapseWarning"),
    pytest.mark.filterwarnings("ignore::stopwise.train.lm.grpo.NoSpreadWarning"),
]


def without_time(record):
    """A record without what differs between two runs of the same."""
    if isinstance(record, dict):
        return {name: without_time(value) for name, value in record.items() if name != "seconds"}
    return [without_time(value) for value in record] if isinstance(record, list) else record


@pytest.fixture(scope="module")
def trained(config_of, knowing, tmp_path_factory):
    """``trained("grpo")``: what came of a run by that method; each is made once."""
    made = {}

    def get(method):
        if method not in made:
            made[method] = train_lm(config_of(method=method), knowing, tmp_path_factory.mktemp(method) / "work")
        return made[method]

    return get


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    def test_the_same_seed_gives_the_same_run_twice(self, trained, config_of, knowing, tmp_path, method):
        stages, record = trained(method)
        again, twin = train_lm(config_of(method=method), knowing, tmp_path / "work")
        assert without_time(record) == without_time(twin)
        assert list(stages) == list(again) == (["sft"] if method == "sft" else ["sft", method])
        for stage in stages:
            one, other = stages[stage].arrays, again[stage].arrays
            assert all((one[name] == other[name]).all() for name in one)

    def test_golden_curve(self, trained, method):
        """Loss and return of each step; a change of these numbers needs a reason in the commit that makes it.

        ``STOPWISE_WRITE_GOLDEN=1 pytest tests/train/lm/test_run.py -k golden`` writes them anew.
        """
        stages, _ = trained(method)
        names = ("step", "loss", "return", "eval_return")
        curve = [
            {name: round(entry[name], 6) for name in names if name in entry} for entry in stages[method].result.curve
        ]
        file = GOLDEN / f"{method}.json"
        if os.environ.get("STOPWISE_WRITE_GOLDEN"):
            file.write_text(json.dumps(curve, indent=1) + "\n")
        golden = json.loads(file.read_text())
        assert [sorted(entry) for entry in curve] == [sorted(entry) for entry in golden]
        for entry, wanted in zip(curve, golden, strict=True):
            assert entry == pytest.approx(wanted, abs=2e-4, rel=2e-3)

    def test_the_curve_is_complete(self, trained, method):
        stages, _ = trained(method)
        curve = stages[method].result.curve
        assert [entry["step"] for entry in curve if "loss" in entry] == [1, 2, 3, 4]
        looks = [entry for entry in curve if "eval_return" in entry]
        assert [entry["step"] for entry in looks] == [0, 2, 4]
        kept = looks[1:] if method == "sft" else looks  # reinforcement learning may leave the weights it began with
        name = "eval_deployed" if method == "sft" else "eval_return"
        assert stages[method].result.best_return == max(entry[name] for entry in kept)
        for entry in looks:
            rates = [entry[f"eval_rate_{action.name.lower()}"] for action in Action]
            assert sum(rates) == pytest.approx(1)
        for entry in curve:
            if "loss" in entry and method != "sft":
                assert 0 <= entry["entropy"] <= np.log(3)
                assert sum(entry[f"rate_{action.name.lower()}"] for action in Action) == pytest.approx(1)
        states = [entry["state_gradients"] for entry in curve]
        assert states == sorted(states)
        assert states[-1] > 0

    def test_the_package_decides_as_the_trained_network(self, trained, config_of, knowing, fresh, tmp_path, method):
        stages, _ = trained(method)
        last = stages[method]
        write_package(tmp_path / "policy", last.package)
        controllers = [read_package(tmp_path / "policy").controller for _ in range(2)]
        network = fresh().network
        restore(network, None, last.arrays)
        prepared = prepare(config_of(method=method), knowing)
        rendering = last.package.controller.rendering
        tokens = prepared.tokens.read_by(rendering.sharpness, rendering.offsets)
        with torch.no_grad():
            wanted = action_logits(network, prepared.validation, tokens)
        runs = {episode.id: index for index, episode in enumerate(knowing.episodes)}
        env_guards = Guards(min_steps=99)
        from stopwise.controllers.session import ControlSession

        for episode, logits in list(zip(prepared.validation, wanted, strict=True))[:4]:
            both = []
            for controller in controllers:
                assert isinstance(controller, SmallLM)
                session, found = ControlSession(controller, env_guards), []
                index = runs[episode.run]
                for row in range(knowing.offsets[index], knowing.offsets[index + 1]):
                    session.decide(knowing.row(row))
                    assert controller._logits is not None
                    found.append(controller._logits)
                both.append(np.stack(found))
            assert (both[0] == both[1]).all()
            assert both[0] == pytest.approx(logits.numpy(), abs=1e-5)

    def test_thresholds_come_to_what_was_promised(self, trained, knowing, method):
        """The expected return of the chosen thresholds is that of the package in a replay of the validation runs."""
        stages, record = trained(method)
        package = stages[method].package
        part = knowing.split("val")
        outcomes = rollout(ReplayEnv(part, FeatureSpec(())), package.controller, package.guards)
        for name, figure in (("total", "return"), ("recall", "recall"), ("searches", "searches")):
            values = np.array([getattr(outcome, name) for outcome in outcomes])
            assert question_means(values, part.question_codes)[1].mean() == pytest.approx(
                record["validation"][figure], abs=1e-9
            )


class TestStart:
    def test_reinforcement_goes_on_from_a_finished_run(self, trained, config_of, knowing, tmp_path):
        stages, _ = trained("sft")
        write_package(tmp_path / "sft" / "policy", stages["sft"].package)
        config = config_of(method="exact", start=str(tmp_path / "sft"))
        found, record = train_lm(config, knowing, tmp_path / "work")
        whole, _ = trained("exact")
        assert list(found) == ["exact"]
        assert without_time(asdict(found["exact"].result)) == without_time(asdict(whole["exact"].result))
        assert list(record["stages"]) == ["exact"]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"features": ("Cov",)}, "reads rows of another form or other level edges"),
            ({"context_rows": 9}, "reads rows of another form"),
            ({"intervention": "noop"}, "reads rows of another form"),
            ({"lora": LoraOptions(rank=2)}, "its weights do not fit this run's `lora` and `base`"),
        ],
    )
    def test_a_start_of_another_form_is_refused(self, trained, config_of, knowing, tmp_path, changes, message):
        write_package(tmp_path / "sft" / "policy", trained("sft")[0]["sft"].package)
        config = config_of(method="exact", start=str(tmp_path / "sft"), **changes)
        with pytest.raises((UsageError, DataError), match=message):
            train_lm(config, knowing, tmp_path / "work")

    def test_a_start_that_is_no_small_lm_is_refused(self, config_of, knowing, tmp_path):
        from stopwise.controllers.baselines import NeverStop
        from stopwise.controllers.package import PolicyPackage

        write_package(tmp_path / "run" / "policy", PolicyPackage("n", NeverStop(), Guards(), knowing.info))
        with pytest.raises(UsageError, match="is a never_stop policy; expected a run of kind lm"):
            train_lm(config_of(method="exact", start=str(tmp_path / "run")), knowing, tmp_path / "work")


class TestRefused:
    @pytest.mark.parametrize("what", ["config", "signals"])
    def test_an_unfinished_run_of_another_kind(self, config_of, knowing, tmp_path, what):
        config = config_of(method="sft")
        work = tmp_path / "out.partial"
        work.mkdir()
        from stopwise.train.lm.run import _claim

        _claim(work, config, knowing)
        _claim(work, config, knowing)  # its own
        given = (replace(config, seed=1), knowing)
        if what == "signals":
            given = (config, replace(knowing, values=knowing.values + 1e-9))
        with pytest.raises(UsageError, match=rf"out\.partial: holds an unfinished run of another {what}; delete it"):
            train_lm(*given, work)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"base": "no/such-model"}, "model no/such-model: cannot be loaded"),
            ({"features": ()}, "signals none; expected some of"),
            ({"features": ("Nov",)}, "no column 'Nov'"),
            (
                {"sft": SftOptions(batch=6, micro_batch=4)},
                "batch 6 cannot be shared out: 1 processes with micro_batch 4",
            ),
        ],
    )
    def test_what_does_not_fit(self, config_of, knowing, tmp_path, changes, message):
        with pytest.raises((UsageError, DataError), match=message):
            train_lm(config_of(method="sft", **changes), knowing, tmp_path / "work")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"prices": (0.01, -0.1)}, "prices: -0.1; expected a number of 0 or more"),
            ({"prices": (0.01, 0.1, 0.01)}, "prices: 0.01, 0.1, 0.01; expected each once"),
            ({"runs": 1}, "runs: 1"),
            ({"intervention": "uplift"}, "needs `uplift: RUN`"),
            ({"uplift": "runs/uplift"}, "leave one of them out"),
            ({"seed": -1}, "seed: -1"),
        ],
    )
    def test_configs_that_contradict_themselves(self, config_of, changes, message):
        with pytest.raises(UsageError, match=message):
            config_of(**changes)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": 0}, "epochs: 0"),
            ({"batch": 0}, "batch: 0"),
            ({"micro_batch": 1.5}, "micro_batch: 1.5"),
            ({"learning_rate": "1e-4"}, "learning_rate: '1e-4'; expected a number"),
            ({"warmup": 2}, "warmup: 2"),
            ({"temperature": 0}, "sft.temperature: 0"),
        ],
    )
    def test_schedules(self, options, message):
        with pytest.raises(UsageError, match=message):
            SftOptions(**options)


class TestPrices:
    def test_each_run_is_learned_at_one_price_in_turn(self, config_of, knowing):
        prepared = prepare(config_of(prices=(0.01, 0.25)), knowing)
        assert len(prepared.training) == 16
        header = len(prepared.tokens.header)

        def text(episode):
            return prepared.base.tokenizer.decode(episode.parts[0].ids[:header])

        cheap = [e for e in prepared.training if "0.0100" in text(e)]
        dear = [e for e in prepared.training if "0.2500" in text(e)]
        assert len(cheap) == len(dear) == 8
        assert not {episode.run for episode in cheap} & {episode.run for episode in dear}
        assert all(episode.lattice.going_on.min() >= -0.01 for episode in cheap)
        assert any(episode.lattice.going_on.min() == -0.25 for episode in dear)

        def stopping(episodes):
            return np.mean([e.targets[..., Action.STOP].mean() for e in episodes if e.targets is not None])

        assert stopping(dear) > stopping(cheap)  # where a search is dear, the targets say stop more often

    def test_one_network_is_a_policy_at_each_price(self, config_of, knowing, tmp_path):
        stages, record = train_lm(config_of(method="sft", prices=(0.01, 0.25)), knowing, tmp_path / "work")
        last = stages["sft"]
        assert [row["price"] for row in record["frontier"]] == [0.01, 0.25]
        part = knowing.split("val")
        for row, (price, told) in zip(record["frontier"], last.at_prices.items(), strict=True):
            controller = told.package.controller
            assert isinstance(controller, SmallLM)
            assert controller.rendering.price == told.package.training["reward"]["search"] == price
            assert told.arrays is last.arrays
            outcomes = rollout(
                ReplayEnv(part, FeatureSpec(()), reward=Reward(search=price)), controller, told.package.guards
            )
            for name, figure in (("total", "value"), ("recall", "recall"), ("searches", "searches")):
                values = np.array([getattr(outcome, name) for outcome in outcomes])
                assert question_means(values, part.question_codes)[1].mean() == pytest.approx(row[figure], abs=1e-9)
        cheap, dear = record["frontier"]
        assert dear["searches"] < cheap["searches"]
        assert cheap["value"] == record["validation"]["return"]

    def test_prices_of_other_token_counts_are_refused(self, config_of, knowing, monkeypatch):
        from stopwise.train.lm import run

        load = run.load_causal_lm

        class Greedy:
            """Reads 0.0100 as one token."""

            def __init__(self, inner):
                self.inner = inner

            def encode(self, text, **options):
                return self.inner.encode(text.replace("0.0100", "x"), **options)

        monkeypatch.setattr(
            run, "load_causal_lm", lambda name: replace(load(name), tokenizer=Greedy(load(name).tokenizer))
        )
        with pytest.raises(UsageError, match=r"prices: 0\.25 takes \d+ tokens of tiny-random in the header"):
            prepare(config_of(prices=(0.01, 0.25)), knowing)


class TestCollapse:
    @pytest.mark.filterwarnings("default::stopwise.train.lm.trainer.CollapseWarning")
    def test_it_is_said(self, fresh, config_of, knowing, tmp_path):
        from trl.trainer.sft_config import SFTConfig

        from stopwise.train.lm.stages import shared_arguments

        config = config_of()
        prepared = prepare(config, knowing)
        base = prepared.base
        arguments = SFTConfig(
            **shared_arguments(ExactOptions(batch=4), config, tmp_path, 4),
            dataset_kwargs={"skip_prepare_dataset": True},
        )

        def never_stops(network, episodes, tokens, trunk):
            for episode in episodes:
                policy = np.zeros(episode.lattice.legal.shape)
                policy[..., Action.CONTINUE] = 1
                yield policy

        trainer = PolicyTrainer(
            base.network,
            arguments,
            prepared.tokens,
            base.tokenizer,
            prepared.training[:4],
            prepared.curve_on,
            ExactOptions(batch=4),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stopwise.train.lm.trainer.policies", never_stops)
            with pytest.warns(CollapseWarning, match="the policy says continue at 100.0% of its decisions"):
                metrics = trainer.evaluate()
        assert metrics["eval_collapsed"] == 1.0
        assert metrics["eval_rate_continue"] == 1.0


class TestThresholds:
    def test_the_best_pair_is_found(self, config_of, knowing):
        """Against every pair of candidates one by one, through `by_thresholds`."""
        prepared = prepare(config_of(intervention="noop", guards=Guards(max_interventions=1)), knowing)
        episodes = prepared.validation
        rng = np.random.default_rng(0)
        from stopwise.envs.lattice import masked

        found = [masked(rng.dirichlet(np.ones(3), size=e.lattice.shape[:2]), e.lattice.legal) for e in episodes]
        questions = {name: number for number, name in enumerate(dict.fromkeys(e.question for e in episodes))}
        weights = question_weights(np.array([questions[e.question] for e in episodes]))
        runs = [episode.lattice for episode in episodes]
        chosen = pair_on_lattices(runs, found, weights, prepared.full_recall, Objective())

        def value(stop, nudge):
            made = [
                by_thresholds(p, run.legal, np.array([stop]), np.array([nudge]))
                for p, run in zip(found, runs, strict=True)
            ]
            return sum(w * float(expected(run, p).value[0]) for w, run, p in zip(weights, runs, made, strict=True))

        assert value(chosen.threshold, chosen.intervene_threshold) == pytest.approx(chosen.value)
        tried = [value(stop, nudge) for stop in (0, 0.3, 0.6, 0.9, 2) for nudge in (0.3, 0.7, 2)]
        assert chosen.value >= max(tried) - 0.01


class TestLora:
    def test_an_adapter_learns_and_the_base_stays(self, config_of, knowing, fresh, tmp_path):
        config = config_of(method="sft", lora=LoraOptions(rank=2))
        stages, record = train_lm(config, knowing, tmp_path / "work")
        arrays = stages["sft"].arrays
        assert len(arrays) == 2 * 2 * 2  # two layers, the default two modules, two matrices
        assert max(float(abs(array).max()) for name, array in arrays.items() if name.endswith("B")) > 0
        assert record["parameters"]["trained"] < record["parameters"]["all"] / 4
        network = trainable(fresh(), LoraOptions(rank=2), seed=0)
        restore(network, LoraOptions(rank=2), arrays)
        prepared = prepare(config, knowing)
        with torch.no_grad():
            wanted = action_logits(network, prepared.validation[:3], prepared.tokens)
        controller = stages["sft"].package.controller
        assert isinstance(controller, SmallLM)
        controller.prepare()
        with torch.no_grad():
            served = action_logits(controller.network, prepared.validation[:3], prepared.tokens)
        for one, other in zip(wanted, served, strict=True):
            assert one.numpy() == pytest.approx(other.numpy(), abs=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "bf16_matmul"])
def test_thresholds_are_chosen_in_the_precision_that_decides(config_of, knowing, tmp_path, monkeypatch, precision):
    """Training in another one leaves nothing behind: neither kept hidden states nor torch's setting."""
    seen = []

    def watched(*given):
        seen.append(list(policies(*given)))
        return seen[-1]

    monkeypatch.setattr("stopwise.train.lm.run.policies", watched)
    lora = LoraOptions(rank=2, layers=1)
    config = config_of(method="sft", precision=precision, lora=lora, validation_runs=None)
    stages, _ = train_lm(config, knowing, tmp_path / "work")
    prepared = prepare(config, knowing)
    controller = stages["sft"].package.controller
    assert isinstance(controller, SmallLM)
    controller.prepare()
    for used, own in zip(seen[0], policies(controller.network, prepared.validation, prepared.tokens), strict=True):
        assert used == pytest.approx(own, abs=1e-6)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_teacher_labels_every_state(config_of, knowing):
    """Of one intervention at most: where it is used up, its share goes to the others; all states weigh alike."""
    options = {"method": "sft", "runs": None, "intervention": "noop", "guards": Guards(max_interventions=1)}
    options |= {"sft": SftOptions(labels="teacher"), "teacher": TeacherOptions(rounds=20, min_leaf=10, rate=0.2)}
    found = prepare(config_of(**options), knowing).training
    stops = {0.0: [], 1.0: []}  # by Cov, which is 1 where nothing more is found
    column = knowing.column("Cov")
    for episode in found:
        index = next(number for number, one in enumerate(knowing.episodes) if one.id == episode.run)
        cov = column[knowing.offsets[index] : knowing.offsets[index + 1]]
        assert episode.targets is not None
        assert episode.weights is not None
        assert episode.targets.sum(axis=-1) == pytest.approx(np.ones(episode.weights.shape))
        assert (episode.weights == 1).all()
        assert (episode.targets[:, 1, Action.INTERVENE] == 0).all()
        for value, shares in zip(cov, episode.targets[:, 1], strict=True):
            stops[float(value)].append(shares[Action.STOP])
    assert np.mean(stops[1.0]) > 0.8
    assert np.mean(stops[0.0]) < 0.2


class TestBranches:
    @pytest.fixture
    def uplift(self, uplift_of, tmp_path):
        """File of an uplift that works every other time."""
        path = tmp_path / "uplift.json"
        write_fit(path, uplift_of(0.5).fit)
        return str(path)

    def test_what_was_tried_is_imitated_where_it_was_tried(self, config_of, knowing, uplift, tmp_path):
        """By hand: .3 gained for 3 searches is .27, .5 for one is .49 less the intervention, stopping is 0."""
        training = knowing.split("train")
        reward = Reward(recall=1.0, search=0.01, intervention=0.04)
        first = training.episodes[0]
        before = float(training.label("recall")[1])
        outcomes = [
            BranchOutcome(first.id, first.question_id, "x", 2, action, 0, before, gain, searches, None, 0.1)
            for action, gain, searches in (
                (Action.CONTINUE, 0.3, 3),
                (Action.INTERVENE, 0.5, 1),
                (Action.STOP, 0.0, 0),
            )
        ]
        path = tmp_path / "branches.parquet"
        write_branches(path, outcomes)
        options = {"method": "sft", "reward": reward, "intervention": "uplift", "uplift": uplift, "runs": None}
        options["guards"] = Guards(max_interventions=1)
        plain, taught = (
            {episode.run: episode for episode in prepare(config_of(**options, branches=file), knowing).training}
            for file in (None, str(path))
        )
        found = taught[first.id]
        assert found.targets is not None
        without = plain[first.id].targets
        assert without is not None
        wanted = np.array([0.27, 0.45, 0.0])
        assert found.targets[1, 0] == pytest.approx(wanted / wanted.sum())
        assert found.targets[1, 1] == pytest.approx([1.0, 0.0, 0.0])  # no intervention is left
        assert found.targets[0] == pytest.approx(without[0])  # the state before was not branched
        other = training.episodes[1].id
        assert taught[other].targets == pytest.approx(plain[other].targets)

    def test_an_unfinished_run_is_of_one_file_of_branches(self, config_of, knowing, uplift, tmp_path):
        """By what it holds, not by its name: its Q is in the weights so far."""
        path = tmp_path / "branches.parquet"
        config = config_of(method="sft", intervention="uplift", uplift=uplift, branches=str(path))
        first = knowing.split("train").episodes[0]
        before = float(knowing.split("train").label("recall")[1])

        def write(gain):
            made = [
                BranchOutcome(first.id, first.question_id, "x", 2, action, 0, before, gain, 1, None, 0.1)
                for action in Action
            ]
            write_branches(path, made)

        write(0.3)
        learn_stages(config, knowing, prepare(config, knowing), tmp_path / "work")
        learn_stages(config, knowing, prepare(config, knowing), tmp_path / "work")
        write(0.2)
        with pytest.raises(UsageError, match="holds an unfinished run of another branches"):
            learn_stages(config, knowing, prepare(config, knowing), tmp_path / "work")

    def test_they_are_for_uplift_and_for_imitation(self, config_of, uplift):
        with pytest.raises(UsageError, match="branches: are for intervention uplift, found forbidden"):
            config_of(branches="x.parquet")
        with pytest.raises(UsageError, match="branches: are for the supervised stage, and this run has none"):
            config_of(branches="x.parquet", intervention="uplift", uplift=uplift, start="runs/lm")

    def test_branches_of_other_runs_are_refused(self, config_of, knowing, uplift, tmp_path):
        path = tmp_path / "branches.parquet"
        write_branches(path, [BranchOutcome("r", "q", "x", 1, action, 0, 0.0, 0.0, 0, None, 0.1) for action in Action])
        with pytest.raises(DataError, match="none of 1 branched states is in the signal table"):
            prepare(config_of(intervention="uplift", uplift=uplift, branches=str(path)), knowing)
