"""A policy with a command mode: settings for the workers from the state of the run."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning_ding.policy.base import ConfigT, Policy, not_implemented
from lightning_ding.policy.modes import CommandMode


class CommandModePolicy(Policy[ConfigT]):
    """A policy that also tells the workers how to go on; it may be made with this field alone, and then has no network.

    The info that the settings are computed from holds ``envstep`` and ``learner_step``.
    """

    total_field: ClassVar[tuple[str, ...]] = ("learn", "collect", "eval", "command")

    @property
    def command_mode(self) -> CommandMode:
        """What a commander sees."""
        return CommandMode(self._get_setting_learn, self._get_setting_collect, self._get_setting_eval)

    def _init_command(self) -> None:
        """Make what commanding needs."""

    def _get_setting_learn(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments of the collect mode's ``forward``."""
        raise not_implemented(self, "_get_setting_collect")

    def _get_setting_eval(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {}
