"""Middleware that update a policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_ding.config import require
from lightning_ding.di_engine.framework.offline import Drawn
from lightning_ding.di_engine.framework.replay import her_data_enhancer, offpolicy_data_fetcher, reward_estimator
from lightning_ding.utils.attributes import policy_of
from lightning_ding.worker.arguments import learn_mode_of
from lightning_ding.worker.learner.learner import on_device

logger = logging.getLogger(__name__)
Middleware = Callable[[Any], Any]


def _update(policy: Any, ctx: Any) -> list[dict[str, Any]]:
    """Call the learn mode with ``train_data``, count the updates, and return the reports."""
    found = policy_of(policy)
    data = ctx.train_data.for_policy(found) if isinstance(ctx.train_data, Drawn) else ctx.train_data
    needs_weights = getattr(getattr(found, "config", None), "priority_IS_weight", False)
    has_weights = "IS" in (data if isinstance(data, Mapping) else data[0])
    allowed = "False, or a buffer that uses PriorityExperienceReplay"
    require(has_weights or not needs_weights, "policy.priority_IS_weight", allowed, needs_weights)
    progress = found.progress
    if progress is not None and ctx.has_attr("env_step"):
        progress.env_step = ctx.env_step
    before = None if progress is None else progress.train_iter
    output = policy.forward(on_device(data, found.device or torch.device("cpu")))
    reports = output if isinstance(output, list) else [output]
    ctx.train_iter += len(reports) if progress is None else progress.train_iter - before
    return reports


def _report(ctx: Any, reports: list[dict[str, Any]]) -> None:
    loss = sum(float(one.get("total_loss", float("nan"))) for one in reports) / len(reports)
    step = f", env step {ctx.env_step}" if ctx.has_attr("env_step") else ""
    logger.info(f"update {ctx.train_iter}{step}: loss {loss:.3f}")


def trainer(cfg: Any, policy: Any, log_freq: int = 100) -> Middleware:
    """Return a middleware that makes an update with ``train_data`` and sets ``train_output`` to its report.

    Args:
        cfg: Config of the run, which is not read.
        policy: Learn mode of a policy.
        log_freq: Updates between two lines in the log, >= 1.
    """
    require(log_freq >= 1, "log_freq", ">= 1", log_freq)
    mode, shown = learn_mode_of(policy), -log_freq

    def train(ctx: Any) -> None:
        nonlocal shown
        if ctx.train_data is None:
            return
        reports = _update(mode, ctx)
        ctx.train_output = reports[-1]
        if ctx.train_iter - shown >= log_freq:
            shown = ctx.train_iter
            _report(ctx, reports)

    return train


def multistep_trainer(policy: Any, log_freq: int = 100) -> Middleware:
    """Return a middleware that learns from ``train_data`` in several updates and sets ``train_output`` to a list.

    A policy that learns from rollouts reports its last update; ``train_iter`` counts its minibatches.

    Args:
        policy: Learn mode of a policy.
        log_freq: Updates between two lines in the log, >= 1.
    """
    train_once = trainer(None, policy, log_freq)

    def train(ctx: Any) -> None:
        if ctx.train_data is not None:
            train_once(ctx)
            ctx.train_output = [ctx.train_output]

    return train


class _Learner:
    """Makes ``policy.learn.update_per_collect`` updates, each with new data."""

    def __init__(self, cfg: Any, fetch: Middleware, train: Middleware, estimate: Middleware | None = None) -> None:
        self.cfg, self._fetch, self._train, self._estimate = cfg, fetch, train, estimate

    def __call__(self, ctx: Any) -> None:
        """Set ``train_output`` to the list of the reports, which is empty while there are too few data."""
        reports = []
        for _ in range(int(self.cfg.policy.learn.update_per_collect)):
            fetching = self._fetch(ctx)
            if fetching is not None:
                next(fetching, None)
            if ctx.train_data is None:
                break
            if self._estimate is not None:
                self._estimate(ctx)
            self._train(ctx)
            reports.append(ctx.train_output)
            if fetching is not None:
                next(fetching, None)
        ctx.train_output = reports or None


class OffPolicyLearner(_Learner):
    """Draws transitions and makes ``policy.learn.update_per_collect`` updates.

    Args:
        cfg: Config of the run.
        policy: Learn mode of a policy.
        buffer_: A buffer, or several, as for :func:`offpolicy_data_fetcher`.
        reward_model: Model that replaces the rewards of each minibatch.
        log_freq: Updates between two lines in the log, >= 1.
    """

    def __init__(self, cfg: Any, policy: Any, buffer_: Any, reward_model: Any = None, log_freq: int = 100) -> None:
        estimate = None if reward_model is None else reward_estimator(cfg, reward_model)
        super().__init__(cfg, offpolicy_data_fetcher(cfg, buffer_), trainer(cfg, policy, log_freq), estimate)


class HERLearner(_Learner):
    """Draws episodes, gives them other goals, and makes ``policy.learn.update_per_collect`` updates.

    Args:
        cfg: Config of the run.
        policy: Learn mode of a policy.
        buffer_: A ``DequeBuffer`` of episodes.
        her_reward_model: A :class:`~lightning_ding.di_engine.reward_model.HerRewardModel`.
    """

    def __init__(self, cfg: Any, policy: Any, buffer_: Any, her_reward_model: Any) -> None:
        super().__init__(cfg, her_data_enhancer(cfg, buffer_, her_reward_model), trainer(cfg, policy))
