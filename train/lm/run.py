"""Training a small language model: data, stages, thresholds, the policy."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainerCallback

from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import BaseModel, SmallLM
from stopwise.controllers.logistic import design_matrix
from stopwise.controllers.package import PolicyPackage
from stopwise.controllers.rendering import RenderingSpec, Tokens, fit_edges
from stopwise.data.config import plain
from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import atomic_path, read_json, sha256_file, write_json
from stopwise.envs.arena.branch_store import read_branches
from stopwise.envs.interventions import Forbidden, Noop
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, read_fit
from stopwise.models.causal_lm import CausalLM, load_causal_lm
from stopwise.models.trunk import FrozenTrunk
from stopwise.signals.features import FeatureSpec, build_features, check_privilege
from stopwise.signals.table import SignalTable
from stopwise.train.action_targets import action_targets, branch_targets
from stopwise.train.lm.calibration import best_reading
from stopwise.train.lm.config import LmConfig, Method, Precision
from stopwise.train.lm.episodes import LmEpisode, at_prices, episode_weights, make_episodes, sample_runs, with_targets
from stopwise.train.lm.network import changed_arrays, frozen_trunk, restore, scaling, trainable
from stopwise.train.lm.scoring import policies
from stopwise.train.lm.stages import StageResult, learn, policy_trainer
from stopwise.train.lm.trainer import Progress, StepProgress
from stopwise.train.teacher import teacher_probabilities
from stopwise.train.train import chosen_features, informative_columns, read_run, uplift_file
from stopwise.train.tune import ThresholdPair, full_recall, pair_on_lattices

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Prepared:
    """Everything that does not change while a network learns."""

    base: CausalLM
    tokens: Tokens  # at the price of the reward
    guards: Guards
    training: list[LmEpisode]  # with targets
    validation: list[LmEpisode]  # of all validation runs
    curve_on: list[LmEpisode]  # of a fixed sample of them
    full_recall: float  # of the validation runs as they are
    counts: dict[str, dict[str, int]]  # questions and runs by split


@dataclass(frozen=True)
class Trained:
    """A stage's policy and what it was chosen by."""

    package: PolicyPackage
    arrays: Arrays
    result: StageResult
    thresholds: ThresholdPair
    # the same network told another search price, with the thresholds that are best there; of the last stage only
    at_prices: Mapping[float, "Trained"] = field(default_factory=dict)


@dataclass(frozen=True)
class Learned:
    """A network after its last stage, and what each stage came to."""

    network: Any
    trunk: FrozenTrunk | None  # as it was in training
    stages: dict[Method, tuple[Arrays, StageResult]]
    tokens: dict[Method, Tokens]  # by which each stage's policy is read


def train_lm(
    config: LmConfig, table: SignalTable, work: Path, progress: Progress | None = None
) -> tuple[dict[Method, Trained], dict[str, Any]]:
    """Train through all stages of a config; call it again after an interruption, and it goes on.

    Args:
        config: what to train.
        table: signals and labels of all splits; only train and val are looked at.
        work: folder for checkpoints and finished stages; one config only.
        progress: told of every optimizer step.

    Returns:
        The policy of each stage, the last one being the result, and a JSON-able record.

    Raises:
        UsageError: the config does not fit itself or the folder, or something that it names is not there.
        DataError: there is no gold, or a split has no run.
    """
    prepared = prepare(config, table)
    learned = learn_stages(config, table, prepared, work, progress)
    # what is deployed computes in float32, in whatever precision it was trained; so thresholds are chosen in float32
    trunk = learned.trunk if config.precision == "float32" else frozen_trunk(learned.network, config.lora)
    trained: dict[Method, Trained] = {
        stage: _finish(stage, arrays, result, replace(prepared, tokens=learned.tokens[stage]), config, table, trunk)
        for stage, (arrays, result) in learned.stages.items()
    }
    stage = config.stages()[-1]
    last = trained[stage]
    prepared = replace(prepared, tokens=learned.tokens[stage])
    frontier: dict[float, Trained] = {}
    for price in config.prices:
        if price == config.reward.search:
            frontier[price] = last
            continue
        told = replace(config, reward=replace(config.reward, search=price))
        at_price = _at_price(prepared, told, table)
        frontier[price] = _finish(stage, last.arrays, last.result, at_price, told, table, trunk)
    trained[stage] = replace(last, at_prices=frontier)
    return trained, _record(config, prepared, trained, learned.network)


def learn_stages(
    config: LmConfig,
    table: SignalTable,
    prepared: Prepared,
    work: Path,
    progress: Progress | None = None,
    known: FrozenTrunk | None = None,
) -> Learned:
    """All stages; `train_lm` goes on to thresholds and policies. Call it again after an interruption, and it goes on.

    Args:
        config: what to train.
        table: of `prepared`, by which the folder is claimed.
        prepared: of this config and table.
        work: folder for checkpoints and finished stages; one config only.
        progress: told of every optimizer step.
        known: hidden states of the same base and layers, from another training.

    Raises:
        UsageError: the folder holds another run, or the start does not fit.
    """
    _claim(work, config, table)
    network = trainable(prepared.base, config.lora, config.seed)
    if config.start is not None:
        restore(network, config.lora, _start_arrays(config, prepared))
    bf16 = config.precision == "bf16"
    trunk = frozen_trunk(network, config.lora, bf16=bf16) if known is None else known.bind(network)
    stages: dict[Method, tuple[Arrays, StageResult]] = {}
    read: dict[Method, Tokens] = {}
    for stage in config.stages():
        if stage != "sft" and config.calibrate:
            prepared = replace(prepared, tokens=_calibrated(network, prepared, config, work, trunk))
        read[stage] = prepared.tokens
        done = work / f"{stage}.json"
        if done.exists():
            arrays, result = _read_arrays(work / f"{stage}.safetensors"), StageResult(**read_json(done))
            restore(network, config.lora, arrays)
        else:
            callbacks = [] if progress is None else [StepProgress(stage, progress)]
            with matmul_precision(config.precision):
                result = _learn(stage, network, prepared, config, work / stage, callbacks, trunk)
            arrays = changed_arrays(network, config.lora)
            if _main_process():
                _write_arrays(work / f"{stage}.safetensors", arrays)
                write_json(done, asdict(result))
        stages[stage] = arrays, result
    return Learned(network, trunk, stages, read)


def _calibrated(network: Any, prepared: Prepared, config: LmConfig, work: Path, trunk: FrozenTrunk | None) -> Tokens:
    """The rendering by which reinforcement learning reads the network that it begins with; found once."""
    path = work / "reading.json"
    if path.exists():
        found = read_json(path)
        sharpness, offsets = found["sharpness"], tuple(found["offsets"])
    else:
        with matmul_precision(config.precision):
            sharpness, offsets = best_reading(network, prepared.training, prepared.tokens, trunk)
        if _main_process():
            write_json(path, {"sharpness": sharpness, "offsets": list(offsets)})
    return prepared.tokens.read_by(sharpness, offsets)


def prepare(config: LmConfig, table: SignalTable) -> Prepared:
    """Load the base, render the runs, regress the targets; see `train_lm` for what it raises."""
    known = table.select(table.has_gold & (table.lengths > 0))
    parts = {"train": known.split("train"), "val": known.split("val")}
    for split, part in parts.items():
        if not len(part):
            raise DataError(f"train: no run of the split {split} has gold and a search; bring logs of more questions")
    for name in config.features:
        table.column(name)
    check_privilege(FeatureSpec(config.features), table.info.config, privileged=config.privileged)
    intervention = _intervention(config)
    guards = config.guards
    base = load_causal_lm(config.base)
    spec = RenderingSpec(
        signals=config.features,
        edges=fit_edges(parts["train"], config.features),
        interventions=guards.max_interventions if intervention.available else 0,
        price=config.reward.search,
        context_rows=config.context_rows,
    )
    tokens = Tokens(spec, base.encode)
    sample = sample_runs(parts["train"], config.runs, "train")
    training: list[LmEpisode] = []
    priced = at_prices(spec, config.reward, config.prices or (config.reward.search,))
    for number, (at_price, reward) in enumerate(priced):
        here = Tokens(at_price, base.encode)
        if len(here.header) != len(tokens.header):
            raise UsageError(
                f"prices: {at_price.price:g} takes {len(here.header)} tokens of {config.base} in the header and "
                f"{spec.price:g} takes {len(tokens.header)}; expected equal numbers; round the prices"
            )
        values = _values(config, parts["train"], reward, intervention) if "sft" in config.stages() else None
        episodes = make_episodes(sample, here, reward, guards, intervention)
        if values is not None:
            episodes = with_targets(episodes, [values[episode.run] for episode in episodes], config.sft)
        # each run is learned at one price, the prices in turn
        training += [episode for index, episode in enumerate(episodes) if index % len(priced) == number]
    validation = make_episodes(parts["val"], tokens, config.reward, guards, intervention)
    chosen = {episode.id for episode in sample_runs(parts["val"], config.validation_runs, "val").episodes}
    return Prepared(
        base=base,
        tokens=tokens,
        guards=guards,
        training=training,
        validation=validation,
        curve_on=[episode for episode in validation if episode.run in chosen],
        full_recall=full_recall(parts["val"]),
        counts={
            "questions": {split: len({e.question_id for e in part.episodes}) for split, part in parts.items()},
            "runs": {split: len(part) for split, part in parts.items()} | {"learned from": len(training)},
        },
    )


def _at_price(prepared: Prepared, config: LmConfig, table: SignalTable) -> Prepared:
    """What a policy is finished on at a config's search price: its header, and validation runs at that price."""
    tokens = Tokens(prepared.tokens.spec.at_price(config.reward.search), prepared.base.encode)
    known = table.select(table.has_gold & (table.lengths > 0)).split("val")
    validation = make_episodes(known, tokens, config.reward, config.guards, _intervention(config))
    return replace(prepared, tokens=tokens, validation=validation)


def _values(
    config: LmConfig, training: SignalTable, reward: Reward, intervention: Forbidden | Noop | Uplift
) -> dict[str, NDArray[np.float64]]:
    """What the labels of every training run are made of (T, 3), by its id; all runs take part in the fits.

    At states that were branched, regressed and realised values are both the means of their rollouts.
    """
    spec = chosen_features(training, config.target_features, privileged=config.privileged)
    features = build_features(training, spec)
    design = design_matrix(features)
    targets = action_targets(
        training,
        design[:, informative_columns(design)],
        reward,
        config.targets,
        intervention=intervention,
        seed=config.seed,
    )
    made = (targets.q if config.sft.labels in ("hard", "soft") else targets.returns).copy()
    if config.branches is not None:
        # what was really tried stands in place of what a model says, and of one noisy draw
        branched = branch_targets(read_branches(Path(config.branches)), training, reward)
        made[branched.rows] = branched.q
    if config.sft.labels == "teacher":
        questions = training.question_codes[training.episode_of_row]
        folds = config.targets.folds
        made = teacher_probabilities(features, made, questions, config.teacher, folds=folds, seed=config.seed)
    bounds = zip(training.episodes, training.offsets[:-1], training.offsets[1:], strict=True)
    return {episode.id: made[start:stop] for episode, start, stop in bounds}


@contextlib.contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Inside, products of float32 matrices may go through bf16, if `precision` says so.

    Under autocast too: what it leaves in float32 may as well, and runs are padded for the kernels of a CPU.
    """
    before = torch.get_float32_matmul_precision()
    if precision != "float32":
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _learn(
    stage: Method,
    network: Any,
    prepared: Prepared,
    config: LmConfig,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
    trunk: FrozenTrunk | None,
) -> StageResult:
    given = (network, prepared.base.tokenizer, prepared.tokens, prepared.training, prepared.curve_on)
    trainer: Any
    if stage == "grpo":
        from stopwise.train.lm.grpo import group_trainer

        trainer = group_trainer(*given, config.grpo, config, folder, callbacks, trunk)
    else:
        options = config.sft if stage == "sft" else config.exact
        trainer = policy_trainer(*given, options, config, folder, callbacks, trunk)
    return learn(trainer, network, config, folder, keep_start=stage != "sft")


def _finish(
    stage: Method,
    arrays: Arrays,
    result: StageResult,
    prepared: Prepared,
    config: LmConfig,
    table: SignalTable,
    trunk: FrozenTrunk | None,
) -> Trained:
    """Choose the thresholds and wrap the policy."""
    controller = SmallLM(
        None,
        arrays,
        base=BaseModel(prepared.base.name, prepared.base.sha256),
        rendering=prepared.tokens.spec,
        scaling=scaling(config.lora),
    )
    # what is deployed chooses its thresholds: the merged network
    own = None if trunk is None else trunk.bind(controller.network)
    found = list(policies(controller.network, prepared.validation, prepared.tokens, own))
    runs = [episode.lattice for episode in prepared.validation]
    weights = episode_weights(prepared.validation)
    chosen = pair_on_lattices(runs, found, weights, prepared.full_recall, config.objective)
    controller.threshold, controller.intervene_threshold = chosen.threshold, chosen.intervene_threshold
    figures = {"return": chosen.value, "recall": chosen.recall, "searches": chosen.searches}
    training = {
        "method": stage,
        "reward": asdict(config.reward),
        "intervention_model": config.intervention,
        "validation": figures | {"interventions": chosen.interventions},
        "questions": prepared.counts["questions"],
        "runs": prepared.counts["runs"],
        "seed": config.seed,
    }
    name = config.name or config.kind
    last = stage == config.stages()[-1]
    package = PolicyPackage(name if last else f"{name} ({stage})", controller, prepared.guards, table.info, training)
    return Trained(package, arrays, result, chosen)


def _record(config: LmConfig, prepared: Prepared, trained: Mapping[Method, Trained], network: Any) -> dict[str, Any]:
    last = trained[config.stages()[-1]]
    return {
        "kind": config.kind,
        "method": config.method,
        "chosen": {"threshold": last.thresholds.threshold, "intervene_threshold": last.thresholds.intervene_threshold},
        "validation": {
            "return": last.thresholds.value,
            "recall": last.thresholds.recall,
            "searches": last.thresholds.searches,
            "interventions": last.thresholds.interventions,
            "model": config.intervention,
        },
        "stages": {
            stage: asdict(part.result) | {"thresholds": asdict(part.thresholds)} for stage, part in trained.items()
        },
        "frontier": [{"price": price} | asdict(part.thresholds) for price, part in last.at_prices.items()],
        "base": {"name": prepared.base.name, "sha256": prepared.base.sha256},
        "parameters": {
            "trained": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "all": sum(p.numel() for p in network.parameters()),
        },
        "tokens": {
            "row": prepared.tokens.spec.row_tokens,
            "header": len(prepared.tokens.header),
            "training runs": sum(episode.tokens for episode in prepared.training),
        },
        **prepared.counts,
        "seed": config.seed,
    }


def _intervention(config: LmConfig) -> Forbidden | Noop | Uplift:
    if config.intervention == "noop":
        return Noop()
    if config.intervention == "forbidden" or config.uplift is None:
        return Forbidden()
    return Uplift(read_fit(uplift_file(config.uplift)))


def _start_arrays(config: LmConfig, prepared: Prepared) -> Arrays:
    assert config.start is not None
    controller = read_run(config.start, "start").controller
    if not isinstance(controller, SmallLM):
        raise UsageError(f"start: {config.start} is a {controller.kind} policy; expected a run of kind lm")
    if controller.base.sha256 != prepared.base.sha256:
        raise UsageError(f"start: {config.start} was trained on {controller.base.name}; set `base` to that")
    spec = prepared.tokens.spec
    rendering = replace(controller.rendering, price=spec.price)
    if rendering.read_by(spec.sharpness, spec.offsets) != spec:
        raise UsageError(
            f"start: {config.start} reads rows of another form or other level edges; use its `features`, `guards`, "
            "`intervention` and signals"
        )
    return dict(controller.weights)


def _claim(work: Path, config: LmConfig, table: SignalTable) -> None:
    """One folder, one config, one table: checkpoints of another run would be taken for this one's."""
    uplift = None if config.uplift is None else sha256_file(uplift_file(config.uplift))
    branches = None if config.branches is None else sha256_file(Path(config.branches))
    files = {"signals": table.sha256, "uplift": uplift, "branches": branches}
    wanted = json.loads(json.dumps({"config": plain(config), **files}))
    record = work / "claim.json"
    if record.exists():
        found = read_json(record)
        changed = [name for name in wanted if found.get(name) != wanted[name]]
        if changed:
            raise UsageError(
                f"{work}: holds an unfinished run of another {changed[0]}; delete it, or use that {changed[0]}"
            )
    elif _main_process():
        work.mkdir(parents=True, exist_ok=True)
        write_json(record, wanted)


def _write_arrays(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    with atomic_path(path) as partial:
        save_file(arrays, partial)


def _read_arrays(path: Path) -> Arrays:
    from safetensors.numpy import load_file

    return load_file(path)


def _main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"  # of torchrun and accelerate; see `shared_arguments`
