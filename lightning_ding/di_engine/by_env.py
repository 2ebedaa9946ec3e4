"""Policies that give their attributes by name, and those in DI-engine's form in a collector.

Such a policy acts on ``{env_id: observation}``, makes the transition of one env at a time, and takes and returns
lists of transitions. Inside a collector its outputs and transitions are columns of objects.

Shapes: N envs; K rows, each of one env; S requested samples; T steps of a piece of an episode.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.di_engine.base_env import BaseEnvTimestep
from lightning_ding.di_engine.policies.data import TIME_LIMIT, info_of
from lightning_ding.utils.attributes import PolicyAttributes
from lightning_ding.utils.modes import is_unknown_attribute
from lightning_ding.worker.config import CollectorConfig
from lightning_ding.worker.transitions import to_tensor_transitions

NEEDED = ("forward", "process_transition", "get_train_sample", "reset", "get_attribute")
OUTPUT, TRANSITION = "output", "transition"  # names of the columns of objects
DEFAULTS: dict[str, Any] = {
    "acts_on_reward": False,
    "batch_forward": None,
    "collect_data": True,
    "device": None,
    "has_memory": False,
    "keeps_double": False,
    "keeps_noise": False,
    "module": None,
    "n_episode": None,
    "n_sample": None,
    "on_policy": False,
    "progress": None,
    "sample_options": {},
    "stores_memory": False,
    "unroll_len": 1,
}
"""Values where a policy does not have an attribute; the others are needed."""
OURS = ("acts_on_reward", "keeps_double")
"""Attributes that only policies of this package have, so that no error of another one matters."""


class ByName(PolicyAttributes):
    """The attributes of the policy of a mode.

    Args:
        mode: An object with ``get_attribute``.
    """

    config = None

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.get_attribute = getattr(mode, "get_attribute", None)

    def read(self, name: str) -> Any:
        """Return an attribute of the policy, or its default.

        Raises:
            NotImplementedError: If there is neither; or the KeyError that the policy raises then.
        """
        try:
            return self.mode.get_attribute(name)
        except (NotImplementedError, KeyError, AttributeError) as error:
            is_unknown = not isinstance(error, AttributeError) and is_unknown_attribute(error, name)
            if name in OURS or (is_unknown and name in DEFAULTS):
                return DEFAULTS[name]
            raise


def _read(policy: ByName, name: str) -> Any:
    return policy.read(name)  # of the subclass


for _name in (*DEFAULTS, "batch_size"):
    setattr(ByName, _name, property(functools.partial(_read, name=_name)))


class ByEnv(ByName):
    """The collect mode of a policy in DI-engine's form, with columns on the side of the collector.

    Args:
        mode: An object with the functions of a collect mode.
        config: Config of the collector, with ``transform_obs`` and ``deepcopy_obs``.

    Raises:
        TypeError: If the mode lacks a function.
    """

    def __init__(self, mode: Any, config: CollectorConfig) -> None:
        missing = [name for name in NEEDED if not callable(getattr(mode, name, None))]
        if missing:
            raise TypeError(
                "policy must be a policy, its collect mode, or an object with the functions of one, got "
                f"{type(mode).__name__} without {', '.join(missing)}"
            )
        super().__init__(mode)
        self.action_space: spaces.Space[Any] | None = None
        """Action space of one env, which decides the shape of the actions; None leaves them as they are."""
        self._config = config

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        """Reset the state of the policy in some envs; None resets it in all."""
        self.mode.reset(data_id)

    def read(self, name: str) -> Any:
        """Return an attribute of the policy, or its default.

        ``collect_data`` is an attribute of the mode, and amounts are in the policy's config if they are not given.
        """
        if name in ("collect_data", "keeps_double"):
            return getattr(self.mode, "collect_data", True) if name == "collect_data" else False
        try:
            return self.mode.get_attribute(name)
        except (NotImplementedError, KeyError) as error:
            if not is_unknown_attribute(error, name):
                raise
            collect = getattr(self._cfg(), "collect", None)
            if isinstance(collect, Mapping) and name in collect:
                return collect[name]
            return self.setting(name, False) if name == "on_policy" else super().read(name)

    def setting(self, name: str, default: Any) -> Any:
        """Return an entry of the policy's config, or ``default`` if there is none."""
        return getattr(self._cfg(), name, default)

    def _cfg(self) -> Any:
        try:
            return self.mode.get_attribute("cfg")
        except (NotImplementedError, KeyError) as error:
            if is_unknown_attribute(error, "cfg"):
                return None
            raise

    # ------------------------------------------------------------------ acting

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        """Act in the envs 0 to K - 1; see :meth:`act`."""
        return self.act(obs, range(nested.length(obs)), **kwargs)

    def act(self, obs: Any, env_ids: Sequence[int], /, **kwargs: Any) -> dict[str, Any]:
        """Return the policy's ``action`` for K envs as columns, and its outputs as objects.

        Args:
            obs: Observations, leading axis K.
            env_ids: Number of the env of each row.
            kwargs: Further arguments of the policy's ``forward``.

        Raises:
            ValueError: If the policy does not return a mapping with an ``action`` for each env.
        """
        given = copy.deepcopy(obs) if self._config.deepcopy_obs else obs
        if self._config.transform_obs:
            given = nested.apply(lambda leaf: torch.as_tensor(leaf).float(), given)
        output = self.mode.forward({env_id: nested.index(given, row) for row, env_id in enumerate(env_ids)}, **kwargs)
        if not isinstance(output, Mapping) or any(env_id not in output for env_id in env_ids):
            got = sorted(output, key=str) if isinstance(output, Mapping) else type(output).__name__
            raise ValueError(
                f"a policy whose mode is not a CollectMode gets {{env_id: observation}} and must return an output for "
                f"each of the envs {list(env_ids)}, got {got}"
            )
        outputs = [output[env_id] for env_id in env_ids]
        if not all(isinstance(one, Mapping) and "action" in one for one in outputs):
            raise ValueError(f"the policy's forward must return a mapping with 'action' for each env, got {outputs[0]}")
        actions = [nested.to_numpy(one["action"]) for one in outputs]
        return {"action": _fitted(nested.stack_arrays(actions), self.action_space), OUTPUT: _objects(outputs)}

    def process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the transitions that the policy makes for K envs, as objects, and whether their episodes end.

        Args:
            obs: Observations, leading axis K.
            output: Output of :meth:`act`, or random actions.
            timestep: The result of the step of the envs, leading axis K; a row that is not valid gives None.
        """
        outputs = output[OUTPUT] if OUTPUT in output else _random_outputs(output["action"], len(timestep.valid))
        made: list[Any] = [None] * len(timestep.valid)
        for row in np.flatnonzero(timestep.valid).tolist():
            step = _step_of(timestep, row)
            transition = self.mode.process_transition(nested.index(obs, row), outputs[row], step)
            if not isinstance(transition, Mapping):
                raise TypeError(f"process_transition must return a mapping, got {type(transition).__name__}")
            made[row] = transition
        return {TRANSITION: _objects(made), "is_last": timestep.terminated | timestep.truncated}

    def transitions(self, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the transitions of an episode, or of a piece of one, as dicts of tensors.

        Args:
            columns: Results of :meth:`process_transition` with the columns that a collector adds, leading axis T.

        Returns:
            The entries that the policy made, ``collect_iter``, ``env_id`` and ``episode_id``, and where there are such,
            ``seed`` and ``player``.
        """
        added = ("env_id", "episode_id", "seed", "player")
        columns = {name: value.tolist() for name, value in columns.items()}
        listed = [
            {
                **{name: columns[name][row] for name in added if name in columns},
                **made,
                "collect_iter": columns["policy_version"][row],
            }
            for row, made in enumerate(columns[TRANSITION])
        ]
        return to_tensor_transitions(listed, not self._config.deepcopy_obs)

    def queue(self, num_envs: int, kept: Any) -> PieceQueue:
        """Return the queue of the collected data of N envs: the kept one, or a new one for data of another form."""
        queue = kept if isinstance(kept, PieceQueue) else PieceQueue()
        queue.use(self, num_envs)
        return queue

    def get_train_sample(self, transitions: list[dict[str, Any]]) -> list[Any]:
        """Return the samples that the policy makes of transitions."""
        return list(self.mode.get_train_sample(transitions))


class PieceQueue:
    """Samples that a policy made of pieces of episodes, and the transitions of the pieces that are not complete.

    A piece ends with its episode, or after ``max(unroll_len, ceil(n_sample / N))`` transitions; without an ``n_sample``
    in the policy's config, or with ``traj_len_inf``, only with its episode. If returns are computed over ``nstep`` > 1
    steps, a piece that is cut also contains the next ``nstep`` transitions, so that the returns of the others do not
    depend on the cut; these transitions then begin the next piece.

    A policy that learns from its newest data only (``on_policy``) gets no transitions from earlier calls: the pieces
    that are open at the end of a call are dropped, as is the surplus.
    """

    def __init__(self) -> None:
        self.samples: list[Any] = []
        self._open: dict[int, list[dict[str, Any]]] = {}
        """Transitions of each env, as rows of columns."""

    def use(self, policy: ByEnv, num_envs: int) -> None:
        """Set the policy, and the number of envs N."""
        self._policy = policy
        unroll_len, n_sample = int(policy.unroll_len or 1), policy.n_sample
        self._is_on_policy = bool(policy.on_policy)
        is_whole = n_sample is None or policy.setting("traj_len_inf", False)
        self._cut = math.inf if is_whole else max(unroll_len, -(-cast(int, n_sample) // num_envs))
        nstep = int(policy.setting("nstep", 1) or 1)
        self._overlap = nstep if nstep > 1 and unroll_len == 1 and not self._is_on_policy else 0

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def append(self, step: dict[str, Any], valid: Any = None) -> None:
        """Add the transitions of a step.

        Args:
            step: Columns of :meth:`ByEnv.process_transition`, with ``env_id`` and ``episode_id``.
            valid: Rows that are transitions; None means all.
        """
        for row in range(len(step[TRANSITION])) if valid is None else np.flatnonzero(valid).tolist():
            transition = {name: column[row : row + 1] for name, column in step.items()}
            env_id = int(transition["env_id"][0])
            before = self._open.setdefault(env_id, [])
            if before and before[-1]["episode_id"][0] != transition["episode_id"][0]:
                self._close(env_id)  # a fault or a reset ended the episode
            piece = self._open[env_id]
            piece.append(transition)
            if transition["is_last"][0]:
                self._close(env_id)
            elif len(piece) == self._cut + self._overlap:
                self._close(env_id, self._overlap)

    def lacks(self, amount: int) -> bool:
        """Return whether there are fewer than S samples."""
        return self.count < amount

    def take(self, amount: int) -> list[Any]:
        """Remove and return the oldest samples."""
        taken, self.samples = self.samples[:amount], self.samples[amount:]
        if self._is_on_policy:
            self.samples, self._open = [], {}
        return taken

    def check_levels(self, waiting: str, level_seeds: Sequence[int] | None) -> None:
        """Do nothing: a list may hold transitions with and without a level."""

    def state(self) -> dict[str, Any]:
        """Return samples and open pieces."""
        return {"samples": self.samples, "open": [[env_id, piece] for env_id, piece in self._open.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.samples, self._open = state["samples"], dict(state["open"])

    def _close(self, env_id: int, overlap: int = 0) -> None:
        """Let the policy make samples of a piece, except of its last ``overlap`` transitions, which stay."""
        piece = self._open[env_id]
        if not piece:
            return
        samples = self._policy.get_train_sample(self._policy.transitions(nested.concatenate_arrays(piece)))
        made = len(samples) - overlap if len(samples) == len(piece) else len(samples)
        self.samples += samples[:made]
        self._open[env_id] = piece[len(piece) - overlap :] if made < len(samples) else []


def _fitted(action: Any, space: spaces.Space[Any] | None) -> Any:
    """Return actions in the shape of their space; DI-engine's policies return discrete ones with an axis of size 1."""
    if isinstance(action, dict):
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        return {name: _fitted(part, parts.get(name)) for name, part in action.items()}
    shape = None if space is None or space.shape is None else (len(action), *space.shape)
    return action.reshape(shape) if shape is not None and np.prod(shape) == action.size else action


def _step_of(timestep: Any, row: int) -> BaseEnvTimestep:
    """Return the step of one env; its info has ``TimeLimit.truncated``."""
    terminated, truncated = bool(timestep.terminated[row]), bool(timestep.truncated[row])
    info = timestep.info
    if (terminated or truncated) and isinstance(info.get("final_info"), Mapping):
        info = info["final_info"]  # the other entries are of the first step of the next episode
    reward = np.array([timestep.reward[row]], dtype=np.float32)
    own = info_of(info, row) | {TIME_LIMIT: truncated and not terminated}
    return BaseEnvTimestep(nested.index(timestep.next_obs, row), reward, terminated or truncated, own)


def _random_outputs(action: Any, amount: int) -> list[dict[str, Any]]:
    with_axis = nested.apply(lambda leaf: torch.as_tensor(leaf).reshape(amount, *(leaf.shape[1:] or (1,))), action)
    return [{"action": nested.index(with_axis, row)} for row in range(amount)]


def _objects(items: Sequence[Any]) -> NDArray[np.object_]:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
