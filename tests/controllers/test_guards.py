import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.controllers.base import Controller, certain
from stopwise.controllers.baselines import NeverStop, Random
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.session import ControlSession
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalRow

CONTINUE, INTERVENE, STOP = Action


class Always(Controller):
    """Wants one action, whatever it sees."""

    kind = "always"

    @property
    def params(self):
        return {}

    def __init__(self, action):
        self.action = action

    def distribution(self, observation):
        return certain(self.action), None


class Broken(Controller):
    """Fails at some steps."""

    kind = "broken"

    @property
    def params(self):
        return {}

    def __init__(self, *at):
        self.at = at

    def distribution(self, observation):
        if observation.row.t in self.at:
            raise RuntimeError("no answer")
        return certain(STOP), "enough"


def rows(count):
    return [SignalRow(t, {"Nov": 0.0, "residual_z": 5.0, "Sim": 0.0}, {}) for t in range(1, count + 1)]


def actions(session, count):
    return [int(session.decide(row).action) for row in rows(count)]


def test_no_stop_before_min_steps_and_nothing_else_from_max_steps_on():
    assert actions(ControlSession(Always(STOP), Guards(min_steps=3)), 4) == [0, 0, 2, 2]
    assert actions(ControlSession(Always(CONTINUE), Guards(max_steps=3)), 4) == [0, 0, 2, 2]
    assert actions(ControlSession(Always(INTERVENE), Guards(max_steps=1)), 2) == [2, 2]


def test_the_cooldown_is_that_many_steps_without_another_intervention():
    assert actions(ControlSession(Always(INTERVENE), Guards(cooldown=3)), 9) == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert actions(ControlSession(Always(INTERVENE), Guards(cooldown=0)), 3) == [1, 1, 1]


def test_interventions_run_out():
    session = ControlSession(Always(INTERVENE), Guards(cooldown=0, max_interventions=2))
    assert actions(session, 4) == [1, 1, 0, 0]
    assert session.counts.interventions == 2
    assert actions(ControlSession(Always(INTERVENE), Guards(max_interventions=0)), 3) == [0, 0, 0]


def test_nothing_intervenes_where_interventions_have_no_outcome():
    assert actions(ControlSession(Always(INTERVENE), can_intervene=False), 3) == [0, 0, 0]


def test_begin_forgets_the_last_run():
    session = ControlSession(Always(INTERVENE), Guards(cooldown=5))
    assert actions(session, 2) == [1, 0]
    session.begin()
    assert session.counts.decisions == 0
    assert actions(session, 2) == [1, 0]


@pytest.mark.parametrize(
    "limits", [{"min_steps": 0}, {"min_steps": 5, "max_steps": 4}, {"cooldown": -1}, {"max_interventions": -1}]
)
def test_impossible_guards_are_refused(limits):
    with pytest.raises(UsageError, match="guards"):
        Guards(**limits)


def weights(spec, seed):
    columns, rng = 2 * len(spec), np.random.default_rng(seed)
    return {
        "mean": rng.normal(size=columns),
        "scale": rng.uniform(0.5, 2, columns),
        "coef": rng.normal(size=(3, columns)),
        "intercept": rng.normal(size=3),
    }


SPEC = FeatureSpec(("Nov", "Sim"))
CONTROLLERS = st.one_of(
    st.builds(Always, st.sampled_from(Action)),
    st.just(NeverStop()),
    st.builds(Heuristic, window=st.integers(1, 3), patience=st.integers(0, 3)),
    st.builds(DsMcm, on_flag=st.sampled_from(["stop", "intervene"])),
    st.builds(lambda p, q: Random(p * q, p * (1 - q)), st.floats(0, 1), st.floats(0, 1)),
    st.builds(
        lambda seed, threshold: Logistic(SPEC, weights(SPEC, seed), threshold),
        st.integers(0, 99),
        st.sampled_from([0.0, 0.3, 0.5, 1.0 + 1e-9]),
    ),
)
SIGNAL = st.one_of(st.none(), st.floats(-3, 3))


@given(
    CONTROLLERS,
    st.builds(
        lambda low, more, rest, most: Guards(low, low + more, rest, most),
        st.integers(1, 4),
        st.integers(0, 8),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.booleans(),
    st.lists(st.fixed_dictionaries({name: SIGNAL for name in ("Nov", "Sim", "Div", "Cov", "residual_z")}), max_size=8),
    st.integers(0, 5),
)
def test_no_controller_ever_takes_an_illegal_action(controller, guards, can_intervene, cells, seed):
    def run():
        session = ControlSession(controller, guards, can_intervene=can_intervene)
        session.begin(seed)
        used, last, taken = 0, None, []
        for t, cell in enumerate(cells, 1):
            values = {name: value for name, value in cell.items() if value is not None}
            row = SignalRow(t, values, {name: "no documents" for name in cell if name not in values})
            legal = guards.legal(t, used, None if last is None else t - last, can_intervene=can_intervene)
            decision = session.decide(row)
            assert legal[decision.action]
            assert sum(decision.probabilities) == pytest.approx(1)
            assert all(share == 0 for share, fine in zip(decision.probabilities, legal, strict=True) if not fine)
            assert decision.probabilities[decision.action] >= 0
            if decision.action is INTERVENE:
                used, last = used + 1, t
            taken.append((decision.action, decision.probabilities))
        assert session.counts.interventions == used <= guards.max_interventions
        return taken

    assert run() == run()  # the same seed, the same decisions


@given(st.integers(0, 99), st.sampled_from([(False, True, True), (False, True, False), (True, True, False)]))
def test_a_threshold_that_is_never_reached_does_not_choose_what_is_masked(seed, legal):
    """Environments may mask continue too."""
    controller = Logistic(SPEC, weights(SPEC, seed) | {"intercept": np.array([0.0, -np.inf, 0.0])}, 1 + 1e-9)
    from stopwise.controllers.base import Observation

    observation = Observation(rows(1)[0], np.zeros(len(SPEC)), np.array(legal))
    assert legal[controller.decide(observation).action]


def test_monitor_mode_decides_and_does_not_act():
    session = ControlSession(Always(STOP), Guards(min_steps=2), mode="monitor")
    decisions = [session.decide(row) for row in rows(3)]
    assert [decision.action for decision in decisions] == [CONTINUE] * 3
    assert [decision.proposed for decision in decisions] == [CONTINUE, STOP, STOP]
    assert session.counts.interventions == 0


def test_a_failing_controller_is_counted_and_the_run_goes_on():
    session = ControlSession(Broken(1, 3), Guards(max_steps=3), fail_open=True)
    first, second, third = (session.decide(row) for row in rows(3))
    assert (first.action, first.probabilities) == (CONTINUE, (1, 0, 0))
    assert "RuntimeError: no answer" in (first.message or "")
    assert second.action is STOP
    assert third.action is STOP  # the guards hold though the controller failed
    assert (session.counts.failures, session.counts.decisions) == (2, 3)
    assert session.counts.last_failure == "RuntimeError: no answer"
    with pytest.raises(RuntimeError, match="no answer"):
        ControlSession(Broken(1)).decide(rows(1)[0])


def test_hindsight_reaches_only_those_who_may_have_it():
    from stopwise.controllers.base import Hindsight

    seen = []

    class Curious(Always):
        def distribution(self, observation):
            seen.append(observation.hindsight)
            return super().distribution(observation)

    hindsight = Hindsight(0.0, 1.0)
    controller = Curious(CONTINUE)
    ControlSession(controller).decide(rows(1)[0], hindsight)
    controller.privileged = True
    ControlSession(controller).decide(rows(1)[0], hindsight)
    assert seen == [None, hindsight]


def test_time_is_counted():
    session = ControlSession(NeverStop())
    decision = session.decide(rows(1)[0])
    assert decision.cost.seconds > 0
    assert session.counts.seconds == decision.cost.seconds
