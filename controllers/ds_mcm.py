"""[DS-MCM] as a controller: the Fast Consistency Monitor (3.2.3, eq. 8), and behind it the slow one (3.3)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from stopwise.controllers.base import Distribution, Observation, RunSoFar, certain, check_number
from stopwise.controllers.memory.entries import Entry, Recall, Recalled, online_label
from stopwise.controllers.memory.sessions import EXTRACTIVE, extract_abstraction, history_summary, session_text
from stopwise.controllers.prompted import MAX_TOKENS, Prompted, PromptVersions
from stopwise.controllers.slow_monitor import Critique, Verdict, check_critique, critic_prompt, slow_monitor_prompt
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action

OnFlag = Literal["stop", "intervene"]
Side = Literal["both", "high", "low"]


class DsMcm(Prompted):
    """Flag a step whose residual lies more than k sigma from zero; then stop or intervene, or ask the slow monitor.

    Without reasoning entropy there is no residual: the controller is then not applicable.

    With `slow`, a flag alone changes nothing: the critic reads the step beside what the memory holds of similar ones,
    and only an error that it finds leads to an intervention, with its suggestion as guidance for the agent (eq. 13 to
    18). A call that fails is continue, and counted. It is not asked where what would follow is not open.
    """

    kind: ClassVar[str] = "ds_mcm"
    memory: Recall | None = None  # set by `stopwise.controllers.kinds.connect`; copies share it

    def __init__(
        self,
        k: float = 2.0,
        on_flag: OnFlag = "intervene",
        side: Side = "both",
        with_se: bool = True,
        slow: bool = False,
        recall: int = 2,
        online: bool = False,
        max_tokens: int = MAX_TOKENS,
        prompts: PromptVersions | None = None,
    ) -> None:
        """Set the monitors.

        Args:
            k: sigmas, above 0; the paper's best is 2.
            on_flag: what to do; the paper intervenes.
            side: "both" is eq. 8; "high" flags only reasoning less certain than the evidence warrants, "low" only more.
            with_se: False is the ablation without SE: RE against its own mean and spread on successful runs.
            slow: ask the slow monitor about flagged steps.
            recall: entries that it is shown of each pool, K of eq. 16; 0 is the ablation without memory.
            online: put the sessions of this run into the memory as they are judged (3.3.3).
            max_tokens: of a reply of the critic.
            prompts: versions that the prompts must have; None takes them as they are.

        Raises:
            UsageError: a value is not allowed.
        """
        check_number("ds_mcm: k", k, low=0)
        if k == 0:
            raise UsageError("ds_mcm: k 0; expected a number above 0: every step would be flagged")
        for name, value, kind in (("on_flag", on_flag, OnFlag), ("side", side, Side)):
            if value not in get_args(kind):
                raise UsageError(f"ds_mcm: {name} {value!r}; expected one of {', '.join(get_args(kind))}")
        for name, value in (("with_se", with_se), ("slow", slow), ("online", online)):
            if not isinstance(value, bool):
                raise UsageError(f"ds_mcm: {name} {value!r}; expected true or false")
        check_number("ds_mcm: recall", recall, low=0, whole=True)
        if online and not (slow and recall):
            raise UsageError("ds_mcm: online needs slow and a recall of 1 or more: else nothing reads what is stored")
        self.k = k
        self.on_flag: OnFlag = on_flag
        self.side: Side = side
        self.with_se = with_se
        self.slow = slow
        self.recall = recall
        self.online = online
        self.needs = ("residual_z" if with_se else "RE_z",)
        self.reads_text = self.guides = slow
        self._prepare(max_tokens, prompts)

    @property
    def asks_model(self) -> bool:
        """Whether the slow monitor is there."""
        return self.slow

    @property
    def asks_memory(self) -> bool:
        """Whether the slow monitor looks into a memory."""
        return self.slow and self.recall > 0

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`; a step without a residual is not flagged.

        Raises:
            ValueError: the slow monitor has no texts to read.
            DataError: the memory was built on this run's question.
        """
        deviation = observation.row.values.get(self.needs[0])
        flagged = deviation is not None and self._beyond(deviation)
        action = Action.STOP if self.on_flag == "stop" else Action.INTERVENE
        if not self.slow:
            return (certain(action), self._why(deviation)) if flagged else (certain(Action.CONTINUE), None)
        if observation.run is None:
            raise ValueError("ds_mcm: the slow monitor needs the run's texts, which a signal table does not have")
        if not flagged:
            self._remember(observation.run, None)
            return certain(Action.CONTINUE), None
        if not observation.legal[action]:
            return certain(Action.CONTINUE), None
        critique = self.ask(self._prompt(observation.run), Critique, check_critique)
        if critique is None:
            return certain(Action.CONTINUE), self.no_reply()
        verdict = Verdict.of(critique)
        self._remember(observation.run, verdict)
        if verdict.err:
            return certain(action), verdict.suggestion
        return certain(Action.CONTINUE), f"{self._why(deviation)}; the slow monitor finds no error"

    def _beyond(self, deviation: float) -> bool:
        """Eq. 8: |epsilon| > k sigma, or one side of it."""
        return (self.side != "low" and deviation > self.k) or (self.side != "high" and deviation < -self.k)

    def _why(self, deviation: float | None) -> str:
        assert deviation is not None
        how = "less certain" if deviation > 0 else "more certain"
        than = "the evidence warrants" if self.with_se else "in runs that succeeded"
        return f"reasoning is {how} than {than} ({deviation:+.1f} sigma)"

    def _prompt(self, run: RunSoFar) -> str:
        """The critic's prompt, with R+ and R- of eq. 16 unless this is the ablation without memory."""
        if not self.recall:
            return critic_prompt(run)
        if self.memory is None:
            raise UsageError("ds_mcm: no experience memory is connected; name one under `memory`, or set recall: 0")
        # online, other runs on this question may have left entries, which are passed over: ask for some to spare
        found = self.memory.nearest(*self._session(run), self.recall * (4 if self.online else 1))
        for entry in (*found.successes, *found.failures):
            if entry.question_id == run.question_id and entry.source == "offline":
                raise DataError(
                    f"ds_mcm: the memory holds question {run.question_id}, which is being answered; expected other "
                    "questions only: build it on training questions"
                )
        others = [
            [entry for entry in pool if entry.question_id != run.question_id][: self.recall]
            for pool in (found.successes, found.failures)
        ]
        return slow_monitor_prompt(run, Recalled(others[0], others[1]))

    def _session(self, run: RunSoFar) -> tuple[str, str]:
        """S and h of the present step, as they stand in memory entries (eq. 11)."""
        return session_text(run.question, run.steps[-1]), history_summary(run.steps[:-1])

    def _remember(self, run: RunSoFar, verdict: Verdict | None) -> None:
        """Store the session under its online label (eq. 19, 20); without a verdict the step was not flagged."""
        if not self.online:
            return
        if self.memory is None:
            raise UsageError("ds_mcm: no experience memory is connected; name one under `memory`, or set online: false")
        label = online_label(verdict is not None, None if verdict is None else verdict.err)
        assert label is not None
        session, history = self._session(run)
        learnt, by = extract_abstraction(run.steps, label), EXTRACTIVE
        if verdict is not None and verdict.suggestion:
            assert self.client is not None
            learnt, by = verdict.suggestion, f"{self.client.id} {self._versions['slow_monitor']}"
        question = run.question if run.question_id is None else run.question_id
        self.memory.add(
            Entry(session, history, learnt, label, question, run.question, source="online", abstraction_by=by)
        )

    def _used_prompts(self) -> tuple[str, ...]:
        """See `Prompted`."""
        if not self.slow:
            return ()
        return ("slow_monitor",) if self.recall else ("critic",)

    @property
    def params(self) -> Mapping[str, Any]:
        """What differs from the plain fast monitor; the rest is left out, so that its packages stay as they were."""
        params: dict[str, Any] = {"k": self.k, "on_flag": self.on_flag}
        if self.side != "both":
            params["side"] = self.side
        if not self.with_se:
            params["with_se"] = False
        if self.slow:
            params |= {"slow": True, "recall": self.recall, "online": self.online, "max_tokens": self.max_tokens}
            params["prompts"] = self._versions
        return params
