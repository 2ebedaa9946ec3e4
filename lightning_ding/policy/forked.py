"""What a policy hands over to the process that forked the ranks, as ``strategy="ddp_notebook"`` does.

Lightning 2.6 saves ``state_dict()`` of the module in rank zero when a fit is over, and loads it in the process that
called ``fit``. There the network may not exist yet, because it is made from the env's spaces in the ranks, and the
counters stand still. So the state of a policy in such a rank holds its config and counters as well.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher  # 2.6 has no public name for it

HANDED_OVER = "handed_over"
"""Key of a state, which no parameter can have: those of a policy are those of its networks."""


def is_forked(trainer: Trainer) -> bool:
    """Return whether the ranks of a Trainer are forks of the process that called it, as in a notebook."""
    launcher: Any = trainer.strategy.launcher
    return isinstance(launcher, _MultiProcessingLauncher) and launcher.is_interactive_compatible
