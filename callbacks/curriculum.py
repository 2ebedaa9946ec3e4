"""Raise the level of the training envs when a metric is high enough."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, get_args

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.callbacks.metrics import write_metrics
from lightning_ding.config import require
from lightning_ding.utils.protocols import EnvAccess, run_data
from lightning_ding.worker import with_priority

logger = logging.getLogger(__name__)

Sets = Literal["attribute", "method", "reset_option"]
AFTER_METRICS = 200  # priority; MetricsLogger writes first, and a checkpoint is saved later in the same hook
SEEN = "progress/episode"  # the episodes of the run when the metrics of collecting were written
LEVEL = "curriculum/level"


class Curriculum(Callback):
    """Set the level of the training envs, and raise it when a metric reaches a threshold.

    The first level is set before the first episode. The metric is looked at whenever ``MetricsLogger`` has written it,
    which is every ``log_every_n_steps`` rounds of the Trainer and before each evaluation, and after each evaluation if
    it is one of ``eval/``. Metrics of collecting are means over the episodes since they were last written, so that the
    first of a level may contain episodes that began at the previous one. If the metric is high enough and at least
    ``min_episodes`` episodes have ended at the level, the next level is set, between two rounds. The level is logged as
    ``curriculum/level``, from 0.

    The level is a setting of ``datamodule.training_envs()``, see :class:`~lightning_ding.envs.EnvHandle`: new env
    processes, a resumed run and the collectors of a distributed run get it too. Evaluation envs are not changed; give
    them their own level with ``eval_env_kwargs``.

    A Trainer may have several with different names. Their levels are then logged as ``curriculum/<name>``. The Trainer
    refuses two with the same name.

    Args:
        name: Name of what sets the level in the env: an attribute, a method with one argument, or an option of
            ``reset``, by ``sets``.
        levels: Values of the levels, two or more: None, booleans, numbers, strings, or lists and dicts of these; no
            lists for an attribute.
        threshold: Value of the metric at which the next level follows: one number, or a list with one for each level
            but the last.
        metric: Name of the metric, in which higher is better.
        sets: ``"attribute"``, which is effective immediately; ``"method"``, as the method does it; or
            ``"reset_option"``, which is effective from the next episode of each env.
        min_episodes: Episodes over all ranks that must end at a level before the next one, >= 1.

    Raises:
        ValueError: If an argument is out of range. At the start of a fit: if the envs cannot have the level, or the
            metric is one of evaluations and the Trainer does not validate. After an evaluation: if there is no such
            metric.
        AttributeError: At the start of a fit, if the envs have no such attribute or method.
        RuntimeError: At the start of a fit, if the datamodule does not collect.

    Example:
        >>> curriculum = Curriculum("gravity", levels=[5.0, 10.0], threshold=400.0)
    """

    def __init__(
        self,
        name: str,
        levels: Sequence[Any],
        threshold: float | Sequence[float],
        metric: str = "collect/return_mean",
        sets: Sets = "attribute",
        min_episodes: int = 20,
    ) -> None:
        require(len(levels) >= 2 and not isinstance(levels, str), "levels", "a list of two or more values", levels)
        has_list = sets == "attribute" and any(isinstance(one, (list, tuple)) for one in levels)
        allowed = 'without lists for an attribute, of which each env would get an item; use sets="method"'
        require(not has_list, "levels", allowed, levels)
        require(sets in get_args(Sets), "sets", f"one of {get_args(Sets)}", sets)
        require(min_episodes >= 1, "min_episodes", ">= 1", min_episodes)
        steps = len(levels) - 1
        thresholds = [float(threshold)] * steps if isinstance(threshold, (int, float)) else list(map(float, threshold))
        require(len(thresholds) == steps, "threshold", f"one number, or {steps} for {len(levels)} levels", threshold)
        self.name, self.sets, self.metric = name, sets, metric
        self.levels, self.thresholds, self.min_episodes = list(levels), thresholds, min_episodes
        self.level = 0
        """Number of the current level, from 0."""
        self._is_resumed = False
        self._logged_as = LEVEL
        self._first = 0  # episodes of the run at the start of this fit
        self._since = 0  # episodes of the run when the level was set
        with_priority(self, AFTER_METRICS)

    @property
    @override
    def state_key(self) -> str:
        """The key of the state in checkpoints, a separate one for each name."""
        return self._generate_state_key(name=self.name)

    @property
    def _legacy_state_key(self) -> Any:
        """The key that Lightning reads if there is no state under the other one: that of all of this class before."""
        return type(self).__qualname__

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Set the current level, which is that of the checkpoint in a resumed run."""
        of_evaluation = self.metric.startswith("eval/")
        allowed = "one of collecting with a Trainer whose validation is off"
        require(trainer.enable_validation or not of_evaluation, "metric", allowed, self.metric)
        self._first = pl_module.progress.episode
        all_of_run: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        is_alone = sum(isinstance(one, Curriculum) for one in all_of_run) == 1
        self._logged_as = LEVEL if is_alone else f"curriculum/{self.name}"
        self._set(trainer)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Log the level of a new run."""
        if not self._is_resumed:  # otherwise the level has been logged
            self._log(trainer, pl_module)
        self._is_resumed = False

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Raise the level if the metrics were just written and are high enough."""
        if not self.metric.startswith("eval/"):
            self._look(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Raise the level if the metric is high enough."""
        if trainer.state.fn != "fit":
            return
        known, progress = trainer.callback_metrics, pl_module.progress
        if progress.episode > self._first and progress.train_iter > 0:
            require(self.metric in known, "metric", f"one of {sorted(known)}", self.metric)
        self._look(trainer, pl_module)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the level and since when it is set."""
        return {"level": self.level, "since": self._since}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the level that ``state_dict`` returned.

        Raises:
            ValueError: If there are fewer levels now.
        """
        allowed = f"at least {state_dict['level'] + 1} levels, as the run has reached the last of these"
        require(state_dict["level"] < len(self.levels), "levels", allowed, self.levels)
        self.level, self._since, self._is_resumed = state_dict["level"], state_dict["since"], True

    def _look(self, trainer: Trainer, pl_module: Any) -> None:
        if self.level == len(self.thresholds):
            return
        metrics, of_evaluation = trainer.callback_metrics, self.metric.startswith("eval/")
        # a value from before the last change of the level was written at no later episode than that
        episode = pl_module.progress.episode if of_evaluation else int(metrics.get(SEEN, 0))
        if self.metric not in metrics or episode - self._since < self.min_episodes:
            return
        value, threshold = float(metrics[self.metric]), self.thresholds[self.level]
        if not value >= threshold:
            return
        self.level += 1
        self._since = pl_module.progress.episode
        self._set(trainer)
        self._log(trainer, pl_module)
        if trainer.is_global_zero:
            text = "level %d of %d, %s=%r, at env step %d: %s %.4g reached %.4g"
            reached = (self.metric, value, threshold)
            number = (self.level, len(self.levels) - 1, self.name, self.levels[self.level], pl_module.progress.env_step)
            logger.info(text, *number, *reached)

    def _set(self, trainer: Trainer) -> None:
        """Set the current level in the training envs."""
        envs: EnvAccess = run_data(trainer).training_envs()
        value = self.levels[self.level]
        if self.sets == "attribute":
            envs.set_attr(self.name, value)
        elif self.sets == "method":
            envs.configure(self.name, value)
        else:
            envs.set_reset_options({self.name: value})

    def _log(self, trainer: Trainer, pl_module: Any) -> None:
        write_metrics(trainer, {self._logged_as: float(self.level)}, pl_module.progress.position)
