"""DI-engine's entries of ``ding.entry`` with its names: those of :mod:`lightning_ding.entry`, and demonstrations."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import nn

from lightning_ding import entry
from lightning_ding.config import require
from lightning_ding.utils.foreign import attach

_ENTRIES = [
    name for name in dir(entry) if name == "eval" or name.startswith(("serial_pipeline", "parallel_pipeline", "trex_"))
]
__all__ = [*_ENTRIES, "collect_demo_data", "collect_episodic_demo_data", "random_collect"]
_others = attach(__name__, dict.fromkeys(_ENTRIES, "entry"))[0]
logger = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    return _others(name)


class _Spaces(NamedTuple):
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    spec: Any = None


def collect_demo_data(
    input_cfg: Any,
    seed: int,
    collect_count: int,
    expert_data_path: str | None = None,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    state_dict: Mapping[str, Any] | None = None,
    state_dict_path: str | None = None,
) -> str:
    """Play whole episodes greedily with a trained policy, write them as a data set, and return its path.

    Args:
        input_cfg: Path of a config file, or ``(main_config, create_config)``.
        seed: Seed of the envs, >= 0.
        collect_count: Least number of transitions, >= 1.
        expert_data_path: Path of the data set; None means ``policy.collect.save_path`` of the config. Pickled files
            and HDF5 are not written: another ending than ``.npz`` is replaced by it, with a warning.
        env_setting: Class or function of the env, and configs of training and evaluation envs; None means the config's.
        model: A network to use instead of the one that the config describes.
        state_dict: State of a policy, with the key ``model``.
        state_dict_path: Checkpoint with it, if there is no ``state_dict``.

    Raises:
        ValueError: If the config cannot be translated, there are no weights, or the data set exists already.
    """
    weights = (model, state_dict, state_dict_path)
    return _collect(input_cfg, seed, collect_count, expert_data_path, env_setting, *weights, 0)


def collect_episodic_demo_data(
    input_cfg: Any,
    seed: int,
    collect_count: int,
    expert_data_path: str,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    state_dict: Mapping[str, Any] | None = None,
    state_dict_path: str | None = None,
) -> str:
    """Do the same as :func:`collect_demo_data` for a number of episodes ``collect_count``."""
    weights = (model, state_dict, state_dict_path)
    return _collect(input_cfg, seed, 0, expert_data_path, env_setting, *weights, collect_count)


def _collect(
    input_cfg: Any,
    seed: int,
    steps: int,
    target: str | None,
    env_setting: Sequence[Any] | None,
    model: nn.Module | None,
    state_dict: Mapping[str, Any] | None,
    state_dict_path: str | None,
    episodes: int,
) -> str:
    from lightning_ding.datamodules import save_dataset
    from lightning_ding.di_engine.configs import read_pair
    from lightning_ding.di_engine.serial import make
    from lightning_ding.di_engine.translate import translate

    require(steps + episodes >= 1, "collect_count", ">= 1", steps + episodes)
    main, create = read_pair(input_cfg)
    target = target or main["policy"].get("collect", {}).pop("save_path", None)
    require(bool(target), "expert_data_path", "given, or policy.collect.save_path in the config", target)
    path = Path(str(target))
    if path.suffix != ".npz":
        logger.warning("%s is written as %s", path, path.with_suffix(".npz"))
        path = path.with_suffix(".npz")
    run = translate((main, create), seed, env_setting)
    policy, _ = make(run, model)
    if state_dict is None:
        require(state_dict_path is not None, "state_dict_path", "given without a state_dict", state_dict_path)
        state_dict = torch.load(str(state_dict_path), map_location="cpu", weights_only=True)
    data = run.data
    env = _vector_env(data, seed)
    try:
        policy.build(env.single_observation_space, env.single_action_space)
        policy.eval_mode.load_state_dict({"model": state_dict.get("model", state_dict)})
        played = _played(policy, env, steps, episodes)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_dataset(played, str(path), _Spaces(env.single_observation_space, env.single_action_space), run.policy)
    finally:
        env.close()
    return str(path)


def _vector_env(data: Mapping[str, Any], seed: int) -> Any:
    """Return the envs of evaluations of a run."""
    from lightning_ding.envs import Pausable, make_vector_env

    wrappers = [*data.get("wrappers", ()), Pausable]
    kwargs = data.get("eval_env_kwargs") or data.get("env_kwargs")
    return make_vector_env(data["env_id"], data["num_envs"], "sync", seed, wrappers, kwargs)


def _played(policy: Any, env: Any, steps: int, episodes: int) -> list[Any]:
    """Return whole episodes of greedy actions, as columns."""
    from lightning_ding.worker import EpisodeSerialCollector

    def columns(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        names = ("reward", "next_obs", "terminated", "truncated")
        return {"obs": obs, "action": output["action"], **{name: getattr(timestep, name) for name in names}}

    greedy = policy.eval_mode
    mode = policy.collect_mode._replace(
        forward=lambda obs, **_: greedy.forward(obs), reset=greedy.reset, process_transition=columns
    )
    collector = EpisodeSerialCollector({"type": "episode"}, env, mode)
    found: list[Any] = []
    while len(found) < episodes or sum(len(one["reward"]) for one in found) < steps:
        found += collector.collect(min(episodes - len(found), env.num_envs) if episodes else env.num_envs)
    return found


def random_collect(
    policy_cfg: Mapping[str, Any],
    policy: Any,
    collector: Any,
    collector_env: Any,
    commander: Any,
    replay_buffer: Any,
    postprocess_data_fn: Any = None,
) -> None:
    """Collect ``random_collect_size`` transitions, or episodes with a collector of episodes, and store them.

    Args:
        policy_cfg: Config of the policy. With ``transition_with_policy_data`` the policy acts, and otherwise actions
            are random.
        policy: Not read, because the collector has its policy.
        collector: The collector, with its policy.
        collector_env: Not read.
        commander: Its ``step`` gives the arguments of the policy, if the policy acts.
        replay_buffer: The buffer.
        postprocess_data_fn: Function of the transitions whose result is stored; None stores them.
    """
    size = int(policy_cfg.get("random_collect_size", 0))
    require(size >= 1, "random_collect_size", ">= 1", size)
    acts = bool(policy_cfg.get("transition_with_policy_data", False))
    kwargs = commander.step() if acts else None
    data = collector.collect(size, policy_kwargs=kwargs, random_collect=not acts, record_random_collect=False)
    data = data if postprocess_data_fn is None else postprocess_data_fn(data)
    replay_buffer.push(data, cur_collector_envstep=0)
