"""One stage of training: arguments, trainer, checkpoints, the curve."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback
from trl.trainer.sft_config import SFTConfig

from stopwise.controllers.rendering import Tokens
from stopwise.data.errors import UsageError
from stopwise.models.trunk import FrozenTrunk
from stopwise.train.lm.config import ExactOptions, LmConfig, Schedule, SftOptions
from stopwise.train.lm.episodes import LmEpisode
from stopwise.train.lm.network import changed_arrays, former_names, restore
from stopwise.train.lm.trainer import PolicyTrainer, last_checkpoint

_CURVE = (  # of what trackers are told, what stands in a result
    "step", "epoch", "loss", "grad_norm", "learning_rate", "return", "entropy", "seconds", "state_gradients", "reward",
    "reward_std", "kl", "frac_reward_zero_std",
)  # fmt: skip


@dataclass(frozen=True)
class StageResult:
    """What came of a stage."""

    curve: list[dict[str, float]]  # one entry a log or a look at the validation runs
    best_return: float  # on the validation sample, of the weights that were kept; after imitation the deployed one
    seconds: float


def policy_trainer(
    network: Any,
    tokenizer: Any,
    tokens: Tokens,
    episodes: Sequence[LmEpisode],
    validation: Sequence[LmEpisode],
    options: SftOptions | ExactOptions,
    config: LmConfig,
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
    trunk: FrozenTrunk | None = None,
) -> PolicyTrainer:
    """The trainer of imitation or of the exact policy gradient; `learn` runs it.

    Args:
        network: from `stopwise.train.lm.network.trainable`.
        tokenizer: the base model's.
        tokens: the rendering.
        episodes: to learn from.
        validation: on which the return decides which weights are kept.
        options: of imitation or of the policy gradient.
        config: of the whole run.
        folder: for checkpoints.
        callbacks: of transformers.
        trunk: of the network, where its lower layers are frozen.
    """
    arguments = SFTConfig(
        **shared_arguments(options, config, folder, len(episodes)),
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
    if options.patience:
        callbacks = [*callbacks, EarlyStoppingCallback(options.patience)]
    trainer = PolicyTrainer(network, arguments, tokens, tokenizer, episodes, validation, options, callbacks, trunk)
    if isinstance(options, ExactOptions) and options.kl:
        trainer.remember_reference()
    return trainer


def learn(trainer: Any, network: Any, config: LmConfig, folder: Path, *, keep_start: bool) -> StageResult:
    """Run a trainer to its end, from the last checkpoint in `folder` if there is one.

    Args:
        trainer: of transformers.
        network: that it trains.
        config: of the run.
        folder: of its checkpoints.
        keep_start: whether the weights that it began with are put back where no later ones have a better return.
    """
    start = changed_arrays(network, config.lora) if keep_start else {}
    with former_names():
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    result = result_of(trainer)
    first = next((entry["eval_return"] for entry in result.curve if "eval_return" in entry), float("nan"))
    if keep_start and not result.best_return > first:
        restore(network, config.lora, start)
        result = replace(result, best_return=first)
    return result


def best_by(options: Schedule) -> str:
    """What decides which weights of a stage are kept; see `ValidationReturn.evaluate`."""
    return "eval_deployed" if isinstance(options, SftOptions) else "eval_return"


def shared_arguments(options: Schedule, config: LmConfig, folder: Path, count: int) -> dict[str, Any]:
    """Arguments of TRL's trainers that all stages share.

    Args:
        options: of the stage.
        config: of the run.
        folder: for checkpoints.
        count: samples in one epoch.

    Raises:
        UsageError: the batch cannot be shared out evenly, or bf16 was asked for where there is none.
    """
    # of torchrun and accelerate: before TRL's arguments are made, accelerate's own state does not know of CPU processes
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    part = options.micro_batch * processes
    if options.batch % part:
        raise UsageError(
            f"batch {options.batch} cannot be shared out: {processes} processes with micro_batch "
            f"{options.micro_batch} take {part} runs at a time; expected a multiple of that"
        )
    if "wandb" in config.report_to:
        os.environ.setdefault("WANDB_MODE", "offline")  # nothing leaves the machine unless asked
    steps = max(1, round(options.epochs * count / options.batch))
    cpu = not torch.cuda.is_available()
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.batch // part,
        "max_steps": steps,
        "learning_rate": options.learning_rate,
        "warmup_steps": int(options.warmup * steps),
        "lr_scheduler_type": "linear",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "eval_strategy": "steps",
        "eval_steps": options.evaluate_every,
        "eval_on_start": last_checkpoint(folder) is None,  # a resumed stage has that look in its log
        "save_strategy": "steps",
        "save_steps": options.evaluate_every,
        "save_total_limit": 2,
        "restore_callback_states_from_checkpoint": options.patience > 0,  # looks without a better one so far
        "load_best_model_at_end": True,
        "metric_for_best_model": best_by(options),
        "greater_is_better": True,
        "seed": config.seed,
        "data_seed": config.seed,
        "full_determinism": False,
        "use_cpu": cpu,
        "bf16": config.precision == "bf16",
        "fp16": False,
        "activation_checkpointing": False,
        "report_to": list(config.report_to) or "none",
        "run_name": config.name or f"{config.kind}-{config.method}",
        "remove_unused_columns": False,
        "dataloader_pin_memory": not cpu,
        "disable_tqdm": True,
        "log_level": "error",
        "ddp_find_unused_parameters": False,
    }


def result_of(trainer: Any) -> StageResult:
    """The curve and the best return of a trainer that is done."""
    curve: list[dict[str, float]] = []
    for entry in trainer.state.log_history:
        kept = {name: value for name, value in entry.items() if name in _CURVE or name.startswith(("eval_", "rate_"))}
        if "loss" in kept or any(name.startswith("eval_return") for name in kept):
            curve.append(kept)
    best = trainer.state.best_metric
    seconds = max((entry.get("seconds", 0.0) for entry in curve), default=0.0)
    return StageResult(curve, float("nan") if best is None else float(best), seconds)
