"""Checking that the loss and the gradient of an update are finite, before the update is made.

Gradients are checked after they are averaged, so under DDP all ranks decide alike. If clipping computes their norm,
only the norm is checked; it is infinite as well if squares overflow.

On the CPU, reading a number costs nothing. On other devices it would wait for the device, so there the optimizer skips
a bad step by itself (``found_inf``, which a ``GradScaler`` sets for fused optimizers), and the guard reads the results
once a round. They are some updates old then; with ``"raise"``, all steps after the bad one are skipped too, so the
weights are still those from before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lightning_ding.config import require
from lightning_ding.policy.base.config import NO_CLIP, GradClip
from lightning_ding.utils.private_api import can_skip_on_device, note_non_finite

OnNonFinite = Literal["raise", "warn", "skip_update"]
MODES: tuple[OnNonFinite, ...] = ("raise", "warn", "skip_update")
READ_AT_ONCE = ("cpu",)  # types of devices from which reading a number costs nothing
MAX_UNSEEN = 16  # unchecked updates on a device; each of them keeps its minibatch


class Update(NamedTuple):
    """The inputs of an update."""

    loss: Callable[[Any], Any] | None
    """The loss; None if only the learner's data are known."""
    batch: Any
    """The argument of the loss, or the learner's data."""
    optimizer: int
    """Index of the optimizer that steps."""
    clip: GradClip
    number: int
    """Updates made before it."""

    @property
    def loss_name(self) -> str | None:
        """Name of the loss if it is a method of the policy."""
        return getattr(self.loss, "__name__", None) if hasattr(self.loss, "__self__") else None


class _Unseen(NamedTuple):
    """An update on a device that has not been checked yet."""

    update: Update
    is_bad: Tensor
    """Nonzero if a value is not finite, a scalar."""
    numbers: Tensor
    """The loss, then the square of each gradient's norm if it is known, shape (1,) or (1 + P,)."""
    parameters: Sequence[str]
    """Names of the parameters, none or P."""
    learn: int
    """Number of the learner's call that made the update."""


class NonFiniteGuard:
    """Raises, warns or skips an update whose loss or gradient is not finite, according to the policy's config.

    * ``"raise"``: the optimizer step is skipped, files that reproduce it are written, and :class:`NonFiniteError` is
      raised.
    * ``"skip_update"``: the optimizer step is skipped, so weights and optimizer state do not change. ``train_iter``,
      schedules and target networks move as usual. A prioritised buffer keeps its priorities, and the round's metrics
      are not logged. After 100 skipped steps of one optimizer in a row it raises.
    * ``"warn"``: the optimizer step is taken.

    Each of these is for one loss and its optimizer: steps with other losses of the same minibatch that were finite and
    come before it have been taken, and with ``"skip_update"`` those after it are taken too.

    The latter two warn at the 1st, 10th, 100th, ... time, and write files that reproduce the first.

    Args:
        policy: The policy whose updates are checked.
        mode: ``"raise"``, ``"warn"`` or ``"skip_update"``.
    """

    def __init__(self, policy: Any, mode: OnNonFinite) -> None:
        require(mode in MODES, "on_non_finite", f"one of {', '.join(MODES)}", mode)
        self.mode = mode
        self.folder: Path | None = None
        """Folder of the dumps, each in a subfolder; None means ``non_finite`` in the Trainer's ``log_dir`` during a
        fit, else in the working directory."""
        self.writes_dump = True
        self.skipped_updates = 0
        """Number of skipped optimisation steps of this policy in this process."""
        self.update: Update | None = None
        """The inputs of the current update."""
        self.is_clean = True
        """Whether all values were finite since :meth:`begin`."""
        self.policy = policy
        """The policy whose updates are checked."""
        self.bad = 0
        """Number of non-finite updates."""
        self.in_a_row: dict[int, int] = {}
        """Number of non-finite updates since the last finite one, by optimizer."""
        self._learn = 0
        self._unseen: list[_Unseen] = []
        self._stopped: Tensor | None = None
        self._found = torch.zeros((), dtype=torch.float32)  # 0 as long as nothing is bad; optimizers need 32 bits

    def state_dict(self) -> dict[str, Any]:
        """Return the counters; call :meth:`look` first."""
        return {"skipped_updates": self.skipped_updates, "bad": self.bad, "in_a_row": dict(self.in_a_row)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters of another guard."""
        self.skipped_updates, self.bad = state["skipped_updates"], state["bad"]
        self.in_a_row = dict(state["in_a_row"])

    def begin(self, batch: Any) -> None:
        """Start checking the updates on a batch."""
        self.update = Update(None, batch, 0, NO_CLIP, self.policy.progress.train_iter)
        self.is_clean = True
        self._learn += 1

    def end(self) -> None:
        """Release the batch after learning from it."""
        self.update = None

    # ------------------------------------------------------------------ eager updates

    def allows(
        self, optimizer: Optimizer, index: int, loss: Tensor, gradients: list[Tensor], norm: Tensor | None
    ) -> bool:
        """Return whether the optimizer may step, or let the optimizer decide on the device.

        Args:
            optimizer: The optimizer that is to step.
            index: Index of the optimizer among those of the policy.
            loss: Averaged over ranks, a scalar.
            gradients: Averaged over ranks, not yet clipped.
            norm: The norm of all gradients together, a scalar, if it is known.

        Raises:
            NonFiniteError: If it may not, and the mode is "raise".
        """
        can_wait = self.mode == "warn" or can_skip_on_device(optimizer)
        if loss.device.type not in READ_AT_ONCE and can_wait:
            self._leave_it_to(optimizer, index, loss, gradients, norm)
            return True
        if norm is not None:
            is_good = math.isfinite(loss.item() + norm.item())
        else:
            if self._found.device != loss.device:
                self._found = torch.zeros((), dtype=torch.float32, device=loss.device)
            is_good = math.isfinite(loss.item()) and note_non_finite(gradients, self._found).item() == 0
        if is_good:
            self.in_a_row.pop(index, None)
            return True
        self._found.zero_()
        from lightning_ding.policy.base.dump import first_bad

        size = float(get_total_norm(gradients)) if norm is None else norm.item()
        return self._meet(self._current(index), loss.item(), size, first_bad(self.policy, optimizer), is_exact=True)

    def _leave_it_to(
        self, optimizer: Any, index: int, loss: Tensor, gradients: list[Tensor], norm: Tensor | None
    ) -> None:
        if len(self._unseen) >= MAX_UNSEEN:
            self.look()
        value = loss.detach().clone()
        found = torch.zeros((), dtype=torch.float32, device=loss.device)
        if self.mode == "raise":  # all further steps are skipped until ``look``
            if self._stopped is None or self._stopped.device != loss.device:
                self._stopped = found
            found = self._stopped
        note_non_finite([*gradients, value, *([] if norm is None else [norm])], found)
        self._unseen.append(_Unseen(self._current(index), found.clone(), value.reshape(1), (), self._learn))
        if self.mode != "warn":
            optimizer.found_inf = found

    def _current(self, index: int) -> Update:
        update = self.update
        if update is None:  # ``Updater.step`` was called directly
            return Update(None, {}, index, NO_CLIP, self.policy.progress.train_iter)
        return update if update.loss is not None else update._replace(optimizer=index)

    # ------------------------------------------------------------------ looking

    def look(self) -> bool:
        """Read the results from the device, and return whether all values were finite since :meth:`begin`.

        Raises:
            NonFiniteError: If a value is not finite, and the mode is "raise".
        """
        if not self._unseen:
            return self.is_clean
        unseen, self._unseen = self._unseen, []
        self._stopped = None
        bad = torch.stack([one.is_bad for one in unseen]).tolist()
        was_clean = self.is_clean
        for place, (one, is_bad) in enumerate(zip(unseen, bad, strict=True)):
            if not is_bad:
                self.in_a_row.pop(one.update.optimizer, None)
                continue
            loss, *squares = one.numbers.tolist()
            names = [name for name, square in zip(one.parameters, squares, strict=True) if not math.isfinite(square)]
            norm = math.sqrt(sum(squares)) if squares else None
            is_exact = self.mode == "raise" or (self.mode == "skip_update" and place == len(unseen) - 1)
            self._meet(one.update, loss, norm, names[0] if names else None, is_exact)
            was_clean = was_clean and one.learn != self._learn
        self.is_clean = was_clean
        return self.is_clean

    def _meet(self, update: Update, loss: float, norm: float | None, parameter: str | None, is_exact: bool) -> bool:
        """Count a non-finite update, and raise, or return whether to take the optimizer step."""
        from lightning_ding.policy.base.dump import report

        self.is_clean = False
        self.bad += 1
        self.in_a_row[update.optimizer] = self.in_a_row.get(update.optimizer, 0) + 1
        report(self, update, loss, norm, parameter, is_exact)
        self.skipped_updates += self.mode != "warn"
        return self.mode == "warn"
