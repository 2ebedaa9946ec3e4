"""Stop after a number of updates."""

from __future__ import annotations

from lightning_ding.callbacks.stopping import StopAt


class StopAtTrainIter(StopAt):
    """Stops the run at the end of the round in which the updates reach a number.

    Args:
        max_train_iter: >= 1.
    """

    def __init__(self, max_train_iter: int) -> None:
        super().__init__("train_iter", max_train_iter)
