import math

import numpy as np
import pytest

import stopwise.runtime
from stopwise.controllers.base import Controller, certain
from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.oracle import Oracle
from stopwise.controllers.package import PolicyPackage, write_package
from stopwise.controllers.raac import Raac
from stopwise.controllers.session import ControlSession
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action, Criterion, Document, Logprobs, Step
from stopwise.runtime.monitor import Monitor, as_documents
from stopwise.runtime.policy import Policy
from stopwise.signals.calibration import Calibration
from stopwise.signals.compute import compute_table
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig

LINE = Calibration(0.3, 0.5, 0.2, 40)


def logistic(signals):
    spec, rng = FeatureSpec(tuple(signals)), np.random.default_rng(0)
    columns = 2 * len(spec)
    weights = {"mean": np.zeros(columns), "scale": np.ones(columns), "coef": rng.normal(size=(3, columns)) / 10}
    return Logistic(spec, weights | {"intercept": np.array([1.0, -1.0, 0.0])}, 0.4)


def info(encoder=None, signals=("Nov",)):
    lines = (("agent", "logged", LINE),)
    return SignalInfo(SignalConfig(signals=tuple(signals)), encoder, lines, None)


def policy_of(controller, encoder=None, guards=Guards(), signals=("Nov",)):
    package = PolicyPackage("policy", controller, guards, info(encoder.id if encoder else None, signals))
    return Policy(package, encoder=encoder)


ALL = ("SE", "SE_norm", "RE", "residual", "residual_z", "Nov", "Cov", "Div", "Sim", "coverage_gain", "content_novelty",
       "redundancy", "query_repetition", "steps_since_new", "score_top", "score_gap")  # fmt: skip


@pytest.mark.parametrize(
    "controller",
    [NeverStop(), FixedBudget(3), Random(0.2, 0.2), Heuristic(window=2), DsMcm(1.0), logistic(ALL), logistic(())],
    ids=lambda controller: controller.kind,
)
def test_the_monitor_decides_as_the_batch_path_does(controller, logs, encoder, tmp_path):
    """Signals anew in a loaded package, step by step, against a session over the rows of a table."""
    config = SignalConfig(signals=ALL)
    calibrations = {("agent", "logged"): LINE}
    table = compute_table(
        lambda: logs, config, encoder, fit_se_cut=False, fit_coverage=False, calibrations=calibrations
    )
    guards = Guards(min_steps=2, max_steps=6, cooldown=1, max_interventions=2)
    write_package(tmp_path / "policy", PolicyPackage("policy", controller, guards, table.info))
    policy = stopwise.runtime.load(tmp_path / "policy", encoder=encoder)
    session = ControlSession(controller, guards)
    decided = 0
    for number, run in enumerate(logs):
        monitor = policy.monitor(run.question, run.criteria, agent=run.agent, seed=number)
        session.begin(seed=number)
        rows = iter(range(table.offsets[number], table.offsets[number + 1]))
        for step in run.steps:
            advice = monitor.observe_step(step)
            if step.kind != "search":
                assert advice is None
                continue
            row = table.row(next(rows))
            expected = session.decide(row)
            assert advice is not None
            assert (advice.action, advice.probabilities) == (expected.action, expected.probabilities)
            assert (advice.t, advice.message, advice.proposed) == (row.t, expected.message, expected.action)
            assert advice.signals == {name: row.values[name] for name in row.values if name in controller.reads}
            assert advice.nulls == {name: row.nulls[name] for name in row.nulls if name in controller.reads}
            decided += 1
        assert monitor.failures == []
        assert monitor.counts.interventions == session.counts.interventions
        assert next(rows, None) is None
    assert decided == len(table.values) > 80


def test_documents_are_texts_mappings_or_records():
    monitor = policy_of(Heuristic()).monitor("who?")
    same = [
        "Ada Brook was born in Lenn.",
        {"text": "Ada Brook was  born in Lenn."},
        {"id": "d2", "text": "x", "title": "T", "score": 1, "rank": 1, "url": None},
        Document("d2"),
    ]
    assert monitor.observe("who", same).signals["Nov"] == 1
    assert monitor.observe("who", [*same, {"url": "https://x.org/a"}]).signals["Nov"] == pytest.approx(1 / 3)
    assert monitor.observe(["who", "else"], []).nulls["Nov"] == "no documents"
    assert monitor.observe(error="timeout").nulls["Nov"] == "no documents"
    assert monitor.observe(documents=("new",)).signals["Nov"] == 1
    first, second, *_ = as_documents(same)
    assert first.id == second.id  # named by content; spaces do not count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"documents": "a text"}, "documents: str; expected a list"),
        ({"documents": {"text": "x"}}, "documents: dict; expected a list"),
        ({"documents": None}, "documents: NoneType; expected a list"),
        ({"documents": [3]}, r"documents\[0\]: int; expected a text, a mapping or a Document"),
        ({"documents": ["x", {"txt": "y"}]}, r"documents\[1\]: key 'txt'; expected some of id, text"),
        ({"documents": [{}]}, "neither id, url, title nor text"),
        ({"documents": [{"score": 1.0}]}, "neither id, url, title nor text"),
        ({"documents": [{"text": 3}]}, r"documents\[0\]: text is int; expected a text"),
        ({"documents": [{"id": "d", "score": "high"}]}, r"documents\[0\]: score is str; expected a number"),
        ({"queries": 3}, "queries: int; expected a list"),
        ({"queries": [None]}, r"queries\[0\]: NoneType; expected a text"),
        ({"thought": ["x"]}, "thought: list; expected a text"),
        ({"error": 404}, "error: int; expected a text"),
        ({"logprobs": [0.1, 0.2]}, "logprobs: .*expected for each position"),
        ({"logprobs": "x"}, "logprobs"),
    ],
)
def test_wrong_arguments_are_named_even_when_failing_open(arguments, message):
    with pytest.raises(UsageError, match=message):
        policy_of(NeverStop()).monitor("who?", fail_open=True).observe(**arguments)


def test_opened_pages_count_from_the_next_search_on():
    monitor = policy_of(Heuristic()).monitor("who?")
    monitor.observe("who", [{"id": "a"}])
    monitor.opened([{"id": "b"}])
    advice = monitor.observe("who", [{"id": "b"}, {"id": "c"}])
    assert (advice.signals["Nov"], advice.t) == (0.5, 2)
    assert monitor.counts.decisions == 2
    with pytest.raises(UsageError, match=r"call observe\(\)"):
        monitor.opened([{"id": "d"}], kind="search")


def test_logprobs_make_reasoning_entropy():
    monitor = policy_of(logistic(["RE"]), signals=["RE"]).monitor("who?", fail_open=False)
    even = [[math.log(0.5), math.log(0.5)], [math.log(0.25), math.log(0.25)]]  # renormalised: both are even
    assert monitor.observe("who", ["x"], logprobs=even).signals["RE"] == pytest.approx(math.log(2))
    assert monitor.observe("who", ["x"], logprobs=Logprobs(entropies=(0.5, 1.5))).signals["RE"] == 1.0
    assert monitor.observe("who", ["x"]).nulls["RE"] == "no logprobs"


def test_criteria_are_texts_or_records(encoder):
    policy = policy_of(logistic(["Cov"]), encoder, signals=["Cov"])
    for criteria in (["tarn mill"], [Criterion("tarn mill")]):
        monitor = policy.monitor("who?", criteria, fail_open=False)
        assert monitor.observe("who", ["bridge"]).signals["Cov"] == 0
        assert monitor.observe("who", ["tarn mill"]).signals["Cov"] == 1
    assert policy.monitor("who?").observe("who", ["x"]).nulls["Cov"] == "no criteria"
    with pytest.raises(UsageError, match="expected a list of texts"):
        policy.monitor("who?", "tarn mill")


def test_another_encoder_is_refused(encoder):
    package = PolicyPackage("mine", logistic(["Sim"]), Guards(), info("other@123", ["Sim"]))
    with pytest.raises(DataError, match="mine: was trained with encoder other@123, found bag-of-words"):
        Policy(package, encoder=encoder)


def test_embeddings_without_a_named_encoder_are_refused():
    policy = policy_of(logistic(["Sim"]), signals=["Sim"])
    assert policy.needs_encoder
    with pytest.raises(DataError, match="names no encoder"):
        policy.monitor("who?")


def test_no_encoder_is_loaded_when_none_is_needed():
    policy = policy_of(logistic(["Nov", "RE", "score_top"]), signals=["Nov", "RE", "score_top", "Sim"])
    assert not policy.needs_encoder
    assert policy.encoder is None
    # a residual is made of SE, and that of embeddings
    assert policy_of(DsMcm(), signals=["residual_z"]).needs_encoder


def test_an_optional_signal_is_read_live_only_if_it_was_there_in_training():
    """Else thresholds that were chosen without it would meet it for the first time in the agent."""
    assert policy_of(Heuristic(), signals=["Nov", "RE", "steps_since_new"]).signal_config.signals == ("Nov",)
    with_sim = policy_of(Heuristic(), signals=["Sim", "Nov"])
    assert with_sim.signal_config.signals == ("Nov", "Sim")
    assert with_sim.needs_encoder


def test_a_privileged_controller_is_no_policy():
    with pytest.raises(UsageError, match="needs hindsight"):
        policy_of(Oracle())


class Moody:
    """An encoder that is down at times."""

    id = "moody"
    down = False

    def encode(self, texts):
        if self.down:
            raise ConnectionError("encoder is down")
        return np.ones((len(texts), 1), dtype=np.float32)


def test_failing_signals_are_counted_and_stop_no_agent():
    encoder = Moody()
    policy = policy_of(Heuristic(window=1, nov_low=0.0), encoder, Guards(max_steps=5), signals=["Nov", "Sim"])
    monitor = policy.monitor("who?", can_intervene=False)
    encoder.down = True
    for number in range(3):
        advice = monitor.observe(f"query {number}", [f"text {number}"])
        assert (advice.action, advice.signals, advice.t) == (Action.CONTINUE, {}, number + 1)
    assert monitor.failures == ["ConnectionError: encoder is down"] * 3
    assert monitor.counts.failures == 0  # the controller did not fail
    encoder.down = False
    assert monitor.observe("query 3", ["text 3"]).signals["Sim"] == 1
    encoder.down = True
    assert monitor.observe("query 4", ["text 4"]).action is Action.STOP  # the guards hold
    encoder.down = False
    monitor = policy.monitor("who?", fail_open=False)
    encoder.down = True
    with pytest.raises(ConnectionError):
        monitor.observe("query 5", ["x"])


def test_a_failing_controller_is_counted_too():
    class Broken(Controller):
        kind = "broken"

        @property
        def params(self):
            return {}

        def distribution(self, observation):
            if observation.row.t == 2:
                raise RuntimeError("no answer")
            return certain(Action.STOP), "enough"

    monitor = policy_of(Broken()).monitor("who?", mode="monitor")
    first, second = monitor.observe("a", ["x"]), monitor.observe("b", ["y"])
    assert (first.action, first.proposed, first.message) == (Action.CONTINUE, Action.STOP, "enough")
    assert (second.action, second.proposed) == (Action.CONTINUE, Action.CONTINUE)
    assert monitor.counts.failures == 1
    strict = policy_of(Broken()).monitor("who?", fail_open=False)
    strict.observe("a", ["x"])
    with pytest.raises(RuntimeError, match="no answer"):
        strict.observe("b", ["y"])


def test_monitors_of_one_policy_do_not_share_a_run():
    policy = policy_of(Heuristic(window=2))
    one, other = policy.monitor("who?", can_intervene=False), policy.monitor("who?", can_intervene=False)
    one.observe("a", ["x"])
    other.observe("a", ["x"])
    assert other.observe("a", ["x"]).t == 2
    assert one.observe("b", ["y"]).signals["Nov"] == 1
    seeds = policy_of(Random(0.5))
    draws = [[seeds.monitor("who?", seed=seed).observe("a", ["x"]).action for seed in range(20)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 2


def test_steps_that_are_no_search_bring_no_decision():
    monitor = policy_of(NeverStop()).monitor("who?")
    assert isinstance(monitor, Monitor)
    assert monitor.observe_step(Step("answer", queries=("Lenn",))) is None
    assert monitor.observe_step(Step("search", queries=("a",))) is not None


def test_what_the_package_offers():
    assert stopwise.runtime.Action is Action
    assert set(stopwise.runtime.__all__) == {"Action", "Advice", "Monitor", "Policy", "load"}


def test_texts_reach_only_controllers_that_read_them():
    shown = []

    class Reader(NeverStop):
        reads_text = True

        def distribution(self, observation):
            shown.append(observation.run)
            return super().distribution(observation)

    reader = Reader()
    monitor = policy_of(reader).monitor("who?")
    monitor.observe("first", ["a text"], thought="I look.")
    monitor.opened(["a page"])
    monitor.observe("second", ["another"])
    first, second = shown
    assert (first.question, len(first.steps)) == ("who?", 1)
    assert [step.kind for step in second.steps] == ["search", "open", "search"]
    assert second.steps[0].thought == "I look."
    reader.reads_text = False
    policy_of(reader).monitor("who?").observe("first", ["a text"])
    assert shown[-1] is None


def test_a_prompted_policy_is_given_its_model(server, client_of, tmp_path):
    server.otherwise = '{"reasoning": "Nothing new comes.", "action": "stop"}'
    write_package(tmp_path / "p", PolicyPackage("raac", Raac(), Guards(), info(signals=("Nov", "Cov", "Div", "Sim"))))
    with pytest.raises(UsageError, match="raac: asks a language model; name one under `llm`"):
        stopwise.runtime.load(tmp_path / "p")
    package = PolicyPackage("raac", Raac(signals=["Nov"]), Guards(), info(signals=("Nov",)))
    monitor = Policy(package, llm=client_of()).monitor("who?")
    advice = monitor.observe("a", ["b"])
    assert (advice.action, advice.message, advice.cost.calls) == (Action.STOP, "Nothing new comes.", 1)
    server.otherwise = {"status": 401}
    other = Policy(package, llm=client_of()).monitor("who?")
    other.observe("a", ["b"])
    assert (other.counts.failures, other.counts.failure_kinds) == (1, {"refused": 1})
