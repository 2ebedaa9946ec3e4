"""Gymnasium's classic control envs as batched torch code, equal to it step by step.

The constants and equations are those of gymnasium 1.x. It computes in double precision and rounds observations to
single precision; here everything is single precision.

Shapes: N envs.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.envs.tensor.batched import BatchedEnv

MAX_FLOAT = float(np.finfo(np.float32).max)


class CartPole(BatchedEnv):
    """``CartPole-v1`` for N envs at once: balance a pole on a cart; a reward of 1 for each step.

    See :class:`BatchedEnv` for the arguments.

    Example:
        >>> env = CartPole(num_envs=3)
        >>> env.reset(seed=0)[0].shape
        torch.Size([3, 4])
        >>> obs, reward, terminated, truncated, info = env.step(torch.tensor([0, 1, 1]))
        >>> reward.tolist(), terminated.tolist()
        ([1.0, 1.0, 1.0], [False, False, False])
    """

    time_limit: ClassVar[int] = 500
    size: ClassVar[int] = 4  # position and speed of the cart, angle and angular speed of the pole
    gravity, pole_mass, total_mass, half_length, push, seconds = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    largest_position, largest_angle = 2.4, 12 * 2 * math.pi / 360

    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        high = np.array([self.largest_position * 2, np.inf, self.largest_angle * 2, np.inf], dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32), spaces.Discrete(2)

    def _first_state(self, uniform: Tensor) -> Tensor:
        return uniform.mul_(0.1).sub_(0.05)

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, speed, angle, angular_speed = state.unbind(0)
        force = action * (2 * self.push) - self.push
        cos, sin = angle.cos(), angle.sin()
        moment = self.pole_mass * self.half_length
        push = (force + moment * angular_speed.square() * sin) / self.total_mass
        lever = self.half_length * (4.0 / 3.0 - self.pole_mass * cos.square() / self.total_mass)
        angular_acceleration = (self.gravity * sin - cos * push) / lever
        acceleration = push - moment * angular_acceleration * cos / self.total_mass
        change = torch.stack([speed, acceleration, angular_speed, angular_acceleration])
        state = torch.add(state, change, alpha=self.seconds)
        terminated = (state[0].abs() > self.largest_position) | (state[2].abs() > self.largest_angle)
        return state, torch.ones_like(x), terminated

    def _observe(self, state: Tensor) -> Tensor:
        return state.t()


class MountainCar(BatchedEnv):
    """``MountainCar-v0`` for N envs at once: swing a weak car up a hill; a reward of -1 for each step.

    See :class:`BatchedEnv` for the arguments.

    Example:
        >>> env = MountainCar(num_envs=2)
        >>> obs, _ = env.reset(seed=0)
        >>> obs[:, 1].tolist()  # the speed
        [0.0, 0.0]
    """

    time_limit: ClassVar[int] = 200
    size: ClassVar[int] = 2  # position and speed
    lowest, highest, fastest, goal, force, gravity = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025

    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        low = np.array([self.lowest, -self.fastest], dtype=np.float32)
        high = np.array([self.highest, self.fastest], dtype=np.float32)
        return spaces.Box(low, high, dtype=np.float32), spaces.Discrete(3)

    def _first_state(self, uniform: Tensor) -> Tensor:
        return torch.stack([uniform[0] * 0.2 - 0.6, torch.zeros_like(uniform[1])])

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, speed = state.unbind(0)
        speed = speed + (action - 1) * self.force + (3 * position).cos() * -self.gravity
        speed = speed.clamp(-self.fastest, self.fastest)
        position = (position + speed).clamp(self.lowest, self.highest)
        speed = speed.masked_fill((position == self.lowest) & (speed < 0), 0.0)
        terminated = (position >= self.goal) & (speed >= 0)
        return torch.stack([position, speed]), torch.full_like(position, -1.0), terminated

    def _observe(self, state: Tensor) -> Tensor:
        return state.t()


class Pendulum(BatchedEnv):
    """``Pendulum-v1`` for N envs at once: swing a pendulum up and hold it; no episode terminates.

    See :class:`BatchedEnv` for the arguments.

    Example:
        >>> env = Pendulum(num_envs=2)
        >>> env.reset(seed=0)[0].shape, env.single_action_space
        (torch.Size([2, 3]), Box(-2.0, 2.0, (1,), float32))
    """

    time_limit: ClassVar[int] = 200
    size: ClassVar[int] = 2  # angle and angular speed
    fastest, strongest, seconds, gravity = 8.0, 2.0, 0.05, 10.0

    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        high = np.array([1.0, 1.0, self.fastest], dtype=np.float32)
        action = spaces.Box(-self.strongest, self.strongest, (1,), dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32), action

    def _first_state(self, uniform: Tensor) -> Tensor:
        angle, speed = (uniform * 2 - 1).unbind(0)
        return torch.stack([angle * math.pi, speed])

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(0)
        torque = action.reshape(-1).clamp(-self.strongest, self.strongest)
        normal = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = normal.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = speed + (1.5 * self.gravity * angle.sin() + 3.0 * torque) * self.seconds
        speed = speed.clamp(-self.fastest, self.fastest)
        angle = angle + speed * self.seconds
        return torch.stack([angle, speed]), -cost, torch.zeros_like(cost, dtype=torch.bool)

    def _observe(self, state: Tensor) -> Tensor:
        return torch.stack([state[0].cos(), state[0].sin(), state[1]], dim=-1)


BUILT_IN: dict[str, type[BatchedEnv]] = {
    "CartPole-v1": CartPole,
    "MountainCar-v0": MountainCar,
    "Pendulum-v1": Pendulum,
}
"""Batched envs by the ids of gymnasium."""
