"""Hooks of a learner that send weights and progress with the functions of its comm learner, as in DI-engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.config import require
from lightning_ding.worker import LearnerHook
from lightning_ding.worker.learner.hooks import DEFAULT_PRIORITY, Position


class SendPolicyHook(LearnerHook):
    """Calls ``engine.send_policy`` with ``model``, the weights by name, and ``iter``, the number of updates.

    Only rank zero sends.

    Args:
        name: Name of the hook.
        priority: Order among the hooks of a position, lower first; >= 0.
        position: Position in the run at which it is called.
        ext_args: ``send_policy_freq``, updates between two calls, >= 1; 1 by default.
    """

    def __init__(
        self,
        name: str = "send_policy",
        priority: int = DEFAULT_PRIORITY,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position, ext_args)
        self.every = int(self.ext_args.get("send_policy_freq", 1))
        require(self.every >= 1, "ext_args.send_policy_freq", "a number of updates >= 1", self.every)

    def __call__(self, engine: Any) -> None:
        """Send the weights if they are due."""
        is_due = self.position != "after_iter" or engine.crossed(self.every)
        if engine.rank == 0 and is_due:
            engine.send_policy({"model": engine.policy.state_dict()["model"], "iter": engine.train_iter})


class SendLearnInfoHook(LearnerHook):
    """Calls ``engine.send_learn_info`` with ``engine.learn_info``: after each iteration, and at the end of the run.

    Args:
        name: Name of the hook.
        priority: Order among the hooks of a position, lower first; >= 0.
        position: Position in the run at which it is called.
        ext_args: ``freq``, updates between two lines for debugging in Python's logging, >= 1; 1 by default.
    """

    def __init__(
        self,
        name: str = "send_learn_info",
        priority: int = DEFAULT_PRIORITY,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position, ext_args)
        self.every = int(self.ext_args.get("freq", 1))
        require(self.every >= 1, "ext_args.freq", "a number of updates >= 1", self.every)

    def __call__(self, engine: Any) -> None:
        """Send the info."""
        engine.send_learn_info(engine.learn_info)
        if engine.crossed(self.every):
            engine.debug(f"sent the learn info of update {engine.train_iter}")


def hooks_of_comm_learner(send_policy_freq: int = 1) -> list[LearnerHook]:
    """Return the hooks that a comm learner adds to a plain learner."""
    return [
        SendPolicyHook(position="before_run"),
        SendPolicyHook(position="after_iter", ext_args={"send_policy_freq": send_policy_freq}),
        SendLearnInfoHook(position="after_iter"),
        SendLearnInfoHook(position="after_run"),
    ]
