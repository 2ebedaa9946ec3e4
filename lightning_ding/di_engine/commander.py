"""The commander, which gets the settings of the collector from a policy's command mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from easydict import EasyDict

from lightning_ding.utils.modes import CommandMode
from lightning_ding.utils.progress import Progress
from lightning_ding.worker.arguments import command_mode_of


class BaseSerialCommander:
    """Turns the state of a run into keyword arguments of the collect mode's ``forward``, such as ``eps``.

    A commander keeps no state from one step to the next.

    Args:
        cfg: None, an empty mapping or ``default_config()``, because a commander has no keys.
        learner: Learner whose ``learn_info`` is part of the info, and whose updates are ``learner_step``.
        collector: Collector whose env steps are ``envstep``.
        evaluator: Evaluator whose best mean return is ``best_return``.
        replay_buffer: Buffer whose size is ``buffer_count``.
        policy: A policy, or its command mode; can also be set later.
        progress: Counters of the run, over all ranks, that replace those of learner and collector.

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
        keys = sorted(set(cfg or ()) - {"cfg_type"})
        if keys:
            raise ValueError(f"a commander's config must be empty, got the keys {keys}")
        self.policy = policy
        self._learner = learner
        self._collector = collector
        self._evaluator = evaluator
        self._replay_buffer = replay_buffer
        self._progress = progress

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the default config as an ``EasyDict``, which has no keys but ``cfg_type``."""
        return EasyDict(cfg_type=f"{cls.__name__}Dict")

    @property
    def policy(self) -> CommandMode | None:
        """The policy's command mode; None if none was given yet. A whole policy may be assigned too."""
        return self._policy

    @policy.setter
    def policy(self, policy: CommandMode | None) -> None:
        self._policy = None if policy is None else command_mode_of(policy)

    def step(self) -> dict[str, Any]:
        """Return the current keyword arguments for the collect mode's ``forward``.

        Raises:
            RuntimeError: If there is no policy.
        """
        if self.policy is None:
            raise RuntimeError("the commander needs a policy's command mode: pass policy, or set commander.policy")
        return self.policy.get_setting_collect(self.info())

    def info(self) -> dict[str, Any]:
        """Return the state of the run for the policy.

        Returns:
            ``learner_step`` and ``envstep``, 0 without a counter for them; with a learner, its ``learn_info``; with an
            evaluator, ``best_return``, None if it has none; with a buffer, ``buffer_count``.
        """
        info: dict[str, Any] = {"learner_step": 0, "envstep": 0}
        if self._learner is not None:
            info |= self._learner.learn_info
        if self._collector is not None:
            info["envstep"] = self._collector.envstep
        if self._evaluator is not None:
            info["best_return"] = getattr(self._evaluator, "best_return", None)
        if self._replay_buffer is not None:
            info["buffer_count"] = self._replay_buffer.count()
        if self._progress is not None:
            info |= {"learner_step": self._progress.train_iter, "envstep": self._progress.env_step}
        return info
