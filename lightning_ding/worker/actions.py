"""Actions for N envs: checked actions of a policy, and random actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from lightning_ding import nested
from lightning_ding.rl import random_legal_actions
from lightning_ding.rl.exploration import within_box


def actions_of(output: Any, env: VectorEnv) -> Any:
    """Return the actions of a policy for the envs.

    Args:
        output: Output of the policy's ``forward``.
        env: The vector env.

    Raises:
        ValueError: If there are no actions, their shape is wrong, the output holds a number that is not finite, or
            integers are not in the action space.
    """
    try:
        action = output["action"]
    except (KeyError, TypeError, IndexError) as error:
        kind = sorted(output) if isinstance(output, Mapping) else type(output).__name__
        raise ValueError(f"the policy's forward must return a dict with 'action', got {kind}") from error
    action = nested.to_numpy(action)
    space: Any = env.action_space
    single: Any = env.single_action_space
    shape = space.shape
    got = getattr(action, "shape", ())
    if shape is not None and got != shape:
        raise ValueError(f"the policy must return actions of shape {shape}, got {got}")
    check_finite(output)
    if isinstance(space, spaces.Dict):
        return {name: _as_in_space(part, space[name], single[name]) for name, part in action.items()}  # type: ignore[union-attr]
    return _as_in_space(action, space, single)


def _as_in_space(action: Any, space: spaces.Space[Any], single: spaces.Space[Any]) -> Any:
    """Return the actions in the type of their space.

    Raises:
        ValueError: If an integer is not in the space; the message names the env.
    """
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        is_same = action.dtype == space.dtype and space.dtype == np.float32  # the policy's own units and bounds
        return action if is_same or action.dtype.kind != "f" else within_box(action, space)
    if space.dtype is None or space.dtype.kind not in "iu" or action.dtype.kind not in "iub":
        return action
    if isinstance(single, spaces.Box) and isinstance(space, spaces.Box):
        good = ((action >= space.low) & (action <= space.high)).reshape(len(action), -1).all(1)
        if not good.all():
            has_bounds = single.bounded_below & single.bounded_above
            action = np.where(has_bounds, action, action.clip(space.low, space.high))
            good = ((action >= space.low) & (action <= space.high)).reshape(len(action), -1).all(1)
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise ValueError(f"the policy gave env {row} an action that is not in its space: {action[row]}")
    return action.astype(space.dtype, copy=False)


def check_finite(output: Mapping[str, Any], name_of: Callable[[int], str] = "env {}".format) -> None:
    """Raise if a policy returned a non-finite number, before it reaches an env or a buffer.

    A ``logit`` may be minus infinity, which marks actions that are not legal.

    Args:
        output: Output of the policy's ``forward``, leading axis N.
        name_of: Function that returns the name of a row for the message.

    Raises:
        ValueError: Naming the entry, the first such row and its values.
    """
    for name, entry in output.items():
        for leaf in nested.leaves(entry):
            if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point():
                continue
            values = leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
            if values.dtype.kind != "f" or np.isfinite(values).all():
                continue
            good = np.isfinite(values) | ((values == -np.inf) & (name == "logit"))
            if not good.all():
                row = int(np.flatnonzero(~good.reshape(len(good), -1).all(1))[0])
                raise ValueError(f"the policy gave {name_of(row)} {name!r} that is not finite: {values[row]}")


def random_output(env: VectorEnv, obs: Any) -> dict[str, Any]:
    """Return uniformly random actions in place of a policy's output.

    Args:
        env: The vector env; its action space is the source of the actions.
        obs: Observations, leading axis N. With an ``action_mask`` the actions are legal; of a hybrid action it masks
            the ``action_type``.
    """
    space, single = env.action_space, env.single_action_space
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if mask is None:
        action = space.sample()
    elif isinstance(space, spaces.Dict):
        choice = random_legal_actions(single["action_type"], mask, space.np_random)  # type: ignore[index]
        action = {**space.sample(), "action_type": choice}
    else:
        action = random_legal_actions(single, mask, space.np_random)
    return {"action": nested.apply(_as_int64, action)}


def _as_int64(leaf: Any) -> Any:
    """Return an array with integers of any size as int64."""
    array = np.asarray(leaf)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array
