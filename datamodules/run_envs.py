"""The vector envs of a run: how they are made, which of them is busy, and how they are closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv

from lightning_ding.datamodules.trainer_setup import plain, said_if_slow
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.named import EnvLike
from lightning_ding.envs.process.processes import end_fork_server
from lightning_ding.envs.vector import (
    MODES,
    AutoresetName,
    EnvTimeout,
    SaysProgress,
    VectorMode,
    differ_in_bounds_only,
)


class RunEnvs:
    """Makes the vector envs of a run, and closes them.

    Args:
        mode: How the envs are stepped.
        env_timeout: Time limits for an env.
        import_names: Modules that the process of an env imports first.
    """

    def __init__(self, mode: VectorMode, env_timeout: EnvTimeout, import_names: Sequence[str]) -> None:
        self.mode: VectorMode = mode
        self.opened: list[VectorEnv] = []
        """The open envs, which :meth:`close` closes; further ones may be added."""
        self._options: dict[str, Any] = {"env_timeout": env_timeout, "import_names": import_names}
        self._making: str | None = None
        self._checked: tuple[int, ...] | None = None  # ids of what the envs were made of that were checked last

    def make(
        self,
        env_id: EnvLike,
        num_envs: int,
        wrappers: Sequence[Callable[[Any], Any]],
        env_kwargs: Mapping[str, Any],
        autoreset: AutoresetName | None,
        restarts: bool,
    ) -> VectorEnv:
        """Return a new vector env, whose first env is checked unless the last ones were made of the same parts.

        Args:
            env_id: The env.
            num_envs: Number of envs, >= 1.
            wrappers: Wrappers of each env, the innermost first.
            env_kwargs: Arguments of the env.
            autoreset: When an env is reset; None for the default of the mode.
            restarts: Whether the process of an env is replaced when it fails.
        """
        parts = (id(env_id), id(env_kwargs), *map(id, wrappers))
        made = {
            **self._options,
            "check_api": parts != self._checked,
            "on_env_error": "restart" if restarts else "raise",
        }
        self._making = f"an env of {plain(env_id)}, which is made, reset or stepped for the first time"
        try:
            with said_if_slow(f"making {num_envs} envs of {plain(env_id)}"):
                env = make_vector_env(env_id, num_envs, self.mode, None, wrappers, env_kwargs, autoreset, **made)
        finally:
            self._making = None
        self._checked = parts
        self.opened.append(env)
        return env

    def in_progress(self) -> str | None:
        """Return which env is made, or is in which step or reset now, or None; native vector envs do not say it."""
        if self._making is not None:
            return self._making
        cores = [env.unwrapped for env in self.opened]
        found = (core.in_progress() for core in cores if isinstance(core, SaysProgress))
        return next((text for text in found if text is not None), None)

    def close(self) -> None:
        """Close the envs, and end their processes. The next envs are checked again."""
        self._checked = None
        envs, self.opened = self.opened, []
        for env in envs:
            env.close()
        if envs and MODES[self.mode].has_processes:
            end_fork_server()


def check_same_spaces(env: VectorEnv, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    """Raise if training envs differ from those of the evaluation in more than the bounds of observations.

    Args:
        env: The training envs.
        observation_space: Observation space of one env of the evaluation.
        action_space: Action space of one env of the evaluation.

    Raises:
        ValueError: Naming the space.
    """
    pairs = {
        "observation": (env.single_observation_space, observation_space),
        "action": (env.single_action_space, action_space),
    }
    for name, (train, evaluate) in pairs.items():
        if train != evaluate and not (name == "observation" and differ_in_bounds_only(train, evaluate)):
            raise ValueError(
                f"training and evaluation envs must have the same {name} space, got {train} and {evaluate}; a "
                "wrapper that changes it belongs in wrappers, not in train_wrappers or eval_wrappers"
            )
