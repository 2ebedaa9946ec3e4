"""The workloads that every contestant runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DQNWorkload:
    """DQN on a small env, where the cost of the framework shows most."""

    env_id: str = "CartPole-v1"
    num_envs: int = 8
    env_steps: int = 16_000
    warm_up: int = 512  # env steps with random actions and without updates
    updates_per_round: int = 5  # after every num_envs env steps
    batch_size: int = 64
    hidden: tuple[int, ...] = (128, 128, 64)
    learning_rate: float = 1e-3
    target_update_freq: int = 100  # updates
    buffer_size: int = 20_000
    gamma: float = 0.99
    eps_start: float = 1.0
    eps_end: float = 0.05
    eps_decay: int = 8_000  # env steps


W1 = DQNWorkload()
