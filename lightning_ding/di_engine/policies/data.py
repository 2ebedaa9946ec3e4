"""DI-engine's names of what every policy has, and batches as its lists and ``{env_id: ...}``, and back.

Shapes: N envs, S transitions, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.di_engine.base_env import BaseEnvTimestep

Rows = list[dict[str, Any]]
TIME_LIMIT = "TimeLimit.truncated"


class EnvOutputs(dict[str, Any]):
    """The actions of N envs, and what the policy returned for each env.

    Args:
        columns: ``action``, leading axis N.
        by_env: The output for each of the N envs.
    """

    def __init__(self, columns: Mapping[str, Any], by_env: Sequence[Any]) -> None:
        super().__init__(columns)
        self.by_env = by_env


def as_floats(obs: Any) -> Any:
    """Return observations as tensors of floats; bytes keep their range."""
    return nested.apply(lambda leaf: leaf if leaf.is_floating_point() else leaf.float(), nested.to_tensor(obs))


def rows_of(columns: Mapping[str, Any]) -> Rows:
    """Return the transitions of columns with leading axis B as a list of B dicts, with observations as floats."""
    tensors: dict[str, Any] = {name: nested.to_tensor(column) for name, column in columns.items()}
    for name in ("obs", "next_obs"):
        if name in tensors:
            tensors[name] = as_floats(tensors[name])
    return list(nested.unbind(tensors))  # type: ignore[arg-type]


def columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a list of B transitions or samples as nested arrays with leading axis B.

    A key whose value is None in all of them is left out, and a tuple becomes a dict.

    Raises:
        TypeError: If a value is not made of numbers; the message names the key.
        ValueError: If the transitions differ in their keys or shapes.
    """
    kept = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    columns: dict[str, Any] = {}
    for name in kept:
        try:
            columns[name] = nested.stack_arrays([nested.as_dicts(row[name]) for row in rows])
        except (TypeError, KeyError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"every transition must have {name!r} as numbers of equal shape: {error}") from error
    return columns


def stacked_actions(by_env: Sequence[Any], shape: tuple[int, ...] | None) -> Any:
    """Return the actions of N envs with leading axis N.

    Args:
        by_env: The output for each env, with ``action``.
        shape: Shape of one env's action; None if it is not known, then single integers are numbers.
    """
    if not all(isinstance(output, Mapping) and "action" in output for output in by_env):
        kinds = sorted({type(output).__name__ for output in by_env})
        raise ValueError(f"the policy must return a dict with 'action' for each env, got {kinds}")

    def fitted(action: Tensor) -> Tensor:
        if shape is not None:
            return action.reshape(len(action), *shape)
        is_number = action.ndim == 2 and action.shape[1] == 1 and not action.is_floating_point()
        return action.squeeze(1) if is_number else action

    actions = nested.stack([nested.to_tensor(output["action"]) for output in by_env])
    return actions if isinstance(actions, dict) else fitted(actions)


def transitions_of(function: Callable[..., Any], obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
    """Return the columns of the transitions of N envs, from what ``_process_transition`` returns for each env.

    Discrete actions have the shape (1,) for each env, as DI-engine's policies return them. The columns ``terminated``
    and ``truncated`` are added where the policy does not return them.

    Args:
        function: ``_process_transition`` of the policy.
        obs: Observations, leading axis N.
        output: An :class:`EnvOutputs`, or the columns of random actions.
        timestep: The result of the envs' step, leading axis N.
    """
    outputs = output.by_env if isinstance(output, EnvOutputs) else rows_of(output)
    outputs = [{**one, "action": nested.apply(_at_least_1d, nested.to_tensor(one["action"]))} for one in outputs]
    before, after = (list(nested.unbind(nested.to_tensor(nested.as_dicts(one)))) for one in (obs, timestep.next_obs))
    rows = []
    for env_id, (first, second) in enumerate(zip(before, after, strict=True)):
        terminated, truncated = bool(timestep.terminated[env_id]), bool(timestep.truncated[env_id])
        reward = torch.tensor([float(timestep.reward[env_id])])
        info = info_of(timestep.info, env_id) | {TIME_LIMIT: truncated and not terminated}
        step = BaseEnvTimestep(second, reward, terminated or truncated, info)
        made = function(first, outputs[env_id], step)
        rows.append({"terminated": terminated, "truncated": truncated, **made})
    return columns_of_rows(rows)


def info_of(info: Mapping[str, Any], env_id: int) -> dict[str, Any]:
    """Return what one env reported in a step, of the info of a vector env."""
    found = {}
    for name, values in info.items():
        mask = info.get(f"_{name}")
        if not name.startswith("_") and mask is not None and mask[env_id]:
            found[name] = info_of(values, env_id) if isinstance(values, Mapping) else values[env_id]
    return found


def _at_least_1d(leaf: Tensor) -> Tensor:
    return leaf.detach().reshape(1) if leaf.ndim == 0 and not leaf.is_floating_point() else leaf.detach()


def trajectories(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the transitions of each episode in chronological order, env by env.

    Args:
        columns: Nested arrays with leading axis S, those of an env in chronological order, with ``env_id`` and
            ``episode_id``; without them, one trajectory.
    """
    if "env_id" not in columns or "episode_id" not in columns:
        yield dict(columns)
        return
    env_id, episode_id = (np.asarray(columns[name]) for name in ("env_id", "episode_id"))
    order = np.argsort(env_id, kind="stable")
    pairs = np.stack([env_id[order], episode_id[order]])
    cuts = np.flatnonzero((pairs[:, 1:] != pairs[:, :-1]).any(0)) + 1
    for rows in np.split(order, cuts):
        yield cast("dict[str, Any]", nested.index(dict(columns), rows))


def samples_of(function: Callable[[Rows], Sequence[Mapping[str, Any]]], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the training samples that ``_get_train_sample`` makes of each trajectory.

    ``env_id`` is left out: the samples of an env are no longer its steps, which a buffer would link.

    Raises:
        ValueError: If there are no samples.
    """
    samples = [one for part in trajectories(columns) for one in function(rows_of(part))]
    if not samples:
        raise ValueError("_get_train_sample must return at least one sample of the collected transitions, got none")
    return {name: column for name, column in columns_of_rows(samples).items() if name != "env_id"}


# ---------------------------------------------------------------------- data of single envs


class _Step(NamedTuple):
    """The step of one env, as a policy's ``_process_transition`` reads it."""

    next_obs: Any
    reward: Any
    terminated: bool
    truncated: bool


def step_of(timestep: Any) -> Any:
    """Return the step of one env in this project's form, if it is in DI-engine's: ``obs, reward, done, info``.

    An episode with ``info["TimeLimit.truncated"]`` ended by truncation.

    Example:
        >>> from collections import namedtuple
        >>> BaseEnvTimestep = namedtuple("BaseEnvTimestep", ["obs", "reward", "done", "info"])
        >>> step_of(BaseEnvTimestep(3.0, np.array([1.0]), True, {}))
        _Step(next_obs=3.0, reward=1.0, terminated=True, truncated=False)
    """
    if not hasattr(timestep, "done"):
        return timestep
    is_cut = bool(timestep.info.get(TIME_LIMIT, False))
    reward = timestep.reward.item() if isinstance(timestep.reward, (np.ndarray, Tensor)) else timestep.reward
    return _Step(timestep.obs, reward, bool(timestep.done) and not is_cut, bool(timestep.done) and is_cut)


def columns_of(transitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a list of transitions as nested tensors with leading axis B, in this project's form.

    DI-engine's transitions have ``done`` in place of ``terminated``, rewards of shape (1,), and discrete actions of
    that shape. The ids that a buffer gives as text are left out.
    """
    texts = {name for name, value in transitions[0].items() if isinstance(value, str)} if transitions else set()
    rows = [{name: one[name] for name in one if name not in texts} for one in transitions] if texts else transitions
    columns = cast("dict[str, Any]", nested.stack(list(rows)))
    if "done" not in columns:
        return columns
    is_theirs = "terminated" not in columns
    if is_theirs:
        columns["terminated"] = columns.pop("done").bool()
    for name in ("reward", "terminated", "action") if is_theirs else ("reward",):
        column = columns.get(name)
        is_single = isinstance(column, Tensor) and column.ndim == 2 and column.shape[1] == 1
        if is_single and (name != "action" or not column.is_floating_point()):  # type: ignore[union-attr]
            columns[name] = column.squeeze(1)  # type: ignore[union-attr]
    return columns
