"""State of a rank that a resumed run continues from: random numbers, attributes of the policy, and the collection."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from lightning.pytorch import Trainer

from lightning_ding.checkpoints import save_object
from lightning_ding.checkpoints.folder import OWN_STATE_FILE
from lightning_ding.envs import NotPlainError, env_state, load_env_state
from lightning_ding.worker import ISerialCollector

State = dict[str, Any]
logger = logging.getLogger(__name__)


def has_same_seed(policy: Any, state: Mapping[str, Any], folder: Path, seed: int, logs: bool) -> bool:
    """Return whether the random number generators of a checkpoint continue.

    Args:
        policy: The policy, which has been loaded.
        state: State of the datamodule in the checkpoint.
        folder: Folder of the ranks, for messages.
        seed: Seed of the resumed run.
        logs: Whether to log that seeds have changed.
    """
    saved, of_process = state.get("seed", seed), policy.trained_in.get("seed_everything")  # older ones have no seed
    now = os.environ.get("PL_GLOBAL_SEED", "")
    if saved != seed and logs:
        logger.warning(
            "%s was written with seed %d and is resumed with %d: weights, counters and buffers continue, in new "
            "episodes with new random numbers", folder, saved, seed,
        )  # fmt: skip
    elif of_process is not None and now not in ("", str(of_process)) and logs:
        logger.warning(
            "seed_everything %s has no effect, because the random numbers of %s continue, whose run began with %s; "
            "set another seed of the data to begin new ones", now, folder, of_process,
        )  # fmt: skip
    return bool(saved == seed)


def save_own_state(policy: Any, trainer: Trainer, folder: Path) -> None:
    """Write the attributes of a policy in this rank, unless it is rank zero, whose attributes are in ``run.ckpt``."""
    if not trainer.is_global_zero:
        save_object(policy.learner.own_state.state(whole=True), folder / OWN_STATE_FILE)


def load_own_state(policy: Any, folder: Path) -> None:
    """Restore the attributes of a policy in this rank, after those of rank zero were restored from ``run.ckpt``."""
    if (folder / OWN_STATE_FILE).is_file():
        policy.learner.own_state.load(torch.load(folder / OWN_STATE_FILE, weights_only=True))


def rng_state(exploration: np.random.Generator) -> dict[str, Any]:
    """Return the states of the global generators of Python, numpy and torch, and of the policy's generator."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "exploration": exploration.bit_generator.state,
    }


def set_rng_state(state: Mapping[str, Any], exploration: np.random.Generator) -> None:
    """Restore the states that ``rng_state`` returned; for CUDA, only those of devices that exist here."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, saved in zip(range(devices), state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    exploration.bit_generator.state = state["exploration"]


def load_collecting(file: Path) -> State:
    """Read the file of a state that ``read_collecting`` returned; tensors of a device that is not here are on the CPU.

    The state of tensor envs has tensors of their device.
    """
    state: State = torch.load(file, weights_only=True, map_location=_where_possible)
    return state


def _where_possible(storage: Any, location: str) -> Any:
    """Return a storage of the CPU, or None, which moves it to the device on which it was saved."""
    kind, _, index = location.partition(":")
    is_here = int(index or 0) < torch.cuda.device_count() if kind == "cuda" else kind == torch.get_default_device().type
    return None if is_here else storage


def read_collecting(
    policy: Any, collector: ISerialCollector, env: VectorEnv, evaluation_env: VectorEnv | None
) -> State:
    """Return the state that determines the next collected data, apart from random number generators and weights.

    The entry ``missing`` gives the reason if an env or the collector cannot return its state, and is None otherwise.
    The entry ``lost`` has descriptions of what the envs depend on and their state does not contain.
    """
    state: State = {"memory": policy.collect_memory(), "metrics": policy.metrics.state_dict(), "missing": None}
    state |= {"returns": policy.normaliser.episode_state(), "collect_metrics": policy.collect_metrics.state_dict()}
    state |= {} if policy.learner.rewards is None else {"rewards": policy.learner.rewards.state()}
    state |= {"collector": None, "envs": None, "evaluation_envs": None, "lost": []}
    try:
        state["collector"] = collector.state_dict()
        state["envs"] = env_state(env)
        state["evaluation_envs"] = None if evaluation_env is None else env_state(evaluation_env)
        state["lost"] = sorted({*state["envs"]["lost"], *(state["evaluation_envs"] or state["envs"])["lost"]})
    except (NotPlainError, NotImplementedError) as error:
        state["missing"] = str(error)
    return state


def restore_collecting(
    state: Mapping[str, Any],
    policy: Any,
    collector: ISerialCollector,
    env: VectorEnv,
    evaluation_env: VectorEnv | None,
) -> str | None:
    """Restore the state that ``read_collecting`` returned, after the envs were reset.

    If the episodes cannot be continued, return the reason; the caller must then start new ones.
    """
    missing: str | None = state["missing"] or _other_collector(state["collector"], collector)
    policy.metrics.load_state_dict(state["metrics"], policy.device)
    if "collect_metrics" in state:  # older versions did not save them
        policy.collect_metrics.load_state_dict(state["collect_metrics"], policy.device)
    if "rewards" in state:
        policy.learner.rewards.load_state(state["rewards"])
    if missing is None:
        try:
            load_env_state(env, state["envs"])
            if evaluation_env is not None and state["evaluation_envs"] is not None:
                load_env_state(evaluation_env, state["evaluation_envs"])
        except NotPlainError as error:
            missing = str(error)
    if state["collector"] is not None:
        collector.load_state_dict(state["collector"], continues=missing is None)
    if missing is None:
        policy.load_collect_memory(state["memory"])
        policy.normaliser.load_episode_state(state["returns"])
    return missing


def _other_collector(saved: Mapping[str, Any] | None, collector: ISerialCollector) -> str | None:
    """Return a message if the state is from a different collector class; None if it is not or names no class."""
    name = type(collector).__name__
    was = name if saved is None else saved.get("class", name)
    return None if was == name else f"the collector was a {was}, now it is a {name}"
