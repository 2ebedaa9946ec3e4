"""The settings of a buffer, or of rollouts, and which policies a distributed run can train."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lightning_ding.config import require, to_dict
from lightning_ding.distributed.config import CoordinatorConfig, ParallelConfig
from lightning_ding.distributed.coordinator.rollouts import RolloutSettings
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.vector import MODES, SEPARATE_MODES
from lightning_ding.policy import create_policy, get_policy_cls
from lightning_ding.registry import POLICY_REGISTRY, REWARD_MODEL_REGISTRY
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.worker import get_buffer_cls, get_serial_collector_cls
from lightning_ding.worker.buffer.base import check_samples
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True)
class ReplaySettings:
    """Settings for filling and reading a buffer or rollouts, from the configs of the run and the policy."""

    config: ParallelConfig
    envs: int
    """Number of env ids of each collector."""
    round_size: int
    """Transitions or sequences of a round: all its minibatches together."""
    columns: tuple[str, ...]
    """Columns that each block needs in addition to those of all transitions."""
    rollout: RolloutSettings | None = None
    """Settings of rollouts, for a policy that learns from those of its newest weights; None for a replay buffer."""
    buffer: dict[str, Any] = field(default_factory=dict)
    """The buffer's section of the policy's config; empty for rollouts, as all settings below have their defaults."""
    warm_up: int = 0
    """Transitions that are collected before the first round."""
    random: int = 0
    """Transitions that are collected with random actions."""
    batch_size: int = 1
    samples_per_insert: float = 1.0
    sample_options: dict[str, Any] = field(default_factory=dict)
    """Options of the policy for the buffer's ``sample``, such as ``n_step`` and ``discount_factor``."""
    sends_new: bool = False
    """Whether a round also has the transitions since the last one, for a reward model that learns from them."""

    @classmethod
    def of(cls, config: ParallelConfig) -> ReplaySettings:
        """Return the settings of a run.

        Raises:
            ValueError: If a distributed run cannot train the policy, or its buffer does not fit it or a distributed
                run.
        """
        check_policy(config.main.policy, config.main.demonstrations)
        name, policy = str(config.main.policy["type"]), create_policy(config.main.policy, enable_field=["command"])
        if policy.on_policy:
            return cls._of_rollouts(config, policy)
        check_unused(config.system.coordinator, ("rollout_share", "late_transitions"), "which learns from replay", name)
        has_rewards = config.main.norm_reward
        require(not has_rewards, "main.norm_reward", f"False with {name!r}, which learns from replay", has_rewards)
        buffer = policy.config.other.replay_buffer
        check_buffer(buffer, policy.priority, bool(policy.learns_from_sequences))
        try:
            options = policy.sample_options
        except NotImplementedError:  # there is no discount factor
            options = {"n_step": 1, "discount_factor": 1.0}
        if get_buffer_cls(buffer).needs_env:
            check_env(config, buffer.type, options.get("n_step", 1))
        sends_new = _sends_new(config, policy, options)
        coordinator, batch_size = config.system.coordinator, policy.batch_size
        size, fits = buffer.replay_buffer_size, f"at least learn.batch_size ({batch_size})"
        require(size >= batch_size, "other.replay_buffer.replay_buffer_size", fits, size)
        own = batch_size - _demonstrations_of_batch(config, policy)
        random, sampled = policy.random_collect_size, policy.update_per_collect * own
        return cls(
            config=config,
            buffer=to_dict(buffer),
            warm_up=max(batch_size, random),
            random=random,
            batch_size=batch_size,
            round_size=math.ceil(sampled),
            samples_per_insert=coordinator.samples_per_insert or sampled / cast(int, policy.n_sample),
            envs=_number_of_env_ids(config, policy),
            sample_options=options,
            columns=(STATE, IS_FIRST) if policy.stores_memory else (),
            sends_new=sends_new,
        )

    @classmethod
    def _of_rollouts(cls, config: ParallelConfig, policy: Any) -> ReplaySettings:
        """Return the settings of a run whose policy learns from rollouts of its newest weights.

        Raises:
            ValueError: If a setting has no effect, or cannot be used, with such a policy.
        """
        name, coordinator = str(config.main.policy["type"]), config.system.coordinator
        check_unused(coordinator, OF_REPLAY, "which learns from rollouts of its newest weights", name)
        learner, collector = config.system.learner, config.system.collector
        why = f"with {name!r}, which learns from rollouts of its newest weights"
        require(learner.send_policy_freq == 1, "system.learner.send_policy_freq", f"1 {why}", learner.send_policy_freq)
        require(learner.prefetch <= 1, "system.learner.prefetch", f"0, or left out, {why}", learner.prefetch)
        pause = collector.update_policy_second
        require(pause == 0, "system.collector.update_policy_second", f"0 {why}", pause)
        devices = learner.trainer.get("devices") if learner.multi_gpu else 1
        require(devices is not None, "system.learner.trainer.devices", f"set with multi_gpu {why}", devices)
        ranks = number_of_ranks(config)
        size, in_episodes = rollout_size(policy, ranks)
        rollout = RolloutSettings(size, in_episodes, coordinator.rollout_share, coordinator.late_transitions == "use")
        part = f"so large that {ranks} ranks can share {rollout.enough} {'episodes' if in_episodes else 'transitions'}"
        require(rollout.enough >= ranks, "system.coordinator.rollout_share", part, coordinator.rollout_share)
        kind = policy.config.reward_model.type
        is_whole = ranks == 1 or kind is None or not REWARD_MODEL_REGISTRY.get(kind).rewards_once
        allowed = "one that does not reward whole episodes, with several ranks, which may share an episode"
        require(is_whole, f"{NAME}.reward_model.type", allowed, kind)
        return cls(
            config=config,
            envs=_number_of_env_ids(config, policy),
            round_size=size,
            columns=(STATE, IS_FIRST) if policy.stores_memory else (),
            rollout=rollout,
        )

    def make_env(self) -> Any:
        """Return a vector env with one env for collecting, which is not stepped."""
        env = self.config.main.env
        env_id, kwargs, wrappers = env.collecting
        return make_vector_env(env_id, 1, "sync", None, wrappers, kwargs, import_names=env.import_names)


def _number_of_env_ids(config: ParallelConfig, policy: Any) -> int:
    """Return the number of env ids of each collector: those of the players, in games.

    Raises:
        ValueError: If the policy cannot play games that ``marine`` collectors collect in.
    """
    envs = config.main.env.collector_env_num
    if config.system.collector.type != "marine":
        return envs
    name, instead = str(config.main.policy["type"]), "with marine collectors"
    require(not policy.has_memory, "main.policy", f"one without memory {instead}", name)
    require(not policy.keeps_noise, "main.policy.model.use_sde", f"False {instead}", True)
    if policy.on_policy:
        kind, in_episodes = policy.config.collect.collector.type, rollout_size(policy)[1]
        allowed = f"one that counts transitions {instead}"
        require(not in_episodes, "main.policy.collect.collector.type", allowed, kind)
    return 2 * envs


def check_env(config: ParallelConfig, kind: str, n_step: int) -> None:
    """Check that a run can use a buffer that needs an env.

    Args:
        config: Config of the run.
        kind: Type of the buffer.
        n_step: Steps of the returns that the policy learns from, >= 1.

    Raises:
        ValueError: If it cannot.
    """
    mode, collector = config.main.env.mode, config.system.collector.type
    needed = f"with other.replay_buffer.type {kind!r}"
    require(collector == "zergling", "system.collector.type", f'"zergling" {needed}', collector)
    require(MODES[mode].has_separate_envs, "main.env.mode", f"one of {SEPARATE_MODES} {needed}", mode)
    require(n_step == 1, "nstep", f"1 {needed}: rewards of several steps have no new goal", n_step)


def check_buffer(cfg: ReplayBufferConfig | Mapping[str, Any], priority: bool, in_sequences: bool = False) -> None:
    """Check that a buffer can be used in a distributed run.

    Args:
        cfg: Config of the buffer.
        priority: Whether the policy computes priorities.
        in_sequences: Whether the policy learns from sequences.

    Raises:
        ValueError: If the buffer cannot be used.
    """
    check_samples(cfg, in_sequences, priority)
    path, config = "other.replay_buffer", get_buffer_cls(cfg).resolve_config(cfg)
    instead = "left at its default: use coordinator.samples_per_insert and tolerance in a distributed run"
    limits = getattr(config, "thruput_controller", None)  # the advanced buffer has them
    require(limits is None or not limits.is_active, f"{path}.thruput_controller", instead, limits)
    tracks = config.enable_track_used_data
    require(not tracks, f"{path}.enable_track_used_data", "False in a distributed run", tracks)


OF_REPLAY = ("samples_per_insert", "tolerance", "max_policy_lag", "on_policy_lag")
"""Settings of ``system.coordinator`` that are for replay buffers only."""


def check_unused(coordinator: CoordinatorConfig, names: tuple[str, ...], why: str, policy: str) -> None:
    """Check that settings of the coordinator without effect have their defaults.

    Raises:
        ValueError: If one has not.
    """
    defaults = CoordinatorConfig()
    for name in names:
        value, default = getattr(coordinator, name), getattr(defaults, name)
        require(value == default, f"system.coordinator.{name}", f"{default!r} with {policy!r}, {why}", value)


def number_of_ranks(cfg: ParallelConfig) -> int:
    """Return the number of ranks: ``devices`` times ``num_nodes`` of the Trainer with ``multi_gpu``, otherwise 1.

    Raises:
        ValueError: If one of the two is not a number.
    """
    if not cfg.system.learner.multi_gpu:
        return 1
    trainer, ranks = cfg.system.learner.trainer, 1
    for name in ("devices", "num_nodes"):
        value = trainer.get(name, 1)
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        allowed = "an integer >= 1 with multi_gpu over Ray, and with on-policy algorithms"
        require(good, f"system.learner.trainer.{name}", allowed, value)
        ranks *= value
    return ranks


def rollout_size(policy: Any, ranks: int = 1) -> tuple[int, bool]:
    """Return the size of a rollout for all ranks, and whether it counts whole episodes instead of transitions."""
    in_episodes = get_serial_collector_cls(policy.config.collect.collector).collects_whole_episodes
    amount = policy.n_episode if in_episodes else policy.n_sample
    wanted, kind = "n_episode" if in_episodes else "n_sample", policy.config.collect.collector.type
    require(amount is not None, f"main.policy.collect.{wanted}", f"set with the collector {kind!r}", amount)
    return ranks * int(amount), in_episodes


def _demonstrations_of_batch(config: ParallelConfig, policy: Any) -> float:
    """Return how many demonstrations the learner adds to a minibatch, on average."""
    if config.main.demonstrations is None:
        return 0
    from lightning_ding.datamodules.demonstrations import mean_number

    return mean_number(config.main.demonstration_share, policy.batch_size, policy.rounds_share_at_random)


NAME = "main.policy"


def check_policy(policy: Mapping[str, Any], demonstrations: str | None = None) -> None:
    """Check that a distributed run can train a policy.

    Args:
        policy: ``type`` and config of the policy.
        demonstrations: Data set of the run's demonstrations; None if it has none.

    Raises:
        ValueError: If it cannot; the message names those that it can train, or what to do instead.
    """
    found, kind = get_policy_cls(policy), str(policy["type"])
    these = f"one of {', '.join(known_policies())} in a distributed run (`lightning-ding fit` trains this one on "
    require(found.trains_on == "envs", NAME, f"{these}its data set)", kind)
    use, key = str(getattr(found, "demonstrations", "optional")), "main.demonstrations"
    has_enough = demonstrations is not None or use not in ("needed", "imitated")
    require(has_enough, key, f"a data set, because {kind!r} learns from demonstrations", demonstrations)
    require(not _imagines(found), NAME, f"{these}a model of the env, which a replay buffer next to it trains)", kind)
    made = create_policy(policy, enable_field=["command"])
    refuses = found.on_policy or use == "refused" or (use == "optional" and made.learns_from_sequences)
    allowed = f"None, because {kind!r} learns from sequences, or from what only it collects"
    require(demonstrations is None or not refuses, key, allowed, demonstrations)
    if found.on_policy:
        rollout_size(made)
    else:
        counted = "None in a distributed run that learns from replay, which counts transitions"
        require(made.n_episode is None, f"{NAME}.collect.n_episode", counted, made.n_episode)
        require(made.n_sample is not None, NAME, "one that collects", kind)
        kind = made.config.reward_model.type
        stores = kind is not None and REWARD_MODEL_REGISTRY.get(kind).rewards_once
        allowed = "one that does not reward each transition once in a distributed run, unless the policy is on-policy"
        require(not stores, f"{NAME}.reward_model.type", allowed, kind)


def _sends_new(config: ParallelConfig, policy: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a policy that learns from replay has a reward model that learns from what is collected.

    Args:
        config: Config of the run.
        policy: The policy.
        options: Its options for the buffer's ``sample``.

    Raises:
        ValueError: If the policy or the run cannot have the reward model.
    """
    if (kind := policy.config.reward_model.type) is None:
        return False
    is_single = not policy.learns_from_sequences and not options.get("first_step", False)
    allowed = f"None with {config.main.policy['type']!r}, which does not learn from single rewarded steps"
    require(is_single, f"{NAME}.reward_model.type", allowed, kind)
    learns, ranks = not REWARD_MODEL_REGISTRY.get(kind).trains_once, config.system.learner.multi_gpu
    allowed = "False with a reward model that learns from what a policy with replay collects"
    require(not (learns and ranks), "system.learner.multi_gpu", allowed, ranks)
    return learns


def known_policies() -> list[str]:
    """Return the names of the registered policies that a distributed run can train, sorted.

    Example:
        >>> {"dqn", "impala", "ppo", "sac"} <= set(known_policies())
        True
        >>> {"bc", "cql", "mbpo"} & set(known_policies())
        set()
    """
    kinds: dict[str, Any] = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    return sorted(name for name, one in kinds.items() if one.trains_on == "envs" and not _imagines(one))


def _imagines(found: Any) -> bool:
    return bool(getattr(found, "imagines", False))
