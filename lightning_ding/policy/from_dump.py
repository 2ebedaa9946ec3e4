"""Repeating an update whose loss or gradient was not finite, from the files that it wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_ding.config import require
from lightning_ding.policy.base.config import GradClip
from lightning_ding.policy.base.dump import read_dump
from lightning_ding.policy.base.policy import Policy
from lightning_ding.policy.base.saved_state import config_of_file
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True)
class Dump:
    """An update that can be made again."""

    policy: Policy[Any]
    """The policy as it was before the update. It raises, makes its updates eagerly, and writes no dump."""
    batch: Any
    """The argument of the loss, on the CPU."""
    loss_name: str | None
    """The method of the policy that is the loss; None if the batch is the learner's data, normalised."""
    index: int
    """Index of the optimizer that stepped."""
    clip: GradClip
    """How the gradient was clipped."""
    message: str
    """Message of the error or the warning."""
    is_exact: bool
    """Whether the weights are those from before the update. With ``warn`` and ``skip_update`` on a GPU or in compiled
    code, they may be later ones, because the check comes after further updates."""

    def repeat(self) -> dict[str, Any]:
        """Make the update again, and return its report if all values are finite.

        Under DDP this is the update of one rank only; it succeeds if that rank's minibatch was not the cause.

        Raises:
            NonFiniteError: With the numbers of the first time.
            ValueError: If the batch is unknown because ``Updater.step`` was called directly.
        """
        require(bool(self.batch), "batch", "that of a learn_mode.forward or of a minimise", self.batch)
        if self.loss_name is None:
            output = self.policy._learn(self.batch, is_raw=False)
            self.policy.updater.guard.look()
            return output
        loss = getattr(self.policy, self.loss_name)
        return self.policy.updater.minimise(loss, self.batch, self.index, self.clip)


def load_dump(
    folder: str | Path, policy_class: type[Policy[Any]] | None = None, model: nn.Module | None = None
) -> Dump:
    """Return an update whose loss or gradient was not finite, ready to be made again.

    Args:
        folder: Dump of one rank, such as ``non_finite/update_12_rank_0``.
        policy_class: Class of the policy; needed if it is not registered.
        model: Network of the policy; needed if its network was passed to the constructor.

    Raises:
        ValueError: If the policy is not registered and ``policy_class`` is None.
        NotRegisteredError: If the config in the dump names a class that is not registered.
        RuntimeError: If the policy was given its network and ``model`` is None.
        OSError: If the files cannot be read.

    Example:
        >>> import tempfile
        >>> from lightning_ding.policy import DQNPolicy, NonFiniteError
        >>> policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.updater.guard.folder = tempfile.mkdtemp()
        >>> batch = {"obs": torch.zeros(2, 4), "next_obs": torch.zeros(2, 4), "action": torch.tensor([0, 1])}
        >>> batch |= {"reward": torch.tensor([1.0, float("nan")]), "terminated": torch.tensor([False, False])}
        >>> try:
        ...     policy.learn_mode.forward(batch)
        ... except NonFiniteError as error:
        ...     dump = load_dump(error.folder)
        >>> dump.batch["reward"]
        tensor([1., nan])
    """
    state, batch = read_dump(Path(folder))
    if policy_class is None and state["type"] is None:
        raise ValueError(f"policy_class must be given: the policy of {folder}, a {state['class']}, is not registered")
    made_of = policy_class or POLICY_REGISTRY.get(state["type"])
    with config_of_file():
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
    policy.updater.guard.writes_dump = False
    of_update = {name: state[name] for name in ("loss_name", "index", "message", "is_exact")}
    return Dump(policy, batch, clip=GradClip(*state["clip"]), **of_update)
