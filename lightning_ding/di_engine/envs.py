"""DI-engine's envs, env managers and wrappers of ``ding.envs``, with its names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from easydict import EasyDict

from lightning_ding.config import require
from lightning_ding.registry import ENV_REGISTRY, import_modules
from lightning_ding.utils.foreign import attach

_HOMES = {
    **dict.fromkeys(("BaseEnv", "BaseEnvTimestep"), "di_engine.base_env"),
    "DingEnvWrapper": "di_engine.ding_env_wrapper",
    **dict.fromkeys(
        (
            *("AsyncSubprocessEnvManager", "BaseEnvManager", "BaseEnvManagerV2", "SubprocessEnvManagerV2"),
            *("SyncSubprocessEnvManager", "create_env_manager", "get_env_manager_cls"),
        ),
        "di_engine.env_managers",
    ),
    **dict.fromkeys(
        (
            *("ActionRepeatWrapper", "AllinObsWrapper", "ClipRewardWrapper", "EvalEpisodeReturnWrapper"),
            *("FrameStackWrapper", "MaxAndSkipWrapper", "ObsPlusPrevActRewWrapper", "ScaledFloatFrameWrapper"),
            "WarpFrameWrapper",
        ),
        "di_engine.gym_wrappers",
    ),
}
__all__ = [
    *_HOMES,
    *("BaseEnvInfo", "EnvElement", "EnvElementInfo", "affine_transform", "get_env_cls", "get_vec_env_setting"),
    *("save_frames_as_gif", "update_shape"),
]
_others = attach(__name__, _HOMES)[0]


def __getattr__(name: str) -> Any:
    return _others(name)


class EnvElementInfo(NamedTuple):
    """The shape of observations, actions or rewards, and further values, such as bounds."""

    shape: Any
    value: Any


class BaseEnvInfo(NamedTuple):
    """The numbers of agents and the elements of an env."""

    agent_num: int
    obs_space: Any
    act_space: Any
    rew_space: Any
    use_wrappers: Any = None


class EnvElement:
    """A part of an env, such as its observations; a subclass sets its attributes in ``_init``."""

    _name = "EnvElement"
    _shape: Any = None
    _value: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._init(*args, **kwargs)

    def _init(self, *args: Any, **kwargs: Any) -> None:
        """Set the attributes."""

    def __repr__(self) -> str:
        return f"{self._name}: {self._details()}"

    def _details(self) -> str:
        return f"shape {self._shape}"

    @property
    def info(self) -> EnvElementInfo:
        """Shape and values."""
        return EnvElementInfo(self._shape, self._value)


def affine_transform(
    data: Any,
    action_clip: bool = True,
    alpha: float | None = None,
    beta: float | None = None,
    min_val: Any = None,
    max_val: Any = None,
) -> Any:
    """Return actions in [-1, 1] mapped to bounds, or else as ``data * alpha + beta``.

    Args:
        data: An array.
        action_clip: Clip the actions to [-1, 1] before.
        alpha: Factor, without bounds.
        beta: Summand, without bounds; None means 0.
        min_val: Lower bound, a number or an array; None means no bounds.
        max_val: Upper bound.

    Raises:
        ValueError: If neither both bounds nor ``alpha`` are given.

    Example:
        >>> affine_transform(np.array([-2.0, 0.0]), min_val=0.0, max_val=4.0)
        array([0., 2.])
    """
    data = np.clip(data, -1, 1) if action_clip else data
    if min_val is None:
        require(alpha is not None, "min_val and max_val", "given without alpha", (min_val, max_val))
        return data * alpha + (beta or 0.0)
    require(max_val is not None, "max_val", "given with min_val", max_val)
    return min_val + (data + 1) / 2 * (max_val - min_val)


def update_shape(obs_shape: Any, act_shape: Any, rew_shape: Any, wrapper_names: Sequence[str]) -> tuple[Any, Any, Any]:
    """Return the shapes after wrappers that change none: those of this package read them from the spaces."""
    return obs_shape, act_shape, rew_shape


def save_frames_as_gif(frames: Sequence[Any], path: str) -> None:
    """Write frames (height, width, 3) of bytes as a GIF of 20 frames a second (extra ``video``).

    Raises:
        ValueError: If there are no frames.
    """
    from PIL import Image

    require(len(frames) > 0, "frames", "at least one", frames)
    first, *others = [Image.fromarray(np.asarray(frame, np.uint8)) for frame in frames]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    first.save(path, save_all=True, append_images=others, duration=50, loop=0)


def get_env_cls(cfg: Mapping[str, Any]) -> Any:
    """Return the env class that ``cfg["type"]`` names, after importing ``cfg["import_names"]``.

    Raises:
        NotRegisteredError: If no env has this name; a ``KeyError``.
    """
    import_modules(cfg.get("import_names", ()))
    return ENV_REGISTRY.get(cfg["type"])


Setting = tuple[Callable[..., Any], list[Any] | None, list[Any] | None]


def get_vec_env_setting(cfg: Mapping[str, Any], collect: bool = True, eval_: bool = True) -> Setting:
    """Return the class of the envs, and a config for each env that collects, and for each one of evaluations.

    Args:
        cfg: Section ``env`` of the config, with ``type``, ``import_names``, ``collector_env_num`` and
            ``evaluator_env_num``.
        collect: Return the configs of envs that collect; None otherwise.
        eval_: Return the configs of envs of evaluations; None otherwise.
    """
    env_cls = get_env_cls(cfg)
    made = [
        getattr(env_cls, f"create_{role}_env_cfg")(EasyDict(copy.deepcopy(dict(cfg)))) if is_wanted else None
        for role, is_wanted in (("collector", collect), ("evaluator", eval_))
    ]
    return env_cls, made[0], made[1]
