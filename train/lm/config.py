"""One training run of a small language model."""

from dataclasses import dataclass
from typing import Literal

from stopwise.controllers.base import check_number
from stopwise.controllers.guards import Guards
from stopwise.controllers.rendering import DEFAULT_SIGNALS
from stopwise.data.errors import UsageError
from stopwise.envs.rewards import Reward
from stopwise.models.smollm2 import SMOLLM2
from stopwise.train.targets import TargetOptions
from stopwise.train.teacher import TeacherOptions
from stopwise.train.tune import Objective

Method = Literal["sft", "exact", "grpo"]

# Of training; a policy decides in float32 whichever it was. bf16: autocast, for a GPU. bf16_matmul: all is float32, but
# products of matrices may go through bf16 (torch's "medium"): several times faster on CPUs with AMX.
Precision = Literal["float32", "bf16", "bf16_matmul"]


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """A low-rank adapter (peft): Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022."""

    rank: int = 16
    alpha: int = 32  # B A is multiplied by alpha / rank
    targets: tuple[str, ...] = ("q_proj", "v_proj")  # modules of a layer, as in the paper's experiments
    layers: int | None = None  # only the last so many layers: gradients need not go further down; null: all

    def __post_init__(self) -> None:
        check_number("lora.rank", self.rank, low=1, whole=True)
        check_number("lora.alpha", self.alpha, low=1, whole=True)
        if self.layers is not None:
            check_number("lora.layers", self.layers, low=1, whole=True)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast a stage learns."""

    epochs: float = 1.0  # over the chosen training runs
    batch: int = 8  # runs in one optimizer step, over all processes
    micro_batch: int = 4  # runs in one forward and backward pass of a process; gradients are accumulated
    learning_rate: float = 2e-4
    warmup: float = 0.1  # share of the steps
    evaluate_every: int = 10  # optimizer steps between looks at the validation return
    patience: int = 0  # looks without a better one before it ends early; 0: it does not

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, low=1e-6)
        for name in ("batch", "micro_batch", "evaluate_every"):
            check_number(name, getattr(self, name), low=1, whole=True)
        check_number("learning_rate", self.learning_rate, low=1e-12)
        check_number("warmup", self.warmup, low=0, high=1)
        check_number("patience", self.patience, low=0, whole=True)


@dataclass(frozen=True, slots=True)
class SftOptions(Schedule):
    """Supervised fine-tuning on the non-anticipative targets."""

    labels: Literal["returns", "hard", "soft", "teacher"] = "returns"  # see `stopwise.train.lm.episodes.with_targets`
    temperature: float = 0.02  # of soft labels, in units of return
    balanced: bool = False  # each best action weighs the same in all, however rare it is

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        check_number("sft.temperature", self.temperature, low=1e-6)


@dataclass(frozen=True, slots=True)
class ExactOptions(Schedule):
    """The all-action policy gradient on lattices."""

    entropy: float = 0.003  # worth of a nat of action entropy at each visited state, in units of return
    kl: float = 0.0  # price of a nat of divergence from the policy that it starts from, likewise

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        check_number("exact.entropy", self.entropy, low=0)
        check_number("exact.kl", self.kl, low=0)


@dataclass(frozen=True, slots=True)
class GrpoOptions(Schedule):
    """Group-relative policy optimisation (TRL) on whole sampled episodes."""

    generations: int = 8  # sampled episodes of one run: a group
    kl: float = 0.0  # TRL's beta; the reference is the policy that it starts from
    # by whose spread advantages are divided. By that of their group, as in the paper, groups that differ by a hundredth
    # push as hard as any other, and a fast rate ended in always stopping (docs/LOG.md, "a steadier GRPO")
    scale_rewards: Literal["group", "batch", "none"] = "none"
    # ends after this much wall-clock time; the rate then rises and falls with the time in place of the steps (with the
    # steps where `epochs` end first), so that it is zero at the end
    minutes: float | None = None

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        check_number("grpo.generations", self.generations, low=2, whole=True)
        check_number("grpo.kl", self.kl, low=0)
        if self.minutes is not None:
            check_number("grpo.minutes", self.minutes, low=1e-6)


@dataclass(frozen=True)
class LmConfig:
    """One training run: supervised fine-tuning, then, by `method`, reinforcement learning."""

    signals: str  # signal table, or "samples"
    kind: Literal["lm"] = "lm"
    method: Method = "exact"
    name: str | None = None  # what tables call it
    base: str = SMOLLM2  # or tiny-random, a Hugging Face id, a folder
    start: str | None = None  # run folder to go on from in place of supervised fine-tuning
    features: tuple[str, ...] = DEFAULT_SIGNALS  # signals in a row
    target_features: tuple[str, ...] | None = None  # signals that the targets are regressed on; None: all there are
    context_rows: int = 128
    prices: tuple[float, ...] = ()  # search prices to train at; empty: that of `reward` alone
    reward: Reward = Reward()
    intervention: Literal["forbidden", "noop", "uplift"] = "forbidden"
    uplift: str | None = None  # run folder of `stopwise train configs/uplift.yaml`
    branches: str | None = None  # file of `stopwise collect --branch`: its Q, where it has one; `signals` of these runs
    guards: Guards = Guards()
    targets: TargetOptions = TargetOptions()
    teacher: TeacherOptions = TeacherOptions()  # of `sft.labels: teacher`
    objective: Objective = Objective()
    lora: LoraOptions | None = LoraOptions()  # null: all weights are trained
    calibrate: bool = True  # before reinforcement learning, see `stopwise.train.lm.calibration`
    sft: SftOptions = SftOptions()
    exact: ExactOptions = ExactOptions()
    grpo: GrpoOptions = GrpoOptions()
    runs: int | None = 240  # training runs, a fixed sample; null: all
    validation_runs: int | None = 48  # runs on which the curve is drawn, a fixed sample; thresholds use all
    precision: Precision = "float32"
    report_to: tuple[str, ...] = ()  # as in transformers: wandb, tensorboard, ...
    privileged: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("seed", self.seed, low=0, whole=True)
        for name in ("runs", "validation_runs"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low=2, whole=True)
        for price in self.prices:
            check_number("prices", price, low=0)
        folders = [f"{price:g}" for price in self.prices]  # a policy for each lies in prices/PRICE
        if len(set(folders)) < len(folders):
            raise UsageError(f"prices: {', '.join(folders)}; expected each once")
        if self.intervention == "uplift" and self.uplift is None:
            raise UsageError("intervention uplift: needs `uplift: RUN`, a run of `stopwise train configs/uplift.yaml`")
        if self.intervention != "uplift" and self.uplift is not None:
            raise UsageError(f"uplift: is given, but the intervention is {self.intervention}; leave one of them out")

        if self.branches is not None and self.intervention != "uplift":
            raise UsageError(
                f"branches: are for intervention uplift, found {self.intervention}; set it, with `uplift: RUN`, or "
                "leave them out"
            )
        if self.branches is not None and "sft" not in self.stages():
            raise UsageError("branches: are for the supervised stage, and this run has none; leave them out")

    def stages(self) -> tuple[Method, ...]:
        """What is done, in order."""
        first: tuple[Method, ...] = () if self.start is not None else ("sft",)
        return first if self.method == "sft" else (*first, self.method)
