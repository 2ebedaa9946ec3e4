"""Envs with one step and a known best return, in which a policy learns within seconds."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require

Info = dict[str, Any]
Observation = Literal["vector", "image", "dict"]
IMAGE_SIZE = 36  # pixels; the smallest image for the convolutions of Mnih et al. 2015


class BanditEnv(gym.Env[Any, Any]):
    """A contextual bandit: the observation shows one of K contexts; the action with its number earns 1, others 0.

    Args:
        num_actions: Number K of actions and contexts, >= 2.
        num_dimensions: Number D of parts of an action. With more than one the space is multi-discrete, the right action
            of part d is ``(context + d) % K``, and each right part earns 1 / D.
        observation: ``"vector"``: the context one-hot, shape (K,); ``"image"``: uint8, (1, 36, 36), with K
            vertical bars, of which the context's bar is white; ``"dict"``: ``{"context": one-hot, "noise": shape
            (2,)}`` with irrelevant noise.
        with_mask: Add an ``action_mask``, shape (K,), to the observation, which is then a Dict with a vector or image
            ``"observation"``. One wrong action, drawn in each episode, is forbidden and earns -1. Requires one
            dimension.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> env = BanditEnv(num_actions=3)
        >>> context, _ = env.reset(seed=0)
        >>> env.step(int(context.argmax()))[1:4]
        (1.0, True, False)
    """

    def __init__(
        self,
        num_actions: int = 4,
        num_dimensions: int = 1,
        observation: Observation = "vector",
        with_mask: bool = False,
    ) -> None:
        require(num_actions >= 2, "num_actions", ">= 2", num_actions)
        require(num_dimensions >= 1, "num_dimensions", ">= 1", num_dimensions)
        require(observation in ("vector", "image", "dict"), "observation", "vector, image or dict", observation)
        require(not with_mask or num_dimensions == 1, "with_mask", "False with num_dimensions > 1", with_mask)
        self.num_actions, self.num_dimensions = num_actions, num_dimensions
        self.observation, self.with_mask = observation, with_mask
        self.observation_space = self._space()
        self.action_space = (
            gym.spaces.Discrete(num_actions)
            if num_dimensions == 1
            else gym.spaces.MultiDiscrete(np.full(num_dimensions, num_actions))
        )
        self._forbidden: int | None = None
        self._obs: Any = None

    @property
    def best_return(self) -> float:
        """Expected return of the best policy."""
        return 1.0

    @property
    def random_return(self) -> float:
        """Expected return of a policy that draws uniformly from the actions that are not forbidden."""
        return 1 / (self.num_actions - self.with_mask)

    @property
    def best_action(self) -> NDArray[np.int64]:
        """The right action, shape () or (D,)."""
        parts = (self._context + np.arange(self.num_dimensions)) % self.num_actions
        return parts[0] if self.num_dimensions == 1 else parts

    @property
    def legal_actions(self) -> NDArray[np.int8] | None:
        """1 for each action that is not forbidden, as ``action_space.sample`` takes them; None without a mask."""
        return (np.arange(self.num_actions) != self._forbidden).astype(np.int8) if self.with_mask else None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Draw a context."""
        super().reset(seed=seed)
        self._context = int(self.np_random.integers(self.num_actions))
        if self.with_mask:
            self._forbidden = (self._context + int(self.np_random.integers(1, self.num_actions))) % self.num_actions
        self._obs = self._observe()
        return nested.apply(np.copy, self._obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Reward the action, and end."""
        reward = float(np.mean(np.asarray(action) == self.best_action))
        if self._forbidden is not None and int(action) == self._forbidden:
            reward = -1.0
        return nested.apply(np.copy, self._obs), reward, True, False, {}

    def _space(self) -> gym.Space[Any]:
        context = gym.spaces.Box(0.0, 1.0, (self.num_actions,), np.float32)
        parts: dict[str, gym.Space[Any]] = {"observation": context}
        if self.observation == "image":
            parts = {"observation": gym.spaces.Box(0, 255, (1, IMAGE_SIZE, IMAGE_SIZE), np.uint8)}
        elif self.observation == "dict":
            parts = {"context": context, "noise": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)}
        if self.with_mask:
            parts["action_mask"] = gym.spaces.Box(0, 1, (self.num_actions,), np.int8)
        return parts["observation"] if list(parts) == ["observation"] else gym.spaces.Dict(parts)

    def _observe(self) -> Any:
        context = np.eye(self.num_actions, dtype=np.float32)[self._context]
        parts: dict[str, Any] = {"observation": context}
        if self.observation == "image":
            image = np.zeros((1, IMAGE_SIZE, IMAGE_SIZE), np.uint8)
            edges = np.linspace(0, IMAGE_SIZE, self.num_actions + 1).astype(int)
            image[:, :, edges[self._context] : edges[self._context + 1]] = 255
            parts = {"observation": image}
        elif self.observation == "dict":
            parts = {"context": context, "noise": self.np_random.uniform(-1, 1, 2).astype(np.float32)}
        if self.with_mask:
            parts["action_mask"] = self.legal_actions
        return parts["observation"] if list(parts) == ["observation"] else parts


class TargetEnv(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """One step towards a target point in the action box, which the observation x in [-1, 1]^d determines.

    The target is ``a* = middle + 0.5 * x * (high - low) / 2``, so 0.5 x in a box of [-1, 1], and the reward
    ``1 - mean(((a - a*) / ((high - low) / 2))**2)``, so 1 at best, whatever the box.

    Args:
        num_dimensions: d, of observation and action, >= 1.
        low: Least action.
        high: Greatest action, > low.

    Example:
        >>> env = TargetEnv(low=-2.0, high=2.0)
        >>> x, _ = env.reset(seed=0)
        >>> env.step(1.0 * x)[1]  # 0.5 * x * 2
        1.0
    """

    def __init__(self, num_dimensions: int = 1, low: float = -2.0, high: float = 2.0) -> None:
        require(num_dimensions >= 1, "num_dimensions", ">= 1", num_dimensions)
        require(low < high, "low", f"< high ({high})", low)
        self.num_dimensions = num_dimensions
        self.middle, self.half = (low + high) / 2, (high - low) / 2
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (num_dimensions,), np.float32)
        self.action_space = gym.spaces.Box(low, high, (num_dimensions,), np.float32)
        self._x = np.zeros(num_dimensions, np.float32)

    @property
    def best_return(self) -> float:
        """Expected return of the best policy."""
        return 1.0

    @property
    def constant_return(self) -> float:
        """Expected return of the best constant action, the middle of the box.

        The target is x / 2 in units of half the box, and x is uniform in [-1, 1]: E[x^2 / 4] = 1/12.
        """
        return 1 - 1 / 12

    @property
    def best_action(self) -> NDArray[np.float32]:
        """The target, shape (d,)."""
        return (self.middle + 0.5 * self._x * self.half).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        """Draw x."""
        super().reset(seed=seed)
        self._x = self.np_random.uniform(-1, 1, self.num_dimensions).astype(np.float32)
        return self._x.copy(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        """Reward the action, which is not clipped, and end."""
        distance = (np.asarray(action, np.float64) - self.best_action) / self.half
        return self._x.copy(), 1 - float(np.mean(distance**2)), True, False, {}


class HybridTargetEnv(gym.Env[NDArray[np.float32], dict[str, Any]]):
    """One step with a hybrid action, whose right type and arguments the observation determines.

    The observation is one of K contexts, one-hot, followed by x in [-1, 1]^d. An action is ``{"action_type": one of K,
    "action_args": shape (d,)}`` with arguments in [-1, 1]. The right type is the context. It earns
    ``1 - mean((args - x / 2)**2)``, which is at least -1.25; a wrong type earns -2 whatever the arguments.

    Args:
        num_types: Number of types K, >= 2.
        num_dimensions: Number d of dimensions of x and the arguments, >= 1.
    """

    def __init__(self, num_types: int = 3, num_dimensions: int = 1) -> None:
        require(num_types >= 2, "num_types", ">= 2", num_types)
        require(num_dimensions >= 1, "num_dimensions", ">= 1", num_dimensions)
        self.num_types, self.num_dimensions = num_types, num_dimensions
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (num_types + num_dimensions,), np.float32)
        arguments = gym.spaces.Box(-1.0, 1.0, (num_dimensions,), np.float32)
        self.action_space = gym.spaces.Dict({"action_type": gym.spaces.Discrete(num_types), "action_args": arguments})
        self._obs = np.zeros(num_types + num_dimensions, np.float32)

    @property
    def best_return(self) -> float:
        """Expected return of the best policy."""
        return 1.0

    @property
    def type_only_return(self) -> float:
        """Expected return of the right type with the best constant arguments, 0: 1 - E[x^2 / 4]."""
        return 1 - 1 / 12

    @property
    def best_action(self) -> dict[str, Any]:
        """The right type, and arguments of shape (d,)."""
        context, x = np.split(self._obs, [self.num_types])
        return {"action_type": np.int64(context.argmax()), "action_args": 0.5 * x}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        """Draw context and x."""
        super().reset(seed=seed)
        context = np.eye(self.num_types)[self.np_random.integers(self.num_types)]
        self._obs = np.concatenate([context, self.np_random.uniform(-1, 1, self.num_dimensions)]).astype(np.float32)
        return self._obs.copy(), {}

    def step(self, action: dict[str, Any]) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        """Reward the action, and end."""
        best = self.best_action
        if int(action["action_type"]) != best["action_type"]:
            return self._obs.copy(), -2.0, True, False, {}
        error = np.asarray(action["action_args"], np.float64) - best["action_args"]
        return self._obs.copy(), 1 - float(np.mean(error**2)), True, False, {}


class XorEnv(gym.Env[dict[str, Any], Any]):
    """One step in which neither entry of the observation says anything, and both together say everything.

    The observation is ``{"left": (1,), "right": (1,)}``, both -1 or 1. Of two actions, 1 is right where the signs are
    equal and 0 where they differ; the right one gives 1, the other 0. A continuous action has the target
    ``a* = 0.8 * left * right`` in a box of [-1, 1] and gives ``1 - (a - a*)**2``.

    Args:
        continuous: Whether the action is continuous.

    Example:
        >>> env = XorEnv()
        >>> obs, _ = env.reset(seed=0)
        >>> env.step(int((obs["left"] == obs["right"]).item()))[1]
        1.0
    """

    def __init__(self, continuous: bool = False) -> None:
        self.continuous = continuous
        self.observation_space = gym.spaces.Dict({name: _unit_box() for name in ("left", "right")})
        self.action_space = _unit_box() if continuous else gym.spaces.Discrete(2)
        self._obs = {name: np.ones(1, np.float32) for name in ("left", "right")}

    @property
    def best_return(self) -> float:
        """Expected return of the best policy."""
        return 1.0

    @property
    def separable_return(self) -> float:
        """Largest expected return of a policy that adds up a function of each entry.

        The larger of two sums is the right action in three of the four cases at most. Against the product of two signs
        no sum has a smaller squared error than 0 has: 0.8^2.
        """
        return 1 - 0.8**2 if self.continuous else 0.75

    @property
    def best_action(self) -> Any:
        """The right action: a number, or the target, shape (1,)."""
        product = self._obs["left"] * self._obs["right"]
        return 0.8 * product if self.continuous else int(product[0] > 0)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Any], Info]:
        """Draw both signs."""
        super().reset(seed=seed)
        left, right = 2.0 * self.np_random.integers(2, size=(2, 1)) - 1
        self._obs = {"left": left.astype(np.float32), "right": right.astype(np.float32)}
        return nested.apply(np.copy, self._obs), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, Info]:
        """Reward the action, and end."""
        if self.continuous:
            reward = 1 - float(np.mean((np.asarray(action, np.float64) - self.best_action) ** 2))
        else:
            reward = float(int(action) == self.best_action)
        return nested.apply(np.copy, self._obs), reward, True, False, {}


def _unit_box() -> gym.spaces.Box:
    return gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
