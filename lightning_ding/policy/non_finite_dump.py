"""What reproduces an update whose loss or gradient was not finite: writing it, and making the update again."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lightning_ding.config import require, to_dict
from lightning_ding.policy.learn_config import GradClip
from lightning_ding.registry import POLICY_REGISTRY

if TYPE_CHECKING:
    from lightning_ding.policy.base import Policy


class Update(NamedTuple):
    """What an update is made from."""

    loss: Callable[[Any], Any] | None
    """The loss; None if all that is known is what the learner got."""
    batch: Any
    """What the loss, or the learner, got."""
    optimizer: int
    """Which optimizer steps."""
    clip: GradClip
    number: int
    """Updates made before it."""

    @property
    def loss_name(self) -> str | None:
        """Name of the loss if it is a method of the policy."""
        return getattr(self.loss, "__name__", None) if hasattr(self.loss, "__self__") else None


@dataclass(frozen=True)
class Dump:
    """An update that can be made again."""

    policy: Policy[Any]
    """The policy as it was before the update. It raises, makes its updates eagerly, and writes no dump."""
    batch: Any
    """What the loss got, on the CPU."""
    loss_name: str | None
    """The method of the policy that is the loss; None if the batch is what the learner got, normalised."""
    index: int
    """Which optimizer stepped."""
    clip: GradClip
    """How the gradient was clipped."""
    message: str
    """What was raised or warned about."""
    is_exact: bool
    """Whether the weights are those from before the update. They are later ones where updates behind it were made
    before anybody could look: with ``warn`` and ``skip_update`` on a GPU or in compiled code."""

    def repeat(self) -> dict[str, Any]:
        """Make the update again, and return what it reports if all is finite.

        Under DDP this is the update of one rank alone; that of a rank whose own minibatch was fine is fine.

        Raises:
            NonFiniteError: With the numbers of the first time.
            ValueError: If nobody knows what the update was made from, as ``optimise`` was called by hand.
        """
        require(bool(self.batch), "batch", "that of a learn_mode.forward or of a minimise", self.batch)
        if self.loss_name is None:
            output = self.policy._learn(self.batch, is_raw=False)
            self.policy.guard.look()
            return output
        loss = getattr(self.policy, self.loss_name)
        return self.policy.minimise(loss, self.batch, self.index, self.clip)


def load_dump(
    folder: str | Path, policy_class: type[Policy[Any]] | None = None, model: nn.Module | None = None
) -> Dump:
    """Return an update whose loss or gradient was not finite, ready to be made again.

    Args:
        folder: Of one rank, such as ``non_finite/update_12_rank_0``.
        policy_class: Needed for a policy that is not registered.
        model: Needed for a policy that was given its network.

    Raises:
        ValueError: If the policy is not registered and ``policy_class`` is None.
        RuntimeError: If the policy was given its network and ``model`` is None.
        OSError: If the files cannot be read.

    Example:
        >>> import tempfile
        >>> from lightning_ding.policy import DQNPolicy, NonFiniteError
        >>> policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.guard.folder = tempfile.mkdtemp()
        >>> batch = {"obs": torch.zeros(2, 4), "next_obs": torch.zeros(2, 4), "action": torch.tensor([0, 1])}
        >>> batch |= {"reward": torch.tensor([1.0, float("nan")]), "terminated": torch.tensor([False, False])}
        >>> try:
        ...     policy.learn_mode.forward(batch)
        ... except NonFiniteError as error:
        ...     dump = load_dump(error.folder)
        >>> dump.batch["reward"]
        tensor([1., nan])
    """
    folder = Path(folder)
    state = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
    if policy_class is None and state["type"] is None:
        raise ValueError(f"policy_class must be given: the policy of {folder}, a {state['class']}, is not registered")
    made_of = policy_class or POLICY_REGISTRY.get(state["type"])
    policy = made_of({**state["config"], "compile": False, "on_non_finite": "raise"}, model=model)
    policy.learn_mode.load_state_dict(state["learn"])
    policy.progress.load_state_dict(state["progress"])
    policy.progress.budget = state["budget"]
    policy.rng.bit_generator.state = state["rng"]["exploration"]
    torch.set_rng_state(state["rng"]["torch"])
    buffers = dict(policy.named_buffers())
    for name in buffers.keys() & state["buffers"].keys():
        buffers[name].copy_(state["buffers"][name])
    for name, module in policy.named_modules():
        module.training = name not in state["in_evaluation"]
    policy.guard.writes_dump = False
    batch = _nest(load_file(folder / "batch.safetensors"))
    of_update = {name: state[name] for name in ("loss_name", "index", "message", "is_exact")}
    return Dump(policy, batch, clip=GradClip(*state["clip"]), **of_update)


def dump_folder(policy: Policy[Any], root: str | Path | None, number: int) -> Path:
    """Return the folder of an update on this rank; during a fit, all ranks have to ask."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    trainer = policy._fitting_trainer()
    if root is None and trainer is not None:
        root = Path(trainer.log_dir or trainer.default_root_dir) / "non_finite"
    return Path(root or "non_finite").absolute() / f"update_{number}_rank_{rank}"


def write_dump(folder: Path, policy: Policy[Any], update: Update, message: str, is_exact: bool) -> None:
    """Write what reproduces an update: tensors and builtins alone.

    Raises:
        OSError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = update.loss_name
    is_own = name is not None and getattr(policy, name, None) == update.loss
    state = {
        "message": message,
        "is_exact": is_exact,
        "type": POLICY_REGISTRY.name_of(type(policy)),
        "class": f"{type(policy).__module__}.{type(policy).__qualname__}",
        "config": to_dict(policy.config),
        "learn": policy.learn_mode.state_dict(),
        "buffers": dict(policy.named_buffers()),  # those that no checkpoint has, such as a noise, too
        "in_evaluation": [name for name, module in policy.named_modules() if not module.training],
        "progress": policy.progress.state_dict() | {"train_iter": update.number} | policy.scheduled_at(),
        "budget": policy.progress.budget,
        "loss_name": name if is_own else None,
        "index": update.optimizer,
        "clip": tuple(update.clip),
        "rng": {"exploration": policy.rng.bit_generator.state, "torch": torch.get_rng_state()},
        "versions": {
            "lightning_ding": metadata.version("lightning_ding"),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    torch.save(state, folder / "state.pt")
    save_file({key: _own(leaf) for key, leaf in _flat(update.batch)}, folder / "batch.safetensors")
    (folder / "message.txt").write_text(f"{message}\n")


def _own(leaf: Any) -> Tensor:
    """Return a copy with memory of its own, as safetensors takes no views."""
    return torch.as_tensor(leaf).detach().cpu().clone(memory_format=torch.contiguous_format)


def _flat(data: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if not isinstance(data, dict):
        yield path, data
        return
    for name, below in data.items():
        yield from _flat(below, f"{path}/{name}" if path else str(name))


def _nest(tensors: dict[str, Tensor]) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for path, tensor in tensors.items():
        *names, last = path.split("/")
        place = batch
        for name in names:
            place = place.setdefault(name, {})
        place[last] = tensor
    return batch
