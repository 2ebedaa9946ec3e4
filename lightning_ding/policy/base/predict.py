"""Acting with a trained policy: from the observations of an env to actions that its ``step`` takes.

The observation space decides whether an input is one observation or a batch of them, and the action space the type,
the shape and the bounds of the result. Both are part of every checkpoint.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.rl.exploration import within_box

Way = Literal["collect", "eval"]
Spaces = tuple["spaces.Space[Any]", "spaces.Space[Any]"]


class Actor:
    """Acts with a policy in one env, or in several at the same time, and keeps its memory between the steps.

    The memory, such as the state of a recurrent network, belongs to the actor: several actors of one policy do not
    disturb each other, nor training. Row i of a batch is env i in every call. See :meth:`Policy.actor`.

    Args:
        policy: A policy with a network.
        deterministic: Act as in evaluations; otherwise as in training, with exploration.

    Raises:
        RuntimeError: If the policy does not know the spaces of its env.

    Example:
        >>> from lightning_ding.policy import R2D2Policy
        >>> policy = R2D2Policy().build(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
        >>> actor = policy.actor()
        >>> actor(np.zeros(3)).shape, actor(np.zeros((5, 3))).shape
        ((), (5,))
        >>> actor.reset()
    """

    def __init__(self, policy: Any, deterministic: bool = True) -> None:
        self._policy = policy
        self._way: Way = "eval" if deterministic else "collect"
        self._observation_space, self._action_space = spaces_of_policy(policy)
        self._acts_on_reward: bool = policy.acts_on_reward
        self._memory: dict[str, Any] = policy.new_memory(self._way)

    @property
    def has_memory(self) -> bool:
        """Whether an action depends on earlier observations."""
        return bool(self._memory)

    def __call__(self, obs: Any, reward: Any = None) -> Any:
        """Return the action for an observation, or the actions for a batch of them.

        Args:
            obs: One observation of the env's space or a batch of them, leading axis B: arrays, tensors or numbers, in
                dicts and tuples as the space has them. An entry ``action_mask`` excludes actions.
            reward: Reward of the previous step, or shape (B,); only for a policy that acts on rewards, and there None
                in the first step of an episode.

        Returns:
            The action that ``env.step`` takes, or a batch of them, in the type and within the bounds of the action
            space: an array, a number of numpy for a single Discrete action, or a dict of these.

        Raises:
            ValueError: If ``obs`` has neither the shape of one observation nor that of a batch, other keys than
                the space, or values of another kind, such as floats for bytes; if an integer does not fit into the
                space's type, or is outside of a Discrete, MultiDiscrete or MultiBinary space; if ``reward`` does not
                fit; if the policy does not explore and is not deterministic; or if its network gives a non-finite
                action.
        """
        allowed = f"None for {_name(self._policy)}, which does not act on rewards"
        require(self._acts_on_reward or reward is None, "reward", allowed, reward)
        batch, is_single = to_batch(obs, self._observation_space)
        kwargs = {} if reward is None else {"reward": np.atleast_1d(np.asarray(reward, np.float32))}
        act = self._policy.eval_mode.forward if self._way == "eval" else self._policy.collect_mode.forward
        try:
            with self._own_memory():
                action = act(batch, **kwargs)["action"]
        except NotImplementedError as error:
            allowed = f"True for {_name(self._policy)}, which does not explore"
            require(self._way == "eval", "deterministic", allowed, False)
            raise error
        return from_batch(action, self._action_space, is_single)

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Forget what was seen, where an episode begins.

        Args:
            env_ids: Rows of the batch; None means all of them.
        """
        mode = self._policy.eval_mode if self._way == "eval" else self._policy.collect_mode
        with self._own_memory():
            mode.reset(env_ids)

    @contextmanager
    def _own_memory(self) -> Iterator[None]:
        """Give the policy the memory of this actor while it acts."""
        policy, kept = self._policy, {name: getattr(self._policy, name) for name in self._memory}
        for name, memory in self._memory.items():
            setattr(policy, name, memory)
        try:
            yield
        finally:
            for name, memory in kept.items():
                setattr(policy, name, memory)


def predict(policy: Any, obs: Any, deterministic: bool) -> Any:
    """Return the actions of a policy without memory.

    Args:
        policy: A policy with a network.
        obs: One observation or a batch; see :meth:`Actor.__call__`.
        deterministic: Act as in evaluations; otherwise as in training, with exploration.

    Raises:
        ValueError: If the policy acts on earlier observations too, or as :meth:`Actor.__call__` says.
        RuntimeError: If the policy does not know the spaces of its env.

    Example:
        >>> from lightning_ding.policy import DQNPolicy
        >>> policy = DQNPolicy().build(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
        >>> policy.predict(np.zeros(3)).shape, policy.predict(np.zeros((5, 3))).shape
        ((), (5,))
    """
    actor = Actor(policy, deterministic)
    if actor.has_memory:
        raise ValueError(
            f"{_name(policy)} acts on earlier observations too, which predict does not keep: make actor = "
            f"policy.actor(deterministic={deterministic}), call actor(obs) in each step, and actor.reset() when an "
            "episode begins"
        )
    return actor(obs)


def spaces_of_policy(policy: Any) -> Spaces:
    """Return the observation and the action space of one env.

    Raises:
        RuntimeError: If the policy does not know them.
    """
    found: Spaces | None = policy.env_spaces
    if found is None:
        raise RuntimeError(
            f"{_name(policy)} does not know the spaces of its env: call policy.build(env.observation_space, "
            "env.action_space); policies from checkpoints of earlier versions and those made by hand need it"
        )
    return found


# ---------------------------------------------------------------------- observations


def to_batch(obs: Any, space: spaces.Space[Any]) -> tuple[Any, bool]:
    """Return observations as nested arrays with leading axis B, and whether it was a single one.

    Args:
        obs: One observation or a batch.
        space: Observation space of one env.

    Raises:
        ValueError: If ``obs`` fits neither, or has other keys, another kind of numbers, or integers that are not
            allowed.

    Example:
        >>> batch, is_single = to_batch([0.5, 1.0], spaces.Box(-1, 1, (2,)))
        >>> batch.tolist(), is_single
        ([[0.5, 1.0]], True)
    """
    arrays: dict[str, NDArray[Any]] = {}
    singles: dict[str, bool] = {}
    data = _read(obs, space, "obs", arrays, singles)
    if len(set(singles.values())) > 1 or len({len(array) for name, array in arrays.items() if not singles[name]}) > 1:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"obs must be one observation, or a batch of equal length in every entry, got {shapes}")
    is_single = all(singles.values())
    return (nested.apply(lambda array: array[np.newaxis], data) if is_single else data), is_single


def _read(
    obs: Any, space: spaces.Space[Any], name: str, arrays: dict[str, NDArray[Any]], singles: dict[str, bool]
) -> Any:
    """Return nested arrays of an observation; ``arrays`` and ``singles`` get each of them, and whether it is single."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts, entries = _numbered(space.spaces), _numbered(obs)
        is_known = isinstance(entries, Mapping) and entries.keys() == parts.keys()
        got = list(entries) if isinstance(entries, Mapping) else type(obs).__name__
        require(is_known, name, f"a dict with the keys {list(parts)}", got)
        return {key: _read(entries[key], below, f"{name}.{key}", arrays, singles) for key, below in parts.items()}
    if isinstance(obs, Mapping):  # no require: the text of a space takes longer than all checks of an observation
        raise ValueError(f"{name} must be numbers, as the space {space} has them, got {obs!r}")
    array: NDArray[Any] = nested.to_numpy(obs)  # type: ignore[assignment]
    kind, shape = np.dtype(space.dtype), tuple(space.shape or ())
    fits = array.dtype == kind or (array.dtype.kind in "biuf" and np.can_cast(array.dtype, kind, "same_kind"))
    fits = fits or (array.dtype.kind in "biu" and kind.kind in "iu")  # Python's integers are int64
    if not fits:
        allowed = f"numbers that {kind} can hold, as the space {space} has them"
        raise ValueError(f"{name} must be {allowed}, got {array.dtype!r}")
    allowed = f"of shape {shape}, or {('B', *shape)} for a batch".replace("'", "")
    require(array.shape in (shape, array.shape[:1] + shape), name, allowed, array.shape)
    _check_integers(array, space, name)
    arrays[name], singles[name] = np.asarray(array, kind, order="C"), array.shape == shape
    return arrays[name]


def _check_integers(array: NDArray[Any], space: spaces.Space[Any], name: str) -> None:
    """Refuse integers that the type of the space cannot hold, and those outside of a space of indices.

    Integers that only lie outside the bounds of a Box are used, as they are in training.

    Raises:
        ValueError: If there is one.
    """
    bounds = _integer_bounds(space, array.dtype)
    if bounds is None:
        return
    low, high = bounds
    outside = (array < low) | (array > high)
    if outside.any():
        first, last, value = (np.broadcast_to(one, array.shape)[outside][0] for one in (low, high, array))
        raise ValueError(f"{name} must be integers from {first} to {last}, as the space {space} has them, got {value}")


def _integer_bounds(space: spaces.Space[Any], given: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Return the smallest and the largest allowed integers; None if every number of the given type is allowed."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        number = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return space.start, space.start + number - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    kind = np.dtype(space.dtype)
    if kind.kind not in "iu" or np.can_cast(given, kind):
        return None
    return np.iinfo(kind).min, np.iinfo(kind).max


def _numbered(entries: Any) -> Any:
    """Return the entries of a tuple by their places "0", "1" and so on; anything else as it is."""
    return {str(place): entry for place, entry in enumerate(entries)} if isinstance(entries, (tuple, list)) else entries


# ---------------------------------------------------------------------- actions


def from_batch(action: Any, space: spaces.Space[Any], is_single: bool) -> Any:
    """Return actions of a network in the type and within the bounds of the env's space.

    Args:
        action: Nested tensors, leading axis B, in the units of the env.
        space: Action space of one env.
        is_single: Whether to return the only action without the axis.

    Raises:
        ValueError: If an action is not finite, or of another shape than the space.
    """
    if isinstance(space, spaces.Dict):
        require(isinstance(action, Mapping), "the policy's action", f"a dict, as the space {space}", action)
        return {name: from_batch(action[name], below, is_single) for name, below in space.spaces.items()}
    array: NDArray[Any] = nested.to_numpy(action)  # type: ignore[assignment]
    shape = tuple(space.shape or ())
    require(array.shape[1:] == shape, "the policy's action", f"of shape {('B', *shape)}", array.shape)
    require(bool(np.isfinite(array).all()), "the policy's action", "finite", array)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        array = within_box(array, space)
    elif isinstance(space, spaces.Box):
        array = np.clip(array, space.low, space.high).astype(space.dtype)
    else:
        array = array.astype(space.dtype, copy=False)
    return array[0] if is_single else array


def _name(policy: Any) -> str:
    return type(policy).__name__
