"""What a policy's config says of how it is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_ding.config import require, resolve, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.policy import create_policy, get_policy_cls
from lightning_ding.worker import get_buffer_cls
from lightning_ding.worker_config import ReplayBufferConfig


@dataclass(frozen=True)
class ReplaySettings:
    """How a buffer of a distributed run is filled and read."""

    buffer: dict[str, Any]
    """The policy's config of its buffer."""
    warm_up: int
    """Transitions collected before the first round."""
    random: int
    """Transitions that are collected with random actions."""
    batch_size: int
    round_size: int
    """Transitions that a round learns from."""
    samples_per_insert: float
    tolerance: float
    envs: int
    """Numbers that a collector has for its envs."""
    seed: int
    max_policy_lag: int | None = None
    drops_old: bool = True
    """Whether what is too old is left out; if not, the learner waits."""
    budget: int | None = None
    """Env steps of the whole run."""

    @classmethod
    def of(cls, config: ParallelConfig) -> ReplaySettings:
        """Return those of a run.

        Raises:
            ValueError: If the policy does not learn from replay, or its buffer does not fit it or a distributed run.
        """
        on_policy, name = get_policy_cls(config.main.policy).on_policy, str(config.main.policy["type"])
        require(not on_policy, "main.policy", "one that learns from replay", name)
        policy = create_policy(config.main.policy, enable_field=["command"])
        buffer = policy.config.other.replay_buffer
        check_buffer(buffer, bool(policy.get_attribute("priority")))
        coordinator, batch_size = config.system.coordinator, policy.get_attribute("batch_size")
        size, fits = buffer.replay_buffer_size, f"at least learn.batch_size ({batch_size})"
        require(size >= batch_size, "other.replay_buffer.replay_buffer_size", fits, size)
        random, round_size = policy.get_attribute("random_collect_size"), policy.get_attribute("update_per_collect")
        round_size *= batch_size
        players = 2 if config.system.collector.type == "marine" else 1
        return cls(
            buffer=to_dict(buffer),
            warm_up=max(batch_size, random),
            random=random,
            batch_size=batch_size,
            round_size=round_size,
            samples_per_insert=coordinator.samples_per_insert or round_size / policy.get_attribute("n_sample"),
            tolerance=coordinator.tolerance,
            envs=config.main.env.collector_env_num * players,
            seed=config.main.seed,
            max_policy_lag=coordinator.max_policy_lag,
            drops_old=coordinator.on_policy_lag == "drop",
            budget=config.main.max_env_step,
        )


def check_buffer(cfg: ReplayBufferConfig | Mapping[str, Any], priority: bool) -> None:
    """Raise if a buffer is not one for a distributed run.

    Args:
        cfg: Of the buffer.
        priority: Whether the policy tells it priorities.

    Raises:
        ValueError: If it is not.
    """
    config = resolve(ReplayBufferConfig, cfg)
    found, path = get_buffer_cls(config), "other.replay_buffer"
    transitions = "one whose samples are transitions, such as 'naive'"
    require(not found.gives_sequences, f"{path}.type", transitions, config.type)
    allowed = "a prioritised one, such as 'advanced', with priority"
    require(found.is_prioritised or not priority, f"{path}.type", allowed, config.type)
    throughput = config.thruput_controller
    limit = throughput.push_sample_rate_limit
    free = limit.max is None and limit.min == 0 and throughput.sample_min_limit_ratio == 1
    instead = "left as it is: coordinator.samples_per_insert and tolerance say it for a distributed run"
    require(free, f"{path}.thruput_controller", instead, to_dict(throughput))
    tracks = config.enable_track_used_data
    require(not tracks, f"{path}.enable_track_used_data", "False in a distributed run", tracks)
