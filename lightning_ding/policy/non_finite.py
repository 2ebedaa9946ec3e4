"""Seeing that the loss or the gradient of an update is not finite, before the update is made.

Gradients are looked at when they are averaged, so under DDP all ranks decide alike. Where a norm is there anyway, as of
clipping, it is all that is looked at; it is infinite too where squares overflow.

On the CPU looking at a number costs nothing. Elsewhere it would wait for the device, so there the optimizer leaves out
a bad step by itself (``found_inf``, by which a ``GradScaler`` tells fused optimizers to), and the guard looks once a
round. What it looks at then lies some updates back; with ``"raise"`` all steps behind the bad one are left out too, so
that the weights are still those from before it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.learn_config import GradClip
from lightning_ding.policy.non_finite_dump import Update, dump_folder, write_dump

if TYPE_CHECKING:
    from lightning_ding.policy.base import Policy

logger = logging.getLogger(__name__)

OnNonFinite = Literal["raise", "warn", "skip_update"]
MODES: tuple[OnNonFinite, ...] = ("raise", "warn", "skip_update")
MAX_SKIPPED = 100  # steps of one optimizer in a row; one that never recovers would go on for ever
MAX_UNSEEN = 16  # updates on a device that nobody has looked at; each of them keeps its minibatch


class NonFiniteError(RuntimeError):
    """The loss or the gradient of an update is NaN or infinite.

    Args:
        message: Says all of this.
        update: Number of the update, from 0; what ``progress.train_iter`` was.
        loss: The loss, averaged over ranks.
        norm: The norm of the gradient, averaged over ranks; None if a device has forgotten it.
        parameter: The first parameter whose gradient is not finite; None if there is none or it is not known.
        folder: Where the dump lies, see :func:`load_dump`; None if there is none.
    """

    def __init__(
        self, message: str, update: int, loss: float, norm: float | None, parameter: str | None, folder: Path | None
    ) -> None:
        super().__init__(message)
        self.update = update
        self.loss = loss
        self.norm = norm
        self.parameter = parameter
        self.folder = folder


class _Unseen(NamedTuple):
    """An update on a device that nobody has looked at yet."""

    update: Update
    is_bad: Tensor
    """Not zero if something is not finite, a scalar."""
    numbers: Tensor
    """The loss, then the square of each gradient's norm if it is known, shape (1,) or (1 + P,)."""
    parameters: Sequence[str]
    """Names of the parameters, none or P."""
    learn: int
    """During which call of the learner."""


class NonFiniteGuard:
    """Raises, warns or leaves out an update whose loss or gradient is not finite, as the policy's config says.

    * ``"raise"``: the step is not made, what reproduces it is written, and a :class:`NonFiniteError` raised.
    * ``"skip_update"``: the step is not made, weights and optimizer state stay; everything else goes on, so
      ``train_iter``, schedules and targets move as ever. A prioritised buffer keeps the priorities it had, and the
      round's metrics are left out. After 100 steps of one optimizer in a row it raises.
    * ``"warn"``: the step is made.

    The latter two warn at the 1st, 10th, 100th, ... time, and write what reproduces the first.

    Args:
        policy: Whose updates it watches.
        mode: What to do.
    """

    def __init__(self, policy: Policy[Any], mode: OnNonFinite) -> None:
        require(mode in MODES, "on_non_finite", f"one of {', '.join(MODES)}", mode)
        self.mode = mode
        self.folder: Path | None = None
        """Where dumps go, each in a folder of its own; None means ``non_finite`` in the Trainer's ``log_dir`` during a
        fit, else in the working directory."""
        self.writes_dump = True
        self.skipped_updates = 0
        """Optimisation steps that were left out, of this policy in this process."""
        self.update: Update | None = None
        """What the update that goes on is made from."""
        self.is_clean = True
        """Whether nothing bad was seen since :meth:`begin`."""
        self._policy = policy
        self._bad = 0
        self._in_a_row: dict[int, int] = {}  # by optimizer
        self._learn = 0
        self._unseen: list[_Unseen] = []
        self._stopped: Tensor | None = None
        self._found = torch.zeros(())  # 0 as long as nothing is bad

    def state_dict(self) -> dict[str, Any]:
        """Return what it has counted; everything there is has to be looked at before, see :meth:`look`."""
        return {"skipped_updates": self.skipped_updates, "bad": self._bad, "in_a_row": dict(self._in_a_row)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting where another guard was."""
        self.skipped_updates, self._bad = state["skipped_updates"], state["bad"]
        self._in_a_row = dict(state["in_a_row"])

    def begin(self, batch: Any) -> None:
        """Note that learning from a batch begins."""
        self.update = Update(None, batch, 0, GradClip(), self._policy.progress.train_iter)
        self.is_clean = True
        self._learn += 1

    def end(self) -> None:
        """Note that learning from the batch is over, so that nothing keeps it."""
        self.update = None

    # ------------------------------------------------------------------ eager updates

    def allows(
        self, optimizer: Optimizer, index: int, loss: Tensor, gradients: list[Tensor], norm: Tensor | None
    ) -> bool:
        """Return whether the optimizer may step, or let it find out by itself.

        Args:
            optimizer: Which is to step.
            index: Its place among the policy's optimizers.
            loss: Averaged over ranks, a scalar.
            gradients: Averaged over ranks, not yet clipped.
            norm: Of all of them, a scalar, if it is known.

        Raises:
            NonFiniteError: If it may not, and the config says so.
        """
        if not self._looks_at_once(loss, optimizer):
            self._leave_it_to(optimizer, index, loss, gradients, norm)
            return True
        if norm is not None:
            is_good = math.isfinite(loss.item() + norm.item())
        else:
            is_good = math.isfinite(loss.item()) and _note_bad(gradients, self._found).item() == 0
        if is_good:
            if self._in_a_row:
                self._in_a_row.pop(index, None)
            return True
        self._found = torch.zeros(())
        size = float(get_total_norm(gradients)) if norm is None else norm.item()
        return self._meet(self._current(index), loss.item(), size, self._first_bad(optimizer), is_exact=True)

    def _looks_at_once(self, loss: Tensor, optimizer: Optimizer) -> bool:
        can_wait = self.mode == "warn" or getattr(optimizer, "_step_supports_amp_scaling", False)
        return loss.device.type == "cpu" or not can_wait

    def _leave_it_to(
        self, optimizer: Any, index: int, loss: Tensor, gradients: list[Tensor], norm: Tensor | None
    ) -> None:
        if len(self._unseen) >= MAX_UNSEEN:
            self.look()
        value = loss.detach().clone()
        found = self.stopped(loss.device) if self.mode == "raise" else torch.zeros((), device=loss.device)
        _note_bad([*gradients, value, *([] if norm is None else [norm])], found)
        self._unseen.append(_Unseen(self._current(index), found.clone(), value.reshape(1), (), self._learn))
        if self.mode != "warn":
            optimizer.found_inf = found

    def _current(self, index: int) -> Update:
        update = self.update
        if update is None:  # somebody calls ``optimise`` by himself
            return Update(None, {}, index, GradClip(), self._policy.progress.train_iter)
        return update if update.loss is not None else update._replace(optimizer=index)

    def _first_bad(self, optimizer: Optimizer) -> str | None:
        names = {id(parameter): name for name, parameter in self._policy.named_parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                    return names.get(id(parameter), "one that is not the policy's")
        return None

    # ------------------------------------------------------------------ compiled updates

    def stopped(self, device: torch.device) -> Tensor:
        """Return whether all further steps are left out until somebody looks, a scalar on the device, 0 or 1."""
        if self._stopped is None or self._stopped.device != device:
            self._stopped = torch.zeros((), device=device)
        return self._stopped

    def take(self, parameters: Sequence[str], numbers: Tensor, stopped: Tensor, optimizer: Optimizer) -> None:
        """See what compiled code found, which has left out bad steps by itself.

        Args:
            parameters: The names of P parameters.
            numbers: The loss, then the square of each gradient's norm, shape (1 + P,) or of U updates (U, 1 + P).
            stopped: What further steps start from.
            optimizer: Which has stepped.

        Raises:
            NonFiniteError: If the config says so.
        """
        looks_at_once = self._looks_at_once(numbers, optimizer)
        assert self.update is not None
        index = self.update.optimizer
        if looks_at_once and math.isfinite(numbers.sum().item()):
            if self._in_a_row:
                self._in_a_row.pop(index, None)
            return
        self._stopped = stopped
        rows = numbers if numbers.ndim == 2 else numbers[None]
        bad = ~rows.sum(1).isfinite()
        for row, checked in enumerate(rows):
            update = self.update
            if numbers.ndim == 2:
                update = update._replace(batch=nested.index(update.batch, row), number=update.number + row)
            self._unseen.append(_Unseen(update, bad[row], checked, parameters, self._learn))
        if looks_at_once or len(self._unseen) >= MAX_UNSEEN:
            self.look()

    # ------------------------------------------------------------------ looking

    def look(self) -> bool:
        """Look at what only the device knows so far, and return whether nothing is bad since :meth:`begin`.

        Raises:
            NonFiniteError: If something is, and the config says so.
        """
        if not self._unseen:
            return self.is_clean
        unseen, self._unseen = self._unseen, []
        self._stopped = None
        bad = torch.stack([one.is_bad for one in unseen]).tolist()
        was_clean = self.is_clean
        for place, (one, is_bad) in enumerate(zip(unseen, bad, strict=True)):
            if not is_bad:
                self._in_a_row.pop(one.update.optimizer, None)
                continue
            loss, *squares = one.numbers.tolist()
            names = [name for name, square in zip(one.parameters, squares, strict=True) if not math.isfinite(square)]
            norm = math.sqrt(sum(squares)) if squares else None
            is_exact = self.mode == "raise" or (self.mode == "skip_update" and place == len(unseen) - 1)
            self._meet(one.update, loss, norm, names[0] if names else None, is_exact)
            was_clean = was_clean and one.learn != self._learn
        self.is_clean = was_clean
        return self.is_clean

    # ------------------------------------------------------------------ what is bad

    def _meet(self, update: Update, loss: float, norm: float | None, parameter: str | None, is_exact: bool) -> bool:
        """Raise, or return whether the step is made."""
        self.is_clean = False
        self._bad += 1
        in_a_row = self._in_a_row[update.optimizer] = self._in_a_row.get(update.optimizer, 0) + 1
        gives_up = self.mode == "skip_update" and in_a_row >= MAX_SKIPPED
        raises = self.mode == "raise" or gives_up
        message = self._describe(update, loss, norm, parameter)
        if gives_up:
            message += f", and so were the {MAX_SKIPPED - 1} before it"
        message += "; the update was made" if self.mode == "warn" else "; the update was not made"
        folder = None
        if raises or self._bad == 1:
            folder, where = self._dump(update, message, is_exact)
            message += where
        if raises:
            raise NonFiniteError(message, update.number, loss, norm, parameter, folder)
        if str(self._bad).rstrip("0") == "1":
            logger.warning("%s (the next warning comes when it has happened %d times)", message, 10 * self._bad)
        if self.mode == "warn":
            return True
        self.skipped_updates += 1
        return False

    def _describe(self, update: Update, loss: float, norm: float | None, parameter: str | None) -> str:
        name = f" ({update.loss_name})" if update.loss_name else ""
        size = "not finite or not known" if norm is None else f"{norm:g}"
        what = f"update {update.number}: the loss{name} of optimizer {update.optimizer} is {loss:g}, the norm of its "
        what += f"gradient {size}"
        return what if parameter is None else f"{what}, first of all that of {parameter}"

    def _dump(self, update: Update, message: str, is_exact: bool) -> tuple[Path | None, str]:
        if not self.writes_dump:
            return None, ""
        folder = dump_folder(self._policy, self.folder, update.number)
        try:
            write_dump(folder, self._policy, update, message, is_exact)
        except Exception as error:  # a full disk, or whatever else, must not hide what happened
            return None, f"; what reproduces it could not be written: {error}"
        return folder, f"; what reproduces it lies in {folder}, see lightning_ding.policy.load_dump"


_ONE = torch.ones(())


def _note_bad(tensors: list[Tensor], found: Tensor) -> Tensor:
    """Set ``found`` to 1 if a tensor holds something that is not finite, and return it.

    This is the function of ``GradScaler``; it takes 10 us for the gradients of a small network where a norm takes 40
    (torch 2.13, CPU). It also multiplies the tensors by what they are to be scaled with, here 1.
    """
    one = _ONE if found.device.type == "cpu" else torch.ones((), device=found.device)
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, one)
    return found
