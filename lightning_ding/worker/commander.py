"""The commander: it asks a policy's command mode what the collector should do now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.policy.modes import CommandMode
from lightning_ding.progress import Progress


class BaseSerialCommander:
    """Turns the state of a run into keyword arguments of the collect mode's ``forward``, such as ``eps``.

    Nothing is remembered from one step to the next.

    Args:
        cfg: None or empty, a commander has no keys.
        learner: Its ``learn_info`` is part of the info, and its updates are ``learner_step``.
        collector: Its env steps are ``envstep``.
        evaluator: Its best mean return is ``best_return``.
        replay_buffer: Its size is ``buffer_count``.
        policy: A policy, or its command mode; can also be set later.
        progress: Counters of the run, over all ranks; they count instead of the learner's and the collector's own.

    Raises:
        ValueError: If ``cfg`` has a key.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any] | None = None,
        learner: Any = None,
        collector: Any = None,
        evaluator: Any = None,
        replay_buffer: Any = None,
        policy: CommandMode | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        if cfg:
            raise ValueError(f"a commander's config must be empty, got the keys {sorted(cfg)}")
        self.policy = policy
        self._learner = learner
        self._collector = collector
        self._evaluator = evaluator
        self._replay_buffer = replay_buffer
        self._progress = progress

    @property
    def policy(self) -> CommandMode | None:
        """The policy's command mode; None if none was given yet. A whole policy may be set too."""
        return self._policy

    @policy.setter
    def policy(self, policy: CommandMode | None) -> None:
        self._policy = getattr(policy, "command_mode", policy)

    def step(self) -> dict[str, Any]:
        """Return what the collect mode's ``forward`` should be told now.

        Raises:
            RuntimeError: If there is no policy.
        """
        if self.policy is None:
            raise RuntimeError("the commander needs a policy's command mode: pass policy, or set commander.policy")
        return self.policy.get_setting_collect(self.info())

    def info(self) -> dict[str, Any]:
        """Return what the policy is told: ``learner_step`` and ``envstep``, 0 if nobody counts them, and what is there.

        Returns:
            With a learner, its ``learn_info``; with an evaluator, ``best_return``; with a buffer, ``buffer_count``.
        """
        info: dict[str, Any] = {"learner_step": 0, "envstep": 0}
        if self._learner is not None:
            info |= self._learner.learn_info
        if self._collector is not None:
            info["envstep"] = self._collector.envstep
        if self._evaluator is not None:
            info["best_return"] = self._evaluator.best_return
        if self._replay_buffer is not None:
            info["buffer_count"] = self._replay_buffer.count()
        if self._progress is not None:
            info |= {"learner_step": self._progress.train_iter, "envstep": self._progress.env_step}
        return info
