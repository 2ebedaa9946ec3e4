"""What a run says when the disk does not take a checkpoint."""

from __future__ import annotations

import logging

from lightning.pytorch import Trainer

from lightning_ding.callbacks.on_every_rank import AnotherRankError

logger = logging.getLogger(__name__)


class SavingFailure:
    """The failure of the newest attempt to write a kind of checkpoint, if it failed.

    Args:
        what: The kind, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._error: OSError | None = None

    def forget(self) -> None:
        """Note that the newest attempt went well."""
        self._error = None

    def note(self, trainer: Trainer, path: object, env_step: int, error: OSError) -> None:
        """Note a failure, and log it on the ranks that know what was wrong."""
        self._error = error
        if trainer.is_global_zero or not isinstance(error, AnotherRankError):
            logger.error(
                "THE %s CHECKPOINT OF ENV STEP %d WAS NOT WRITTEN to %s: %s. The one before it stays; training goes on "
                "and tries again at the next one",
                self._what.upper(),
                env_step,
                path,
                error,
            )

    def check(self, left: str) -> None:
        """Let no run look fine whose newest attempt failed.

        Args:
            left: Path of the checkpoint that was written before; empty if there is none.

        Raises:
            OSError: If it failed.
        """
        if self._error is not None:
            raise OSError(
                f"the {self._what} checkpoint of this run could not be written ({self._error}); there is "
                f"{left or 'no other'} from before"
            ) from self._error
