"""Group-relative policy optimisation with TRL, on whole sampled episodes of replayed runs.

Shao et al., *DeepSeekMath*, arXiv 2402.03300, section 4.1: several episodes of one run, sampled from the present
policy, form a group; the advantage of each is its return against the group's mean. A completion is the run's rendered
rows as far as the episode went; the policy's own tokens are those where it was asked, and TRL's mask says which.

What a network reads does not depend on what a policy did (`stopwise.controllers.rendering`), so one pass over a run
serves all episodes of its group, in sampling and in the loss: an episode costs a share of a pass, not a whole one.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from numpy.typing import NDArray
from transformers import EarlyStoppingCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from stopwise.controllers.rendering import Tokens
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.envs.lattice import Lattice
from stopwise.models.trunk import FrozenTrunk
from stopwise.train.lm.config import GrpoOptions, LmConfig
from stopwise.train.lm.episodes import LmEpisode, Part
from stopwise.train.lm.losses import ActionUse, masked_log_policy
from stopwise.train.lm.scoring import action_logits, policies
from stopwise.train.lm.stages import shared_arguments
from stopwise.train.lm.trainer import ValidationReturn, seconds_so_far


class NoSpreadWarning(UserWarning):
    """All episodes of every group had the same return: nothing can be learned from the step."""


@dataclass(frozen=True)
class Sampled:
    """One sampled episode of a run."""

    states: tuple[tuple[int, int, int], ...]  # (row, interventions used, rest left), in order
    actions: tuple[int, ...]
    value: float  # return from the first decision on

    @property
    def rows(self) -> int:
        """Rows that were seen."""
        return self.states[-1][0] + 1


def sample_episode(run: Lattice, policy: NDArray[np.float64], draws: "Draws") -> Sampled:
    """Follow a policy (T, M + 1, C + 1, 3) over a lattice."""
    rows, _, rest = run.shape
    row, used, left, value = 0, 0, 0, 0.0
    states, actions = [], []
    while row < rows:
        action = int(np.searchsorted(policy[row, used, left].cumsum(), draws.next(), side="right"))
        action = min(action, len(Action) - 1)
        states.append((row, used, left))
        actions.append(action)
        if action == Action.STOP:
            value += float(run.stopping[row])
            break
        if action == Action.CONTINUE:
            value += float(run.going_on[row])
            row, left = row + 1, max(left - 1, 0)
            continue
        works = draws.next() < run.chance[row]
        value += float(run.hitting[row] if works else run.missing[row])
        row, used, left = int(run.hit[row] if works else run.miss[row]), used + 1, rest - 1
    return Sampled(tuple(states), tuple(actions), value)


class Draws:
    """Uniform numbers from torch's global generator: checkpoints keep its state, so a resumed run draws the same."""

    def __init__(self, block: int = 256) -> None:
        self._block, self._left = block, iter(())

    def next(self) -> float:
        """A number in [0, 1)."""
        number = next(self._left, None)
        if number is None:
            self._left = iter(torch.rand(self._block, dtype=torch.float64).tolist())
            number = next(self._left)
        return number


class GroupTrainer(ValidationReturn, GRPOTrainer):
    """TRL's trainer, with episodes sampled on lattices and log-probabilities over the legal actions only."""

    def __init__(
        self,
        network: Any,
        arguments: GRPOConfig,
        tokens: Tokens,
        tokenizer: Any,
        episodes: Sequence[LmEpisode],
        validation: Sequence[LmEpisode],
        callbacks: Sequence[TrainerCallback] = (),
        trunk: FrozenTrunk | None = None,
        limit: "TimeLimit | None" = None,
    ) -> None:
        """Set up; arguments as in `PolicyTrainer`, and a time limit, by which the learning rate falls.

        Raises:
            DataError: a run is longer than one context.
        """
        from datasets import Dataset

        long = next((episode.run for episode in episodes if len(episode.parts) > 1), None)
        if long is not None:
            raise DataError(f"grpo: run {long!r} is longer than one context; raise `context_rows`, or train by `exact`")
        self.episodes = list(episodes)
        self.validation = list(validation)
        self.tokens = tokens
        self.trunk = trunk
        self.limit = limit
        self.start_clock()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*rollout_func.*experimental.*")
            super().__init__(
                model=network,
                reward_funcs=_returns,  # pyright: ignore[reportArgumentType] - TRL's type has no extra fields
                args=arguments,
                train_dataset=Dataset.from_dict({"prompt": [str(number) for number in _order(arguments, episodes)]}),
                eval_dataset=Dataset.from_dict({"prompt": ["0"]}),  # `evaluate` looks at `validation`
                processing_class=tokenizer,
                callbacks=[*callbacks, *([] if limit is None else [limit])],
                rollout_func=self._rollout,
            )
        if self.ref_model is not None:
            # without an adapter TRL reads the base again; the reference is the policy that this stage starts from
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(network.state_dict())
        self.be_quiet()

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The schedule of the learning rate: by the clock where the time is limited, else that of the arguments."""
        if self.limit is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            limit = self.limit
            chosen: Any = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, lambda _: limit.rate())
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Sample one episode for each prompt, which is a run's number."""
        numbers = [int(prompt) for prompt in prompts]
        runs = list(dict.fromkeys(numbers))
        found = policies(self.model, [self.episodes[number] for number in runs], self.tokens, self.trunk)
        by_run = dict(zip(runs, found, strict=True))
        draws = Draws()
        sampled = [sample_episode(self.episodes[n].lattice, by_run[n], draws) for n in numbers]
        for sample in sampled:
            counts = np.bincount(sample.actions, minlength=len(Action)) / len(sample.actions)
            rates = (float(counts[0]), float(counts[1]), float(counts[2]))
            self._uses.append(ActionUse(sample.value, 0.0, rates, len(sample.actions)))
        size: Any = self.num_generations
        groups = np.array([sample.value for sample in sampled]).reshape(-1, size)
        if np.allclose(groups, groups[:, :1]):
            warnings.warn(
                f"all {self.num_generations} episodes of each of {len(groups)} groups had the same return: nothing to "
                "learn here; the policy may be too sure of itself",
                NoSpreadWarning,
                stacklevel=2,
            )
        completions, masks, logprobs = [], [], []
        for number, sample in zip(numbers, sampled, strict=True):
            ids, mask = self._completion(self.episodes[number], sample)
            completions.append(ids)
            masks.append(mask)
            logprobs.append([0.0] * len(ids))  # TRL asks for them, and reads them with vLLM only
        return {
            "prompt_ids": [list(self.episodes[number].parts[0].ids[: len(self.tokens.header)]) for number in numbers],
            "completion_ids": completions,
            "logprobs": logprobs,
            "env_mask": masks,
            "episode_return": [sample.value for sample in sampled],
        }

    def _completion(self, episode: LmEpisode, sample: Sampled) -> tuple[list[int], list[int]]:
        """Rendered rows with each answer in the place of the ask token it answers, and where answers stand."""
        header, size = len(self.tokens.header), self.tokens.spec.row_tokens
        ids = list(episode.parts[0].ids[header : header + sample.rows * size])
        mask = [0] * len(ids)
        asks = self.tokens.ask_positions(sample.rows) - header
        for (row, used, _), action in zip(sample.states, sample.actions, strict=True):
            ids[asks[row, used]] = self.tokens.actions[action]
            mask[asks[row, used]] = 1
        return ids, mask

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Log-probability of each answer among the legal actions, 0 elsewhere, (B, logits_to_keep); entropies too."""
        header = len(self.tokens.header)
        lengths = attention_mask.sum(dim=1) - header
        answered = [row[header : header + int(length)].tolist() for row, length in zip(input_ids, lengths, strict=True)]
        questions = [self.tokens.as_asked(ids) for ids in answered]
        prompts = [tuple(row[:header].tolist()) for row in input_ids]
        found = self._log_policies(model, prompts, questions)
        logps = torch.zeros(len(answered), logits_to_keep, device=input_ids.device)
        entropies = torch.zeros_like(logps)
        asks = self.tokens.ask_positions(int(lengths.max()) // self.tokens.spec.row_tokens) - header
        for index, ids in enumerate(answered):
            log_policy = found[index]
            places, states, actions = self._decisions(ids, asks)
            rows, used, left = (torch.tensor(axis, device=log_policy.device) for axis in zip(*states, strict=True))
            here = log_policy[rows, used, left]  # (decisions, 3)
            logps[index, places] = here.gather(1, torch.tensor(actions, device=here.device)[:, None])[:, 0]
            entropies[index, places] = -(here.exp() * here).sum(-1).detach()
            if model.training and torch.is_grad_enabled():  # a reference is only read
                self._state_gradients += len(places)
        return logps, entropies if compute_entropy else None, None

    def _log_policies(
        self, model: Any, prompts: Sequence[tuple[int, ...]], questions: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        """Masked log-policies (T, M + 1, C + 1, 3) of each sample, from one pass over each different run."""
        longest: dict[tuple[int, ...], int] = {}  # what is read, to the pass that reads it
        order = sorted(range(len(questions)), key=lambda index: -len(questions[index]))
        chosen: list[tuple[int, ...]] = []
        reader = [0] * len(questions)
        for index in order:
            ids = (*prompts[index], *questions[index])
            match = next((number for known, number in longest.items() if known[: len(ids)] == ids), None)
            if match is None:
                match = len(chosen)
                longest[ids] = match
                chosen.append(ids)
            reader[index] = match
        size, header = self.tokens.spec.row_tokens, len(self.tokens.header)
        passes = [self._bare(ids, (len(ids) - header) // size) for ids in chosen]
        logits = action_logits(model, passes, self.tokens, self.trunk)
        read = [masked_log_policy(row, part.lattice)[0] for row, part in zip(logits, passes, strict=True)]
        return [read[number] for number in reader]

    def _bare(self, ids: Sequence[int], rows: int) -> LmEpisode:
        """Rows to be read, with the guards' limits and nothing else of a lattice."""
        nothing = np.zeros(rows)
        limits = self._limits[:rows]
        lattice = Lattice(
            nothing,
            nothing,
            nothing,
            nothing.astype(int),
            nothing,
            nothing.astype(int),
            nothing,
            limits,
            np.zeros(rows + 1),
        )
        return LmEpisode("", "", (Part(list(ids), 0, rows),), lattice)

    @cached_property
    def _limits(self) -> NDArray[np.bool_]:
        """What the guards allow at each row of the longest run; they are the same for all runs."""
        return max((episode.lattice.legal for episode in self.episodes), key=len)

    def _decisions(
        self, ids: Sequence[int], asks: NDArray[np.int64]
    ) -> tuple[list[int], list[tuple[int, int, int]], list[int]]:
        """Places, states and actions of a completion's answers."""
        rest = self._limits.shape[2] - 1
        action_of = {token: number for number, token in enumerate(self.tokens.actions)}
        places, states, actions = [], [], []
        left, used = 0, 0
        for row, columns in enumerate(asks[: len(ids) // self.tokens.spec.row_tokens]):
            while used < len(columns) and ids[columns[used]] in action_of:
                action = action_of[ids[columns[used]]]
                places.append(int(columns[used]))
                states.append((row, used, left))
                actions.append(action)
                if action != Action.INTERVENE:
                    left = max(left - 1, 0)
                    break
                used, left = used + 1, rest
        return places, states, actions


def group_trainer(
    network: Any,
    tokenizer: Any,
    tokens: Tokens,
    episodes: Sequence[LmEpisode],
    validation: Sequence[LmEpisode],
    options: GrpoOptions,
    config: LmConfig,
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
    trunk: FrozenTrunk | None = None,
) -> GroupTrainer:
    """The trainer of a stage; arguments as in `policy_trainer`."""
    shared = shared_arguments(options, config, folder, len(episodes))
    part = shared["per_device_train_batch_size"]  # in runs; TRL counts samples
    arguments = GRPOConfig(
        **shared | {"per_device_train_batch_size": part * options.generations, "dataloader_num_workers": 0},
        per_device_eval_batch_size=options.generations,  # nothing is sampled there, but TRL wants whole groups
        num_generations=options.generations,
        max_completion_length=max(episode.tokens for episode in episodes),
        beta=options.kl,
        scale_rewards=options.scale_rewards,
        mask_truncated_completions=False,
        log_completions=False,
        shuffle_dataset=False,  # `_order` has shuffled
    )
    extra: list[TrainerCallback] = list(callbacks)
    limit = None if options.minutes is None else TimeLimit(options.minutes, options.warmup)
    if options.patience:
        extra.append(EarlyStoppingCallback(options.patience))
    return GroupTrainer(network, arguments, tokens, tokenizer, episodes, validation, extra, trunk, limit)


def _order(arguments: GRPOConfig, episodes: Sequence[LmEpisode]) -> NDArray[np.int64]:
    """Numbers of the runs over all epochs, each shuffled, as one long epoch.

    TRL's sampler begins anew with the first epoch's order when a run is resumed in a later one.
    """
    groups = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    needed = arguments.max_steps * max(1, groups // int(arguments.num_generations or 1))
    chance = np.random.default_rng(arguments.seed)
    return np.concatenate([chance.permutation(len(episodes)) for _ in range(-(-needed // len(episodes)))])


class TimeLimit(TrainerCallback):
    """Ends training at the first step after a time, with a look at the validation runs; the rate falls to zero with it.

    How many steps the time allows is not known before, so the learning rate follows the clock: it rises linearly over
    the first share `warmup` and falls linearly to zero at the end. The clock is read once a step, after the weights
    have changed, and the next step uses what it said; a checkpoint keeps that rate and the seconds so far, so a resumed
    stage goes on as if it had not been interrupted.
    """

    def __init__(self, minutes: float, warmup: float = 0.0) -> None:
        """Set up.

        Args:
            minutes: of wall-clock time, over all resumptions.
            warmup: share of the time over which the rate rises.
        """
        self._seconds = 60 * minutes
        self._warmup = warmup
        self._started = time.monotonic()
        self._time = 0.0  # share that is gone
        self._spent = 0.0  # the same, or the share of the steps where that is more

    def rate(self) -> float:
        """Learning rate of the next step, as a share of the highest."""
        if self._spent >= 1:
            return 0.0
        if self._spent < self._warmup:
            return self._spent / self._warmup
        return (1 - self._spent) / (1 - self._warmup)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock; a resumed stage has used a part of its time."""
        self._started = time.monotonic() - seconds_so_far(state)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the clock, all processes at that of the first: they have to agree on the rate and on the end."""
        [self._time] = broadcast_object_list([(time.monotonic() - self._started) / self._seconds])
        self._spent = max(self._time, (state.global_step + 1) / state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End, if the time is up."""
        if self._time >= 1:
            control.should_training_stop = control.should_evaluate = control.should_save = True


def _returns(
    prompts: Sequence[str], completions: Sequence[str], episode_return: Sequence[float], **_: Any
) -> list[float]:
    """The reward: the return of each sampled episode."""
    return [float(value) for value in episode_return]
