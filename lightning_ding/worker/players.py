"""Several policies that act in one vector env.

Shapes: N envs, P players, K rows of a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.rl import random_legal_actions
from lightning_ding.utils.attributes import PolicyAttributes, policy_of
from lightning_ding.utils.modes import CollectMode, EvalMode
from lightning_ding.worker.actions import check_finite

ModeT = TypeVar("ModeT", bound=Any)
BoolArray = NDArray[np.bool_]


class Output(NamedTuple):
    """The output of a policy's ``forward`` for the players that it acts for."""

    rows: BoolArray
    """Players that the output is for, shape (N, P); the K true entries in row-major order."""
    values: Mapping[str, Any]
    """``action`` and the policy's other entries, leading axis K."""


class Players(Generic[ModeT]):
    """The policies of P players. A policy of several players with equal arguments is called once for all of them.

    A policy sees only the observations of the envs in which one of its players is active.

    Args:
        modes: Sequence of the P collect or eval modes of the policies.
        kwargs: Arguments of the policies' ``forward``: a mapping for all of them, or P mappings; None for no arguments.

    Raises:
        ValueError: If there are not P mappings.
    """

    def __init__(
        self, modes: Sequence[ModeT], kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        self.modes: Sequence[ModeT] = modes
        of_each = [kwargs or {}] * len(modes) if kwargs is None or isinstance(kwargs, Mapping) else list(kwargs)
        allowed = f"a mapping, or one for each of {len(modes)} players"
        require(len(of_each) == len(modes), "policy_kwargs", allowed, kwargs)
        self._groups: list[tuple[ModeT, Mapping[str, Any], BoolArray]] = []
        for player, (mode, arguments) in enumerate(zip(modes, of_each, strict=True)):
            known = next((seen for m, k, seen in self._groups if m == mode and _same(k, arguments)), None)
            if known is None:
                known = np.zeros(len(modes), dtype=bool)
                self._groups.append((mode, arguments, known))
            known[player] = True

    def act(self, obs: Any, active: BoolArray) -> Iterator[Output]:
        """Yield the output of each policy that has active players.

        Args:
            obs: Observation of each player, leading axes (N, P).
            active: Whether each player acts, shape (N, P).
        """
        for mode, kwargs, members in self._groups:
            rows = active & members
            if rows.any():
                yield Output(rows, _act(mode, nested.index(obs, rows), rows, kwargs))

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Reset the state of each policy in some envs; None resets it in all."""
        for mode, _, _ in self._groups:
            mode.reset(env_ids)


def gather_actions(env: VectorEnv[Any, Any, Any], outputs: Iterable[Output]) -> NDArray[Any]:
    """Return the actions of all players, leading axes (N, P), zero for players that do not act.

    Raises:
        ValueError: If a policy gave no actions, actions of a wrong shape, or a number that is not finite. The message
            names its players.
    """
    space: Any = env.action_space
    action: NDArray[Any] = np.zeros(space.shape, space.dtype)
    for rows, values in outputs:
        if not isinstance(values, Mapping) or "action" not in values:
            got = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"player {_names(rows)}: the policy's forward must return 'action', got {got}")
        given = np.asarray(nested.to_numpy(values["action"]))
        expected = (int(np.count_nonzero(rows)), *action.shape[2:])
        if given.shape != expected:
            raise ValueError(f"player {_names(rows)}: the actions must be of shape {expected}, got {given.shape}")
        check_finite(values, lambda row, rows=rows: "env {}, player {}".format(*np.argwhere(rows)[row]))  # type: ignore[misc]
        action[rows] = given
    return action


def random_output(env: VectorEnv[Any, Any, Any], obs: Any, rows: BoolArray) -> Output:
    """Return uniformly random actions of some players, legal ones where the observation has an ``action_mask``.

    Args:
        env: Vector env; its action space is the source of the actions.
        obs: Observation of each player, leading axes (N, P).
        rows: Whether each player acts, shape (N, P).
    """
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if mask is None:
        return Output(rows, {"action": np.asarray(env.action_space.sample())[rows]})
    action = random_legal_actions(env.single_action_space, mask[rows], env.action_space.np_random)
    return Output(rows, {"action": action})


def check_players(modes: Any, num_players: int | None) -> Sequence[Any]:
    """Return the modes of P >= 2 policies.

    Raises:
        TypeError: If ``modes`` is not a sequence of modes.
        ValueError: If there are fewer than two, or not as many as the env has players, or one has memory.
    """
    if not isinstance(modes, Sequence) or hasattr(modes, "_fields"):  # one mode is a tuple of functions
        raise TypeError(f"policy must be a sequence with the mode of each player, got {type(modes).__name__}")
    require(len(modes) >= 2, "policy", "a sequence of at least two modes", f"{len(modes)} of them")
    if num_players is not None and len(modes) != num_players:
        raise ValueError(f"policy must hold as many modes as the env has players, {num_players}, got {len(modes)}")
    for number, mode in enumerate(modes):
        has_memory = isinstance(mode, (CollectMode, EvalMode)) and policy_of(mode).has_memory
        allowed = "one without memory, because a state belongs to an env and not to a player of a game"
        require(not has_memory, f"policy of player {number}", allowed, "one with a recurrent network")
        keeps_noise = isinstance(mode, CollectMode) and policy_of(mode).keeps_noise
        allowed = "one without model.use_sde, because noise belongs to an env and not to a player of a game"
        require(not keeps_noise, f"policy of player {number}", allowed, "one with it")
    return tuple(modes)


def _act(mode: Any, obs: Any, rows: BoolArray, kwargs: Mapping[str, Any]) -> Any:
    """Return the output of a policy for the players of ``rows``; an adapter gets the numbers of their envs."""
    if isinstance(mode, PolicyAttributes):
        return mode.act(obs, rows.nonzero()[0].tolist(), **kwargs)  # type: ignore[attr-defined]
    return mode.forward(obs, **kwargs)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two mappings hold the same objects; they are not compared, because arrays cannot be."""
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def _names(rows: BoolArray) -> str:
    return " and ".join(str(player) for player in np.flatnonzero(rows.any(0)))
