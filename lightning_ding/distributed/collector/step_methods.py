"""Collectors that are written with a method for each part of a step."""

from __future__ import annotations

import logging
from typing import Any

from lightning_ding.utils.modes import not_implemented

OWN_METHODS = ("_policy_inference", "_env_step", "_process_timestep", "_update_policy")
"""Methods that a subclass in this form implements."""


class StepMethods:
    """The loop of a collector that implements the parts of a step itself, and sets ``policy`` and ``env_manager``.

    ``env_manager`` needs ``ready_obs``, the observations of the envs that wait for an action, and ``done``, whether the
    task is over. Observations, actions and timesteps are passed on as they are.
    """

    policy: Any = None
    """The policy that acts, or its mode."""
    env_manager: Any = None
    """The envs."""
    _end_flag = False
    _prefix = "COLLECTOR"
    _cfg: Any = None

    def _policy_inference(self, obs: Any) -> Any:
        """Return the actions for observations."""
        raise not_implemented(self, "_policy_inference")

    def _env_step(self, action: Any) -> Any:
        """Step the envs, and return what they return."""
        raise not_implemented(self, "_env_step")

    def _process_timestep(self, timestep: Any) -> None:
        """Keep or send what a step has given."""
        raise not_implemented(self, "_process_timestep")

    def _update_policy(self) -> None:
        """Load the newest weights; called once at the start."""
        raise not_implemented(self, "_update_policy")

    def _start_thread(self) -> None:
        """Start what works in the background; nothing by default."""

    def _join_thread(self) -> None:
        """Wait for the end of what works in the background; nothing by default."""

    def _run_steps(self) -> None:
        """Step until the envs are done, or the collector is closed."""
        self._end_flag = False
        self._update_policy()
        self._start_thread()
        while not self._end_flag:
            self._process_timestep(self._env_step(self._policy_inference(self.env_manager.ready_obs)))
            if self.env_manager.done:
                break

    def info(self, text: str) -> None:
        """Write a line to Python's logging, at level INFO."""
        self._write(logging.INFO, text)

    def debug(self, text: str) -> None:
        """Write a line to Python's logging, at level DEBUG."""
        self._write(logging.DEBUG, text)

    def error(self, text: str) -> None:
        """Write a line to Python's logging, at level ERROR."""
        self._write(logging.ERROR, text)

    def _write(self, level: int, text: str) -> None:
        logger = logging.getLogger(type(self).__module__)
        logger.log(level, "[%s(%s)]: %s", self._prefix, type(self).__name__, text)
