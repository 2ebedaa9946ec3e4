"""Actions for N envs: those of a policy, checked, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from lightning_ding import nested
from lightning_ding.rl import random_actions


def actions_of(output: Any, env: VectorEnv) -> Any:
    """Return the actions of a policy for the envs.

    Args:
        output: What the policy's forward returned.
        env: The vector env.

    Raises:
        ValueError: If there are no actions, their shape is wrong, or something that the policy returned is not finite.
    """
    try:
        action = output["action"]
    except (KeyError, TypeError, IndexError) as error:
        got = sorted(output) if isinstance(output, Mapping) else type(output).__name__
        raise ValueError(f"the policy's forward must return a dict with 'action', got {got}") from error
    action = nested.to_numpy(action)
    shape = env.action_space.shape
    if shape is not None and np.shape(action) != shape:  # type: ignore[arg-type]
        raise ValueError(f"the policy must return actions of shape {shape}, got {np.shape(action)}")  # type: ignore[arg-type]
    check_finite(output)
    return action


def check_finite(output: Mapping[str, Any], name_of: Callable[[int], str] = "env {}".format) -> None:
    """Raise if a policy returned a number that is not finite, before an env or a buffer gets it.

    A ``logit`` may be minus infinity, as those of actions are that are not legal.

    Args:
        output: What the policy's forward returned, leading axis N.
        name_of: Returns whose a row is.

    Raises:
        ValueError: Naming the entry, the first env and what it got.
    """
    for name, entry in output.items():
        for leaf in nested.leaves(entry):
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
        env: The vector env; its action space is the source.
        obs: Observations, leading axis N; where they have an ``action_mask``, the actions are legal; of a hybrid
            action it is the mask of ``action_type``.
    """
    space, single = env.action_space, env.single_action_space
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if mask is None:
        action = space.sample()
    elif isinstance(space, spaces.Dict):
        choice = _legal(mask, space["action_type"], single["action_type"])  # type: ignore[index]
        action = {**space.sample(), "action_type": choice}
    else:
        action = _legal(mask, space, single)
    return {"action": nested.apply(lambda leaf: torch.from_numpy(np.asarray(leaf)), action)}


def _legal(mask: Any, space: spaces.Space[Any], single: spaces.Space[Any]) -> Any:
    """Return random legal actions of a discrete space of N envs, of which each has the space ``single``."""
    nvec = getattr(single, "nvec", None)
    actions = random_actions(mask, space.np_random, None if nvec is None else np.ravel(nvec).tolist())
    return actions.reshape(space.shape)
