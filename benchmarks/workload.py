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


@dataclass(frozen=True)
class PPOWorkload:
    """PPO on a small env, with CleanRL's settings of 8 envs."""

    env_id: str = "CartPole-v1"
    num_envs: int = 8
    num_steps: int = 128  # of each env in a rollout
    env_steps: int = 102_400  # 100 rollouts
    epochs: int = 4
    batch_size: int = 256  # 4 minibatches an epoch
    hidden: tuple[int, ...] = (64, 64)  # of actor and critic each, tanh
    learning_rate: float = 2.5e-4  # falls to 0 in a line
    adam_epsilon: float = 1e-5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_ratio: float = 0.2  # of the policy and of the value
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    grad_norm: float = 0.5

    @property
    def rollout(self) -> int:
        """Transitions of a rollout."""
        return self.num_envs * self.num_steps


W2 = PPOWorkload()


@dataclass(frozen=True)
class SACWorkload:
    """SAC with one env, an update of everything after each env step."""

    env_id: str = "Pendulum-v1"
    env_steps: int = 4_000
    warm_up: int = 500  # env steps with random actions and without updates
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)  # of the actor and of each of two critics
    learning_rate: float = 1e-3  # of critics and temperature
    actor_learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005  # of the target critics
    buffer_size: int = 20_000


W3 = SACWorkload()


@dataclass(frozen=True)
class REDQWorkload(SACWorkload):
    """SAC with many critics and many updates after each env step, as in Chen et al. 2021."""

    env_steps: int = 286
    warm_up: int = 256
    critics: int = 10
    target_critics: int = 2
    updates_per_step: int = 20  # of the critics, and one of the actor


W6 = REDQWorkload()


@dataclass(frozen=True)
class CrossQWorkload(SACWorkload):
    """SAC without target networks and with batch renormalisation, as in Bhatt et al. 2024."""

    env_steps: int = 800
    warm_up: int = 300
    critic_hidden: tuple[int, ...] = (512, 512)  # narrower than the paper's 2048, for two cores
    updates_per_actor_update: int = 3


W9 = CrossQWorkload()


@dataclass(frozen=True)
class SimbaWorkload(SACWorkload):
    """SAC with residual networks, as in Lee et al. 2024."""

    env_steps: int = 800
    warm_up: int = 300
    hidden: tuple[int, ...] = (128,)  # of the actor: a block
    critic_hidden: tuple[int, ...] = (256, 256)  # two blocks; the paper has 512
    weight_decay: float = 0.01


W10 = SimbaWorkload()


@dataclass(frozen=True)
class DreamerWorkload:
    """DreamerV3 from vectors, with networks of about a million weights."""

    env_id: str = "CartPole-v1"
    env_steps: int = 160  # after the first ones, which have no updates
    env_steps_per_update: int = 4
    batch_size: int = 16
    sequence: int = 64
    horizon: int = 15
    recurrent: int = 256
    units: int = 128  # of all other layers, but for this project's dynamics
    hidden: int = 84  # of this project's dynamics, which have more layers, so that the numbers of weights are near
    groups: int = 16
    classes: int = 16


W11 = DreamerWorkload()


@dataclass(frozen=True)
class PixelWorkload:
    """DQN on stacks of four frames of 84 x 84 bytes, where the network costs most; the env costs nothing."""

    num_envs: int = 8
    env_steps: int = 1_152
    warm_up: int = 128  # env steps with random actions and without updates
    updates_per_round: int = 2  # after every num_envs env steps, so one update every four, as in Mnih et al. 2015
    batch_size: int = 32
    learning_rate: float = 1e-4
    target_update_freq: int = 100  # updates
    buffer_size: int = 10_000
    gamma: float = 0.99
    eps_start: float = 1.0
    eps_end: float = 0.05
    eps_decay: int = 1_000  # env steps


W4 = PixelWorkload()


@dataclass(frozen=True)
class R2D2Workload(DQNWorkload):
    """R2D2 on a small env."""

    env_steps: int = 2_560
    batch_size: int = 32  # sequences
    hidden: tuple[int, ...] = (64,)
    core: int = 64  # width of the LSTM
    burn_in: int = 4
    unroll: int = 20  # steps of a sequence that are learned from
    n_step: int = 3
    gamma: float = 0.997

    @property
    def length(self) -> int:
        """Steps of a sequence."""
        return self.burn_in + self.unroll + self.n_step - 1


W5 = R2D2Workload()

W7 = PPOWorkload(
    num_envs=1024, num_steps=32, env_steps=983_040, batch_size=4096, learning_rate=1e-3
)  # in tensor envs; 30 rollouts

W8 = DQNWorkload(
    num_envs=1024,
    env_steps=409_600,  # 400 rounds
    warm_up=10_240,
    updates_per_round=4,
    batch_size=1024,
    buffer_size=204_800,
    eps_decay=204_800,
)  # in tensor envs
