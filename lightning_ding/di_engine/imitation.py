"""DI-engine's serial entries for policies that learn from an expert or with a reward model.

Their names and arguments are DI-engine's; each returns the policy alone. The demonstrations of an expert are played
before training and written to ``expert_data.npz`` in the folder of the expert's run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lightning_ding.callbacks import InitialWeights
from lightning_ding.config import deep_merge, require
from lightning_ding.datamodules import save_dataset
from lightning_ding.di_engine.configs import Config, Missing, policy_type, read_file, read_pair
from lightning_ding.di_engine.data_sets import EXPERT_FILE
from lightning_ding.di_engine.run import UNLIMITED, Run
from lightning_ding.di_engine.serial import make_policy, train
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry.collect import greedy_mode, play_episodes
from lightning_ding.envs import Pausable, make_vector_env
from lightning_ding.policy import Policy

SQIL_STEPS = 10_000
"""Env steps of the expert that SQIL learns from; DI-engine's expert plays in each round."""
GAIL_STEPS = 100_000
"""DI-engine's default of ``reward_model.collect_count``."""
DQFD_STEPS = 10_000
R2D3_SEQUENCES = 5000
EXPERTS = {"dqfd": "dqn", "r2d2_collect_traj": "r2d2", "offppo_collect_traj": "ppo_offpolicy"}
"""The policy that acts as an expert of each type of DI-engine."""
Pair = tuple[Config, Config]


def serial_pipeline_bc(
    input_cfg: Any,
    seed: int = 0,
    data_path: str | None = None,
    model: nn.Module | None = None,
    max_iter: int = 1_000_000,
) -> Policy[Any]:
    """Train a policy by supervised learning of the actions in a data set.

    Args:
        input_cfg: Path of a config file, which is run as Python code, or the pair ``(main_config, create_config)``.
        seed: Seed of the run, >= 0.
        data_path: The data set; None means ``policy.collect.data_path`` of the config.
        model: A network to use instead of the one that the config describes.
        max_iter: Updates after which the run ends, >= 1.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy is not one that imitates.
        Missing: If there is no data set.
    """
    pair = read_pair(input_cfg)
    kind = policy_type(*pair)
    require(kind == "bc", "create_config.policy.type", "'bc'", kind)
    return train(translate(with_data(pair, data_path), seed, max_train_iter=max_iter), model)


def serial_pipeline_sqil(
    input_cfg: Any,
    expert_cfg: Any = None,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    expert_model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy with a reward of 1 for the steps of an expert and 0 for its own (SQIL).

    Args:
        input_cfg: As for :func:`~lightning_ding.di_engine.serial.serial_pipeline`. ``policy.collect.model_path`` is the
            checkpoint of the expert.
        expert_cfg: Config of the expert, in the same form; None if ``policy.collect.data_path`` names a data set.
        seed: Seed of the run, >= 0.
        env_setting: As for ``serial_pipeline``.
        model: A network to use instead of the one that the config describes.
        expert_model: The same for the expert.
        max_train_iter: Updates after which the run ends, >= 1.
        max_env_step: Env steps after which the run ends, >= 1.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy learns from rollouts or a data set.
        Missing: If there is neither a data set nor a checkpoint of the expert.
    """
    run = sqil_run(input_cfg, expert_cfg, seed, env_setting, expert_model, max_train_iter, max_env_step)
    return train(run, model)


def sqil_run(
    input_cfg: Any,
    expert_cfg: Any,
    seed: int,
    env_setting: Sequence[Any] | None,
    expert_model: nn.Module | None,
    max_train_iter: int,
    max_env_step: int,
) -> Run:
    """Return the run of :func:`serial_pipeline_sqil`, after its expert has played."""
    pair = read_pair(input_cfg)
    pair = _with_expert(pair, expert_cfg, SQIL_STEPS, seed, env_setting, expert_model)
    return translate(pair, seed, env_setting, max_train_iter, max_env_step, entry="sqil")


def serial_pipeline_dqfd(
    input_cfg: Any,
    expert_cfg: Any = None,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    expert_model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train DQfD, with ``policy.learn.expert_replay_buffer_size`` steps of an expert.

    The arguments are those of :func:`serial_pipeline_sqil`.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy is not DQfD.
        Missing: If there is neither a data set nor a checkpoint of the expert.
    """
    run = dqfd_run(input_cfg, expert_cfg, seed, env_setting, expert_model, max_train_iter, max_env_step)
    return train(run, model)


def dqfd_run(
    input_cfg: Any,
    expert_cfg: Any,
    seed: int,
    env_setting: Sequence[Any] | None,
    expert_model: nn.Module | None,
    max_train_iter: int,
    max_env_step: int,
) -> Run:
    """Return the run of :func:`serial_pipeline_dqfd`, after its expert has played."""
    pair = read_pair(input_cfg)
    kind = policy_type(*pair)
    require(kind == "dqfd", "create_config.policy.type", "'dqfd'", kind)
    steps = _of(pair, "policy", "learn", "expert_replay_buffer_size", default=DQFD_STEPS)
    pair = _with_expert(pair, expert_cfg, steps, seed, env_setting, expert_model)
    return translate(pair, seed, env_setting, max_train_iter, max_env_step)


def serial_pipeline_r2d3(
    input_cfg: Any,
    expert_cfg: Any = None,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    expert_model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train R2D3, with demonstrations of an expert: ``policy.learn.expert_replay_buffer_size`` sequences of its config.

    The arguments are those of :func:`serial_pipeline_sqil`; the checkpoint is ``policy.collect.model_path`` of the
    expert's config.

    Raises:
        ValueError: If a key or value has no counterpart here, or the policy is not R2D3.
        Missing: If there is neither a data set nor a checkpoint of the expert.
    """
    run = r2d3_run(input_cfg, expert_cfg, seed, env_setting, expert_model, max_train_iter, max_env_step)
    return train(run, model)


def r2d3_run(
    input_cfg: Any,
    expert_cfg: Any,
    seed: int,
    env_setting: Sequence[Any] | None,
    expert_model: nn.Module | None,
    max_train_iter: int,
    max_env_step: int,
) -> Run:
    """Return the run of :func:`serial_pipeline_r2d3`, after its expert has played."""
    pair = read_pair(input_cfg)
    kind = policy_type(*pair)
    require(kind == "r2d3", "create_config.policy.type", "'r2d3'", kind)
    if expert_cfg is not None:
        expert: Any = read_expert(expert_cfg)
        sequences = _of(expert, "policy", "learn", "expert_replay_buffer_size", default=R2D3_SEQUENCES)
        steps = sequences * _of(expert, "policy", "collect", "unroll_len", default=1)
        path = _of(pair, "policy", "collect", "model_path", default=None)
        path = _of(expert, "policy", "collect", "model_path", default=path)
        pair = deep_merge(pair[0], {"policy": {"collect": {"model_path": path}}}), pair[1]
        pair = _with_expert(pair, expert, steps, seed, env_setting, expert_model)
    return translate(pair, seed, env_setting, max_train_iter, max_env_step)


def read_expert(source: Any) -> Pair:
    """Return the pair of an expert; a file of R2D3 may have it as ``expert_main_config`` and ``expert_create_config``.

    Raises:
        ValueError: If the file or the pair lacks one of them.
    """
    if not isinstance(source, (str, Path)):
        return read_pair(source)
    names = ("expert_main_config", "expert_create_config")
    has_both = (
        all(name in Path(source).read_text(errors="replace") for name in names) if Path(source).is_file() else False
    )
    return read_pair(read_file(source, names) if has_both else source)


def serial_pipeline_gail(
    input_cfg: Any,
    expert_cfg: Any = None,
    seed: int = 0,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
    collect_data: bool = True,
) -> Policy[Any]:
    """Train a policy whose reward is that of GAIL, which tells its steps from those of an expert.

    Args:
        input_cfg: As for ``serial_pipeline``; ``reward_model.expert_model_path`` is the checkpoint of the expert.
        expert_cfg: Config of the expert; None without ``collect_data``.
        seed: Seed of the run, >= 0.
        model: A network to use instead of the one that the config describes.
        max_train_iter: Updates after which the run ends, >= 1.
        max_env_step: Env steps after which the run ends, >= 1.
        collect_data: Whether the expert plays first; False reads ``reward_model.data_path``.

    Raises:
        ValueError: If a key or value has no counterpart here, or the reward model is another one.
        Missing: If there is neither a data set nor a checkpoint of the expert.
    """
    return train(gail_run(input_cfg, expert_cfg if collect_data else None, seed, max_train_iter, max_env_step), model)


def gail_run(input_cfg: Any, expert_cfg: Any, seed: int, max_train_iter: int, max_env_step: int) -> Run:
    """Return the run of :func:`serial_pipeline_gail`, after its expert has played."""
    main, create = read_pair(input_cfg)
    rewards = {"type": "gail", **main.get("reward_model", {}), **create.get("reward_model", {})}
    require(rewards["type"] == "gail", "reward_model.type", "'gail'", rewards["type"])
    if expert_cfg is not None:
        expert = _expert_run(expert_cfg, seed, None)
        steps = rewards.get("collect_count", GAIL_STEPS)
        rewards["data_path"] = play_expert(expert, rewards.get("expert_model_path"), steps, seed)
    create.pop("reward_model", None)
    return translate(({**main, "reward_model": rewards}, create), seed, None, max_train_iter, max_env_step)


def serial_pipeline_reward_model_offpolicy(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy that learns from replay with a reward model. The arguments are those of ``serial_pipeline``.

    Raises:
        ValueError: If a key or value has no counterpart here, there is no reward model, or the policy learns from
            rollouts.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    return train(with_reward_model(run, on_policy=False), model)


def serial_pipeline_reward_model_onpolicy(
    input_cfg: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    model: nn.Module | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
) -> Policy[Any]:
    """Train a policy that learns from rollouts with a reward model. The arguments are those of ``serial_pipeline``.

    Raises:
        ValueError: If a key or value has no counterpart here, there is no reward model, or the policy learns from
            replay.
    """
    run = translate(input_cfg, seed, env_setting, max_train_iter, max_env_step)
    return train(with_reward_model(run, on_policy=True), model)


def with_reward_model(run: Run, on_policy: bool) -> Run:
    """Return a run, after a check that it has a reward model and a policy of a kind.

    Raises:
        ValueError: If not.
    """
    kind = run.policy_config.get("reward_model", {}).get("type")
    require(kind is not None, "reward_model", "a section of the config with a type, such as rnd, icm or gail", kind)
    here, other = ("rollouts", "off") if on_policy else ("replay", "on")
    allowed = f"one that learns from {here} (serial_pipeline_reward_model_{other}policy trains the others)"
    require(run.on_policy == on_policy, "create_config.policy.type", allowed, run.policy)
    return run


# ---------------------------------------------------------------------------------------------------- experts


def with_data(pair: Pair, path: str | None) -> Pair:
    """Return a pair that learns from a data set; without a path the pair itself."""
    if path is None:
        return pair
    main, create = pair
    return deep_merge(main, {"policy": {"collect": {"data_path": str(path)}}}), create


def _with_expert(
    pair: Pair,
    expert_cfg: Any,
    steps: int,
    seed: int,
    env_setting: Sequence[Any] | None,
    model: nn.Module | None,
) -> Pair:
    """Return a pair with the data set of its expert, which plays if the pair names none."""
    if expert_cfg is None or _of(pair, "policy", "collect", "data_path", default=None):
        return pair
    expert = _expert_run(expert_cfg, seed, env_setting)
    path = _of(pair, "policy", "collect", "model_path", default=None)
    return with_data(pair, play_expert(expert, path, steps, seed, model))


def _expert_run(expert_cfg: Any, seed: int, env_setting: Sequence[Any] | None) -> Run:
    """Return the run of an expert; that of DQfD is a DQN, which needs no demonstrations."""
    main, create = copy.deepcopy(read_pair(expert_cfg))
    kind = policy_type(main, create)
    if kind in EXPERTS:
        main["policy"].pop("type", None)
        create["policy"]["type"] = EXPERTS[kind]
        main["policy"].get("learn", {}).pop("expert_replay_buffer_size", None)
    if kind.endswith("_collect_traj"):  # it does not learn, so its config does not say how much it collects
        main["policy"].setdefault("collect", {}).setdefault("n_sample", 1)
        main["policy"]["collect"].pop("unroll_len", None)
    return translate((main, create), seed, env_setting)


def _of(pair: Pair, *path: str, default: Any) -> Any:
    """Return a value of the first config of a pair."""
    found: Any = pair[0]
    for name in path:
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return default if found == {} or found is None else found


def play_expert(run: Run, path: Any, steps: int, seed: int, model: nn.Module | None = None) -> str:
    """Play whole episodes with an expert in its training envs, write them, and return the path of the file.

    Args:
        run: Translated run of the expert.
        path: Checkpoint of the expert, ``*.ckpt`` of this package or ``*.pth.tar`` of DI-engine.
        steps: Number of env steps to reach, >= 1.
        seed: Seed of the envs, >= 0.
        model: A network to use instead of the one that the expert's config describes.

    Raises:
        Missing: If there is no such checkpoint.
        ValueError: If ``steps`` is too small, or the checkpoint does not fit the expert.
    """
    require(isinstance(steps, int) and steps >= 1, "the number of the expert's steps", "an int >= 1", steps)
    file = Path(run.exp_name) / EXPERT_FILE
    return play_and_write(run, [path], seed, lambda policy, env, _: _play(policy, env, steps), file, model)


def play_and_write(
    run: Run,
    paths: Sequence[Any],
    seed: int,
    play: Callable[[Any, Any, int], list[dict[str, Any]]],
    file: Path,
    model: nn.Module | None = None,
    num_envs: int | None = None,
) -> str:
    """Play with the network of each of some checkpoints in turn, write all episodes, and return the path of the file.

    Args:
        run: Translated run of the expert.
        paths: Checkpoints of the expert, ``*.ckpt`` of this package or ``*.pth.tar`` of DI-engine.
        seed: Seed of the envs and of the policy, >= 0.
        play: Returns episodes of a policy in a vector env; the third argument is the place of the checkpoint.
        file: Path of the file, which is overwritten.
        model: A network to use instead of the one that the expert's config describes.
        num_envs: Number of envs; None for that of the run.

    Raises:
        Missing: If there is no such checkpoint.
        ValueError: If a checkpoint does not fit the expert.
    """
    run.check_needs()
    for path in paths:
        if not Path(str(path)).is_file():
            there = f"there is no file {str(path)!r}"
            raise Missing(f"the expert's network must be a checkpoint, but {there}", "checkpoint")
    policy: Any = make_policy(run, model)
    data = run.data
    env = make_vector_env(
        data["env_id"],
        num_envs=num_envs or data["num_envs"],
        mode="sync",
        seed=np.random.SeedSequence([seed, 0]),
        wrappers=[*data.get("wrappers", ()), *data.get("train_wrappers", ()), Pausable],
        env_kwargs=data.get("env_kwargs"),
        import_names=data.get("import_names", ()),
    )
    try:
        policy.build(env.single_observation_space, env.single_action_space)
        policy.seed(np.random.SeedSequence([seed, 1]))
        episodes = list[dict[str, Any]]()
        for place, path in enumerate(paths):
            InitialWeights(str(path)).load(policy)
            episodes += play(policy, env, place)
        file.unlink(missing_ok=True)  # of an earlier run
        save_dataset(episodes, str(file), _Played(env), type(policy).__name__)
    finally:
        env.close()
    return str(file)


class _Played:
    """One of several envs, as a writer of data sets reads it."""

    def __init__(self, env: Any) -> None:
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.spec = None


def _play(policy: Any, env: Any, steps: int) -> list[dict[str, Any]]:
    """Return whole episodes of the eval mode, as many as needed for a number of steps."""
    mode, episodes, played = greedy_mode(policy), list[dict[str, Any]](), 0
    while played < steps:
        found = play_episodes(mode, env, env.num_envs)
        episodes += found
        played += sum(len(one["reward"]) for one in found)
    return episodes
