"""DI-engine's serial entries: training and evaluating what a pair of its configs describes, on a Trainer.

The functions have the names and the argument order of DI-engine's. Everything else is that of this package: the
workers, the callbacks, the checkpoints and DDP.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_ding.callbacks import InitialWeights
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import require
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.di_engine.convert import Unnamed, to_yaml
from lightning_ding.di_engine.run import UNLIMITED, Named, Run
from lightning_ding.di_engine.translate import translate
from lightning_ding.model import create_model
from lightning_ding.policy import Policy

logger = logging.getLogger(__name__)
RESULT = "result.json"
CONFIG = "config.yaml"


def serial_pipeline(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
    dynamic_seed: bool | None = None,
) -> Policy[Any]:
    """Train a policy that learns from replay, as DI-engine's entry of the same name.

    The files of the run are in the folder ``exp_name``: ``config.yaml``, the same run for ``lightning-ding fit``,
    ``ckpt`` with the checkpoints, ``log`` with the metrics, and ``result.json``. If the folder exists, the run gets one
    with the time in its name, unless it continues (``learn.resume_training``) or runs on several ranks.

    Args:
        input_cfg: Path of a config file, which is run as Python code, or the pair ``(main_config, create_config)``,
            which is not changed.
        seed: Seed of the run, >= 0.
        env_setting: ``(env_fn, collector_env_cfg, evaluator_env_cfg)``: the env's class or function, which gets an
            element of the lists as ``cfg``; None means the config's ``env`` section.
        model: A network to use instead of the one that the config describes.
        max_train_iter: Updates after which the run ends, >= 1.
        max_env_step: Env steps over all ranks after which the run ends, >= 1.
        dynamic_seed: None or True: the episodes of a training env differ.

    Returns:
        The policy with the weights at the end of the run; those of the best evaluation are in ``ckpt/best.ckpt``.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy learns from rollouts.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step, dynamic_seed)
    other = "one that learns from replay (serial_pipeline_onpolicy trains the others)"
    is_replay_there = run.family == "coma"
    require(is_replay_there or not run.on_policy, "create_config.policy.type", other, run.policy)
    return train(run, model)


def serial_pipeline_onpolicy(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy that learns from rollouts: A2C, PPO, PPG or PG, with :func:`serial_pipeline`'s arguments.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy learns from replay.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    other = "one that learns from rollouts (serial_pipeline trains the others)"
    require(run.on_policy, "create_config.policy.type", other, run.policy)
    return train(run, model)


def serial_pipeline_onpolicy_ppg(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy with PPG. The arguments are those of :func:`serial_pipeline`.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy is another one.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    require(run.family == "ppg", "create_config.policy.type", "'ppg'", run.policy)
    return train(run, model)


def serial_pipeline_dyna(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train SAC with the world model ``mbpo``, which is MBPO. The arguments are those of :func:`serial_pipeline`.

    Raises:
        ValueError: If a key or value has no counterpart here, or there is no world model.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    require(run.policy == "mbpo", "create_config.world_model.type", "'mbpo'", None)
    return train(run, model)


def serial_pipeline_ngu(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy with NGU. The arguments are those of :func:`serial_pipeline`.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy is another one.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    require(run.family == "ngu", "create_config.policy.type", "'ngu'", run.policy)
    return train(run, model)


def serial_pipeline_offline(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy on a data set: CQL, discrete CQL, TD3+BC or the Decision Transformer.

    The arguments are those of :func:`serial_pipeline`. The config names the data set in ``policy.collect.data_path``,
    that of the Decision Transformer in ``dataset.data_dir_prefix``. Unlike DI-engine's entry it returns the policy
    alone.

    Raises:
        ValueError: If a key or value has no counterpart here, the policy learns from envs, or there is no data set.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter)
    other = "one that learns from a data set (serial_pipeline and serial_pipeline_onpolicy train the others)"
    require(run.policy_class.trains_on == "dataset", "create_config.policy.type", other, run.policy)
    return train(run, model)


def eval(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    state_dict: Mapping[str, Any] | None = None,
    load_path: str | None = None,
    replay_path: str | None = None,
) -> float:
    """Return the mean return of an evaluation of a policy.

    Args:
        input_cfg: As for :func:`serial_pipeline`.
        seed: Seed of the envs, >= 0.
        env_setting: As for :func:`serial_pipeline`.
        model: A network to use instead of the one that the config describes.
        state_dict: State of a policy: that of a mode, with the key ``model``, or of the whole policy.
        load_path: Checkpoint, ``*.ckpt`` of this package or ``*.pth.tar`` of DI-engine, if there is no ``state_dict``;
            None means ``policy.learn.learner.load_path`` or ``policy.load_path`` of the config.
        replay_path: Folder for a video of each episode; None means ``env.replay_path`` of the config.

    Raises:
        ValueError: If there are neither weights nor a path, or the config cannot be translated.
    """
    run = translate(input_cfg, seed, env_setting, evaluates=True, replay_path=replay_path)
    run.check_needs()
    path = load_path or run.evaluated
    needed = "given, or policy.learn.learner.load_path in the config, if there is no state_dict"
    require(state_dict is not None or bool(path), "load_path", needed, load_path)
    weights = InitialWeights(path) if state_dict is None else _State(state_dict)
    policy, data = make(run, model)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(**{**run.trainer, **quiet}, logger=False, callbacks=[weights])
    (scores,) = trainer.validate(policy, data, verbose=False)
    return float(scores["eval/return_mean"])


# ---------------------------------------------------------------------------------------------------- a run


def train(run: Run, model: nn.Module | None = None) -> Policy[Any]:
    """Train what a translated run describes and return the policy.

    Args:
        run: The run.
        model: A network to use instead of the one that the config describes.
    """
    for line in run.warnings:
        logger.warning("%s", line)
    run.check_needs()
    run = _in_new_folder(run)
    seed_everything(run.seed)
    policy, data = make(run, model)
    trainer = make_trainer(run)
    if trainer.is_global_zero:
        _save_config(run, model)
    trainer.fit(policy, data, ckpt_path=_to_resume(run), weights_only=True)
    if trainer.is_global_zero:
        _save_result(run, trainer, policy)
    return policy


def make(run: Run, model: nn.Module | None = None) -> tuple[Policy[Any], RunDataModule]:
    """Return the policy and the datamodule of a run."""
    return make_policy(run, model), run.datamodule_class(**run.data)


def make_policy(run: Run, model: nn.Module | None = None) -> Policy[Any]:
    """Return the policy of a run."""
    if model is None and run.network is not None:
        model = create_model(run.network)
    return run.policy_class(run.policy_config, model=model)


def make_trainer(run: Run) -> Trainer:
    """Return the Trainer of a run, with its logger and callbacks."""
    callbacks: list[Callback] = [make_object(one) for one in run.callbacks]
    return Trainer(**run.trainer, logger=make_object(run.logger), callbacks=callbacks)


def make_object(named: Named) -> Any:
    """Return the object that ``class_path`` and ``init_args`` describe."""
    found = named["class_path"]
    if isinstance(found, str):
        module, _, name = found.rpartition(".")
        found = getattr(import_module(module), name)
    return found(**named["init_args"])


def _in_new_folder(run: Run) -> Run:
    """Return the run with a folder that does not exist yet, unless it continues or other ranks need the same name."""
    folder = Path(run.exp_name)
    if folder.exists() and not run.resumes and "strategy" not in run.trainer:
        name = f"{run.exp_name}_{datetime.datetime.now():%y%m%d_%H%M%S}"
        while Path(name).exists():  # from the same second
            name += "_"
        rank_zero_info(f"{run.exp_name} exists: this run is in {name}")
        run = dataclasses.replace(run, exp_name=name)
    Path(run.exp_name).mkdir(parents=True, exist_ok=True)
    return run


def _to_resume(run: Run) -> str | None:
    """Return the checkpoint from which a run continues, if it does."""
    if not run.resumes:
        return None
    if run.checkpoint:
        ours = "a checkpoint of this package (*.ckpt) with learn.resume_training"
        require(run.checkpoint.endswith(".ckpt"), "learn.learner.hook.load_ckpt_before_run", ours, run.checkpoint)
        return run.checkpoint
    found = last_checkpoint(Path(run.exp_name) / "ckpt")
    return None if found is None else str(found)


def _save_config(run: Run, model: nn.Module | None) -> None:
    """Write the run as YAML, if it can be written."""
    try:
        text = to_yaml(run) if model is None else None
    except Unnamed as error:
        logger.info("%s is not written: %s", CONFIG, error)
        return
    if text is not None:
        (Path(run.exp_name) / CONFIG).write_text(text)


def _save_result(run: Run, trainer: Trainer, policy: Policy[Any]) -> None:
    mean = trainer.callback_metrics.get("eval/return_mean")
    value, goal = None if mean is None else float(mean), run.data.get("stop_value")
    result = {
        "stop": goal is not None and value is not None and value >= goal,
        "env_step": policy.progress.env_step,
        "train_iter": policy.progress.train_iter,
        "eval_value": value,
        "finish_time": time.ctime(),
    }
    (Path(run.exp_name) / RESULT).write_text(json.dumps(result, indent=1))


# ---------------------------------------------------------------------------------------------------- evaluation


class _State(Callback):
    """Load a state into the policy before a validation."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        if isinstance(self.state.get("model"), Mapping):
            pl_module.eval_mode.load_state_dict({"model": self.state["model"]})
        else:
            pl_module.load_state_dict(self.state)
