"""DI-engine's serial entries that learn a reward: from ranked trajectories (T-REX, D-REX) and by guided cost learning.

DI-engine's checkpoints of an expert play the trajectories, the earliest first, so that they are ranked by how long the
expert had been trained; for D-REX a clone of the last one plays with more and less noise. They are written to
``ranked_data.npz`` in the folder of the run.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import Trainer
from torch import nn

from lightning_ding.config import require
from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.di_engine.configs import Config, read_pair
from lightning_ding.di_engine.data_sets import FILES
from lightning_ding.di_engine.imitation import Pair, play_and_write, play_expert, with_reward_model
from lightning_ding.di_engine.reward_models import RANKED_FILE
from lightning_ding.di_engine.run import UNLIMITED, Run
from lightning_ding.di_engine.serial import train
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry.collect import check_noise, greedy_mode, play_episodes, play_with_noise
from lightning_ding.policy import BCPolicy, Policy

GUIDED_STEPS = 10_000
"""Env steps of the expert that guided cost learning learns from; DI-engine's expert plays in each round."""
PREFERENCES = ("trex", "drex")
COLLECT_EPS = 0.2  # DI-engine's share of random actions of an expert with an epsilon
EPS_LIST, PER_BIN, BC_UPDATES = (1.0, 0.75, 0.5, 0.25, 0.0), 20, 6000  # of D-REX, where the config has none
BC_BATCH = 64


def serial_pipeline_preference_based_irl(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy that learns from replay with a reward of ranked trajectories (T-REX, D-REX).

    The trajectories are those in ``ranked_data.npz`` in the folder ``exp_name``, which :func:`trex_collecting_data`
    writes, or in ``reward_model.data_path``; if there are none, the expert plays first. The arguments are those of
    :func:`~lightning_ding.di_engine.serial.serial_pipeline`.

    Raises:
        ValueError: If a key or value has no counterpart here, the reward model is another one, or the policy learns
            from rollouts.
        Missing: If there are neither trajectories nor checkpoints of the expert.
    """
    run = preference_run(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    return train(with_reward_model(run, on_policy=False), model)


def serial_pipeline_preference_based_irl_onpolicy(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Do the same as :func:`serial_pipeline_preference_based_irl` with a policy that learns from rollouts."""
    run = preference_run(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    return train(with_reward_model(run, on_policy=True), model)


serial_pipeline_trex = serial_pipeline_reward_model_trex = serial_pipeline_preference_based_irl
serial_pipeline_trex_onpolicy = serial_pipeline_reward_model_trex_onpolicy = (
    serial_pipeline_preference_based_irl_onpolicy
)


def preference_run(
    input_cfg: Any,
    seed: int,
    env_setting: Sequence[Any] | None,
    max_train_iter: int,
    max_env_step: int,
) -> Run:
    """Return the run of an entry of ranked trajectories, after the expert has played if there are none yet."""
    main, create = read_pair(input_cfg)
    rewards = _rewards(main, create, "trex", PREFERENCES)
    files = [str(rewards.get("data_path") or ""), str(Path(main["exp_name"]) / RANKED_FILE)]
    there = [file for file in files if file.endswith(FILES) and Path(file).is_file()]
    rewards["data_path"] = there[0] if there else play_ranked((main, create), seed, env_setting)
    pair = {**main, "reward_model": rewards}, {**create, "reward_model": {"type": rewards["type"]}}
    return translate(pair, seed, env_setting, max_train_iter, max_env_step)


def trex_collecting_data(args: argparse.Namespace | None = None) -> str:
    """Let an expert play the trajectories of T-REX or D-REX, and return the path of their file.

    Args:
        args: ``cfg``, path of a config file or a pair, and ``seed``, 0 by default; None reads them from the command
            line, as ``--cfg`` and ``--seed``.

    Raises:
        ValueError: If a key or value has no counterpart here, or the reward model is another one.
        Missing: If a checkpoint of the expert is missing.
    """
    if args is None:
        parser = argparse.ArgumentParser(description="Let an expert play ranked trajectories")
        parser.add_argument("--cfg", required=True)
        parser.add_argument("--seed", type=int, default=0)
        args = parser.parse_known_args()[0]
    return play_ranked(read_pair(args.cfg), getattr(args, "seed", 0), None)


def play_ranked(pair: Pair, seed: int, env_setting: Sequence[Any] | None) -> str:
    """Write the ranked trajectories of an expert's checkpoints, and return the path of the file.

    The expert has the policy of the pair itself, without its reward model.
    """
    main, create = pair
    rewards = _rewards(main, create, "trex", PREFERENCES)
    expert = translate(_without_rewards(pair), seed, env_setting)
    target = Path(main["exp_name"]) / RANKED_FILE
    paths = checkpoints_of(rewards)
    if rewards["type"] == "drex":
        return _play_noisy(expert, paths[-1], rewards, seed, target)
    eps = main["policy"].get("other", {}).get("eps")
    share = eps.get("collect", COLLECT_EPS) if isinstance(eps, Mapping) else None

    def play(policy: Any, env: Any, place: int) -> list[dict[str, Any]]:
        if share is None:
            return play_episodes(policy.collect_mode, env, 1)
        return play_with_noise(greedy_mode(policy), env, 1, [share], seed + place)

    return play_and_write(expert, paths, seed, play, target, num_envs=1)


def checkpoints_of(rewards: Mapping[str, Any]) -> list[str]:
    """Return the checkpoints of an expert that ``reward_model`` names, the earliest first.

    They are ``iteration_N.pth.tar`` of DI-engine, or ``iteration_N.ckpt`` of this package, in the folder ``ckpt`` of
    ``expert_model_path``.

    Raises:
        ValueError: If a key is missing.
    """
    for name in ("expert_model_path", "checkpoint_min", "checkpoint_max", "checkpoint_step"):
        allowed = "given, for the checkpoints of the expert; or put the trajectories into reward_model.data_path"
        require(rewards.get(name) is not None, f"reward_model.{name}", allowed, rewards.get(name))
    first, last, step = (rewards[f"checkpoint_{name}"] for name in ("min", "max", "step"))
    require(step >= 1, "reward_model.checkpoint_step", ">= 1", step)
    folder = Path(str(rewards["expert_model_path"])) / "ckpt"
    stems = [f"iteration_{number}" for number in range(first, last + step, step)]
    require(bool(stems), "reward_model.checkpoint_max", f">= checkpoint_min ({first})", last)
    ours = [folder / f"{stem}.ckpt" for stem in stems]
    return [str(path if path.is_file() else path.with_suffix(".pth.tar")) for path in ours]


def _play_noisy(expert: Run, path: str, rewards: Mapping[str, Any], seed: int, target: Path) -> str:
    """Clone an expert, or take a clone from a checkpoint, and write trajectories of the clone with falling noise."""
    noise = sorted(set(rewards.get("eps_list") or EPS_LIST), reverse=True)
    check_noise("reward_model.eps_list", noise)
    count = rewards.get("num_trajs_per_bin", PER_BIN)
    clone, found = None, str(rewards.get("bc_path") or "")
    if not Path(found).is_file():
        demonstrations = target.with_name("demonstrations.npz")

        def show(policy: Any, env: Any, _: int) -> list[dict[str, Any]]:
            return play_episodes(greedy_mode(policy), env, count)

        play_and_write(expert, [path], seed, show, demonstrations)
        clone = _clone(str(demonstrations), expert, rewards.get("bc_iterations", BC_UPDATES), seed)

    def play(policy: Any, env: Any, _: int) -> list[dict[str, Any]]:
        return play_with_noise(greedy_mode(clone or policy), env, count, noise, seed)

    return play_and_write(expert, [path if clone else found], seed, play, target)


def _clone(demonstrations: str, expert: Run, updates: int, seed: int) -> Policy[Any]:
    """Return a policy that learned the actions of demonstrations, with the layers of the expert's encoder."""
    network = expert.policy_config.get("model", {})
    layers = {name: network[name] for name in ("encoder_hidden_size_list",) if name in network}
    size = min(BC_BATCH, len(load_dataset(demonstrations)))
    policy = BCPolicy({"model": layers, "learn": {"batch_size": size}})
    policy.seed(seed)
    data = OfflineDataModule(demonstrations, max_train_iter=updates, seed=seed)
    quiet: Config = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(accelerator="cpu", enable_checkpointing=False, limit_val_batches=0, **quiet).fit(policy, data)
    return policy


def serial_pipeline_guided_cost(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    expert_model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy that learns from rollouts with the reward of guided cost learning.

    The expert has the config of the policy, and plays with the network in ``policy.collect.model_path``, unless
    ``reward_model.data_path`` names a data set. The arguments are those of
    :func:`~lightning_ding.di_engine.serial.serial_pipeline`; ``expert_model`` is a network of the expert.

    Raises:
        ValueError: If a key or value has no counterpart here, the reward model is another one, or the policy learns
            from replay, whose transitions have no probabilities of the actions.
        Missing: If there is neither a data set nor a checkpoint of the expert.
    """
    run = guided_cost_run(input_cfg, seed, env_setting, max_train_iter, max_env_step, expert_model)
    return train(with_reward_model(run, on_policy=True), model)


def guided_cost_run(
    input_cfg: Any,
    seed: int,
    env_setting: Sequence[Any] | None,
    max_train_iter: int,
    max_env_step: int,
    expert_model: nn.Module | None = None,
) -> Run:
    """Return the run of :func:`serial_pipeline_guided_cost`, after its expert has played."""
    main, create = pair = read_pair(input_cfg)
    rewards = _rewards(main, create, "guided_cost", ("guided_cost",))
    path = main["policy"].get("collect", {}).get("model_path")
    if not rewards.get("data_path"):
        expert = translate(_without_rewards(pair), seed, env_setting)
        require(expert.on_policy, "create_config.policy.type", "one that learns from rollouts", expert.policy)
        rewards["data_path"] = play_expert(expert, path, GUIDED_STEPS, seed, expert_model)
    main, create = _without_rewards(pair)
    pair = {**main, "reward_model": rewards}, {**create, "reward_model": {"type": "guided_cost"}}
    return translate(pair, seed, env_setting, max_train_iter, max_env_step)


def _rewards(main: Config, create: Config, default: str, allowed: Sequence[str]) -> Config:
    """Return the section ``reward_model`` of a pair, with its type."""
    found = {"type": default, **main.get("reward_model", {}), **create.get("reward_model", {})}
    require(found["type"] in allowed, "reward_model.type", f"one of {', '.join(allowed)}", found["type"])
    return found


def _without_rewards(pair: Pair) -> Pair:
    """Return the pair of the expert: the same policy, without a reward model and without the path of the expert."""
    main, create = copy.deepcopy(pair)
    main.pop("reward_model", None)
    create.pop("reward_model", None)
    main["policy"].get("collect", {}).pop("model_path", None)
    return main, create
