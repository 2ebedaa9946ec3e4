"""Making the tensor envs of a run from a name, a callable or an object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lightning_ding.config import closest, require
from lightning_ding.envs.state.state import describe
from lightning_ding.envs.tensor.as_numpy import TensorsAsNumpy
from lightning_ding.envs.tensor.classic import BUILT_IN


def given_env(env: Any) -> Any:
    """Return the object itself: the maker of an env that the user has made and will close."""
    return env


def takes(env: Any, name: str) -> bool:
    """Return whether the maker of an env has an argument of this name that is still open."""
    maker = BUILT_IN.get(env, env) if isinstance(env, str) else env
    if not callable(maker):
        return False
    is_given = isinstance(maker, functools.partial) and (name in maker.keywords or maker.func is given_env)
    return not is_given and name in inspect.signature(maker).parameters


def with_device(env: Any, env_kwargs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the arguments of an env, an id or a callable, with the device of the run if it takes one and has none."""
    return {"device": device, **env_kwargs} if takes(env, "device") else dict(env_kwargs)


def make_tensor_envs(
    env: str | Callable[..., Any],
    num_envs: int,
    wrappers: Sequence[Any],
    env_kwargs: Mapping[str, Any],
) -> TensorsAsNumpy:
    """Return N tensor envs as a vector env.

    Args:
        env: The id of a built-in env, or a callable, which gets ``num_envs`` if it has such an argument.
        num_envs: Number of envs N, >= 1.
        wrappers: Wrappers, of which there must be none.
        env_kwargs: Arguments of the env.

    Raises:
        ValueError: If there is no such env, it has another number of envs, or there are wrappers.
        TypeError: If the result is no env of tensors.
    """
    require(
        not wrappers,
        "wrappers",
        '() with mode="tensor": wrap the batch of envs in the callable that makes it',
        wrappers,
    )
    if isinstance(env, str):
        near = closest(env, BUILT_IN)
        hint = "" if near is None or near == env else f"; did you mean {near!r}?"
        allowed = f'one of {", ".join(BUILT_IN)}, a callable or an object with mode="tensor"{hint}'
        require(env in BUILT_IN, "env_id", allowed, env)
    maker: Any = BUILT_IN[env] if isinstance(env, str) else env
    is_lent = isinstance(maker, functools.partial) and maker.func is given_env
    require(
        not (is_lent and env_kwargs), "env_kwargs", "{} with an object as env_id, which is made already", env_kwargs
    )
    number = {"num_envs": num_envs} if takes(maker, "num_envs") else {}
    made = maker(**number, **env_kwargs)
    given = {name: value for name, value in env_kwargs.items() if name != "device"}
    envs = TensorsAsNumpy(made, closes=not is_lent, made_with=describe(given))
    if envs.num_envs != num_envs:
        envs.close()
        allowed = f"{envs.num_envs}, for training and evaluation, because env_id has that many envs"
        require(False, "num_envs", allowed, num_envs)
    return envs
