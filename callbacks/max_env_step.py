"""Stop after a number of env steps."""

from __future__ import annotations

from lightning_ding.callbacks.stopping import StopAt


class StopAtEnvStep(StopAt):
    """Stops the run at the end of the round in which the env steps of all ranks reach a number.

    Args:
        max_env_step: >= 1.
    """

    def __init__(self, max_env_step: int) -> None:
        super().__init__("env_step", max_env_step)
