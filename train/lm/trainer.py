"""TRL's supervised trainer with our two losses, and the validation return in place of an evaluation loss.

Everything around the loss is that of TRL, transformers and accelerate: distribution over processes, accumulation of
gradients, precision, checkpoints with optimizer, random numbers and place in the data, resuming, trackers.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy.typing import NDArray
from transformers import PrinterCallback, TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from stopwise.controllers.rendering import Tokens
from stopwise.data.records import Action
from stopwise.envs.lattice import expected
from stopwise.models.trunk import FrozenTrunk
from stopwise.train.lm.config import ExactOptions, SftOptions
from stopwise.train.lm.episodes import LmEpisode, episode_weights
from stopwise.train.lm.losses import ActionUse, exact_loss, imitation_loss
from stopwise.train.lm.scoring import action_logits, policies
from stopwise.train.tune import Objective, pair_on_lattices

Progress = Callable[[str, int, int | None], None]  # what is done, steps done, steps in all

WHOLE = "whole"  # mark of a checkpoint that has been written to its end
COLLAPSE = 0.99  # share of one action among all decisions from which a policy has collapsed


class CollapseWarning(UserWarning):
    """A policy uses one action nearly always."""


class StepProgress(TrainerCallback):
    """Tells of each optimizer step."""

    def __init__(self, name: str, progress: Progress) -> None:
        """Tell `progress` of the stage `name`."""
        self._name, self._progress = name, progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell."""
        if state.is_world_process_zero:
            self._progress(self._name, state.global_step, state.max_steps)


class _GoesOn(TrainerCallback):
    """A resumed stage counts its seconds and states on from where its checkpoint was; whole checkpoints are marked."""

    def __init__(self, trainer: "ValidationReturn") -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at what was logged last."""
        last = state.log_history[-1] if state.log_history else {}
        self._trainer.start_clock(seconds_so_far(state), int(last.get("state_gradients", 0)))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint: all of it has been written."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / WHOLE).touch()


def last_checkpoint(folder: Path) -> str | None:
    """Where an interrupted stage goes on; None: it begins.

    A checkpoint that a kill has cut short has no mark, and is written anew.
    """
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{WHOLE}")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def seconds_so_far(state: Any) -> float:
    """Seconds that a stage has taken up to its checkpoint; 0 for one that begins."""
    return float(state.log_history[-1].get("seconds", 0.0)) if state.log_history else 0.0


class ValidationReturn:
    """A trainer whose evaluation is the exact return of its policy on validation runs; goes before TRL's class.

    It expects `validation`, `tokens` and `trunk`, and `start_clock` to be called before TRL's own initialisation.
    """

    validation: list[LmEpisode]
    tokens: Tokens
    trunk: FrozenTrunk | None

    def start_clock(self, seconds: float = 0.0, states: int = 0) -> None:
        """Begin to count seconds and states, or go on counting."""
        self._uses: list[ActionUse] = []
        self._state_gradients = states
        self._started = time.monotonic() - seconds

    def be_quiet(self: Any) -> None:
        """Print no logs on stdout: that is for results; call it after TRL's initialisation."""
        self.remove_callback(PrinterCallback)
        self.add_callback(_GoesOn(self))

    def evaluate(self: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """Expected return of the present policy on the validation runs, each question counting once.

        Nothing is sampled. ``deployed`` is the return of the deterministic policy at the thresholds that are best on
        the same runs: what imitation is for, since its probabilities say what is better and not how often to do it.
        Several processes share the runs.
        """
        mine = range(self.args.process_index, len(self.validation), self.args.world_size)
        figures, own = validation_figures(self.model, self.validation, self.tokens, mine, self.trunk)
        every = dict(gather_object(list(zip(mine, own, strict=True))))
        deployed = pair_on_lattices(
            [episode.lattice for episode in self.validation],
            [every[index] for index in range(len(self.validation))],
            episode_weights(self.validation),
            0.0,
            Objective(),
        )
        gathered = self.accelerator.reduce(
            torch.tensor(figures, dtype=torch.float64, device=self._metric_device), "sum"
        )
        value, recall, searches, interventions, *rates = gathered.tolist()
        metrics = {
            f"{metric_key_prefix}_{name}": number
            for name, number in (
                ("return", value),
                ("deployed", deployed.value),
                ("recall", recall),
                ("searches", searches),
                ("interventions", interventions),
                *((f"rate_{action.name.lower()}", rates[action] / sum(rates)) for action in Action),
            )
        }
        most = max(rates) / sum(rates)
        if most > COLLAPSE:
            action = Action(int(np.argmax(rates))).name.lower()
            warnings.warn(
                f"the policy says {action} at {most:.1%} of its decisions: it has collapsed",
                CollapseWarning,
                stacklevel=2,
            )
        metrics[f"{metric_key_prefix}_collapsed"] = float(most > COLLAPSE)
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what the policy did, the time, and the states whose gradient was taken, in this process."""
        if self._uses and "loss" in logs:
            uses, self._uses = self._uses, []
            visits = sum(use.visits for use in uses)
            logs["return"] = float(np.mean([use.value for use in uses]))
            logs["entropy"] = sum(use.entropy * use.visits for use in uses) / visits
            for action in Action:
                logs[f"rate_{action.name.lower()}"] = sum(use.rates[action] * use.visits for use in uses) / visits
        logs["seconds"] = round(time.monotonic() - self._started, 2)
        logs["state_gradients"] = self._state_gradients
        super().log(logs, start_time)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def _metric_device(self: Any) -> torch.device:
        # MPS has no float64; everywhere else the sum is taken where the processes can exchange it
        return self.accelerator.device if self.accelerator.device.type != "mps" else torch.device("cpu")


class PolicyTrainer(ValidationReturn, SFTTrainer):
    """Trains a network on episodes, by imitation or by the exact policy gradient."""

    def __init__(
        self,
        network: Any,
        arguments: SFTConfig,
        tokens: Tokens,
        tokenizer: Any,
        episodes: Sequence[LmEpisode],
        validation: Sequence[LmEpisode],
        options: SftOptions | ExactOptions,
        callbacks: Sequence[TrainerCallback] = (),
        trunk: FrozenTrunk | None = None,
    ) -> None:
        """Set up.

        Args:
            network: a causal language model, or one with a peft adapter.
            arguments: of the trainer; see `stopwise.train.lm.stages`.
            tokens: the rendering.
            tokenizer: the base model's.
            episodes: to learn from; with targets for imitation.
            validation: on which the return is computed.
            options: `SftOptions` for imitation, `ExactOptions` for the policy gradient.
            callbacks: of transformers.
            trunk: of the network, where its lower layers are frozen.
        """
        from datasets import Dataset

        self.episodes = list(episodes)
        self.validation = list(validation)
        self.tokens = tokens
        self.trunk = trunk
        self.options = options
        self._references: dict[int, torch.Tensor] = {}
        self.start_clock()
        super().__init__(
            model=network,
            args=arguments,
            data_collator=_collate,  # pyright: ignore[reportArgumentType]
            train_dataset=Dataset.from_dict(
                {"episode": list(range(len(self.episodes))), "input_ids": [[0]] * len(self.episodes)}
            ),
            eval_dataset=Dataset.from_dict({"episode": [0], "input_ids": [[0]]}),  # `evaluate` looks at `validation`
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )
        self.be_quiet()
        self.model_accepts_loss_kwargs = False  # our loss is a mean over runs: accumulation has to divide it

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Mean loss of the runs of a batch."""
        numbers = inputs["episode"].tolist()
        chosen = [self.episodes[number] for number in numbers]
        logits = action_logits(model, chosen, self.tokens, self.trunk)
        losses = []
        for number, episode, row in zip(numbers, chosen, logits, strict=True):
            self._state_gradients += int(np.prod(row.shape[:2]))
            if isinstance(self.options, ExactOptions):
                loss, use = exact_loss(
                    row,
                    episode.lattice,
                    entropy=self.options.entropy,
                    kl=self.options.kl,
                    reference=self._references.get(number),
                )
                self._uses.append(use)
            else:
                loss = imitation_loss(row, episode)
            losses.append(loss)
        return torch.stack(losses).mean()

    def remember_reference(self) -> None:
        """Keep the present policy's logits on all training runs: what KL is measured against."""
        network: Any = self.model
        network.eval()
        for number, episode in enumerate(self.episodes):
            with torch.no_grad():
                self._references[number] = action_logits(network, [episode], self.tokens, self.trunk)[0]
        network.train()


def validation_figures(
    network: Any,
    episodes: Sequence[LmEpisode],
    tokens: Tokens,
    chosen: Sequence[int],
    trunk: FrozenTrunk | None = None,
) -> tuple[list[float], list[NDArray[np.float64]]]:
    """This process's part of the sums (return, recall, searches, interventions, visits), and its policies."""
    weights = episode_weights(episodes)
    sums = np.zeros(4 + len(Action))
    mine = [episodes[index] for index in chosen]
    found_policies = list(policies(network, mine, tokens, trunk))
    for index, episode, policy in zip(chosen, mine, found_policies, strict=True):
        found = expected(episode.lattice, policy)
        sums[:4] += weights[index] * np.array([found.value, found.recall, found.searches, found.interventions])
        sums[4:] += weights[index] * found.actions
    return sums.tolist(), found_policies


def _collate(features: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"episode": torch.tensor([feature["episode"] for feature in features])}
