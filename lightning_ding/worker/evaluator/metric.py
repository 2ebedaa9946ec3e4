"""Evaluating on a data set, as in supervised learning.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch.utils.data import DistributedSampler, RandomSampler
from torchmetrics import Metric, MetricCollection

from lightning_ding import nested
from lightning_ding.config import ConfigLike
from lightning_ding.policy.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.evaluator.base import ISerialEvaluator, SaveFunction
from lightning_ding.worker.evaluator.metric_protocol import IMetric, MeanMeter, TorchMeter, Values
from lightning_ding.worker.evaluator.sharding import rank_and_world_size, sum_over_ranks
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker_config import EvaluatorConfig


@SERIAL_EVALUATOR_REGISTRY.register("metric")
class MetricSerialEvaluator(ISerialEvaluator):
    """Measures what a policy makes of a data set.

    An :class:`IMetric` gets what the policy's ``forward`` returns, and its values are averaged weighted by the sizes of
    the batches. A metric of torchmetrics gets the ``logit`` of it, else the ``action``, and averages itself. The
    first value of a torchmetrics collection says what is better.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: A data loader that yields ``(inputs, label)``, and the metric.
        policy: A policy, or its eval mode.
        tb_logger: A TensorBoard ``SummaryWriter`` or a Lightning logger; or None.
        exp_name: Part of the name of the logger of Python's logging.
        instance_name: Tells several evaluators apart in logs.

    Raises:
        ValueError: If a config key is unknown or does nothing here, or a value is out of range.
        TypeError: If ``env`` is something else.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset({"eval_freq", "stop_value"})

    def __init__(
        self,
        cfg: ConfigLike[EvaluatorConfig] = None,
        env: tuple[Iterable[Any], IMetric | Metric | MetricCollection] | None = None,
        policy: EvalMode | None = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "evaluator",
    ) -> None:
        self.config = self.resolve_config(cfg)
        self.best_metric: Values | None = None
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._loader: Any = None
        self._meter: MeanMeter | TorchMeter | None = None
        self.reset_env(env)
        self.reset_policy(policy)

    @property
    def env(self) -> tuple[Iterable[Any], IMetric | Metric | MetricCollection] | None:
        """The data loader and the metric; None if they were not given yet."""
        return None if self._meter is None else (self._loader, self._meter.metric)

    def reset_env(self, env: tuple[Iterable[Any], IMetric | Metric | MetricCollection] | None = None) -> None:
        """Take a data loader and a metric if they are given.

        Raises:
            TypeError: If ``env`` is something else.
        """
        if env is None:
            return
        if not isinstance(env, (tuple, list)) or len(env) != 2 or not isinstance(env[1], IMetric):
            got = [type(part).__name__ for part in env] if isinstance(env, (tuple, list)) else type(env).__name__
            raise TypeError(f"env must be (data loader, IMetric or torchmetrics.Metric), got {got}")
        self._loader, metric = env
        self._meter = TorchMeter(metric) if isinstance(metric, (Metric, MetricCollection)) else MeanMeter(metric)

    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Reset the policy's evaluating state, after taking ``policy`` if it is given."""
        if policy is not None:
            self._policy = getattr(policy, "eval_mode", policy)
        if self._policy is not None:
            self._policy.reset()

    def reset(
        self,
        policy: EvalMode | None = None,
        env: tuple[Iterable[Any], IMetric | Metric | MetricCollection] | None = None,
    ) -> None:
        """Take what is given and forget the best metric and the last evaluation."""
        self.best_metric = None
        self._last_eval_iter = None
        self.reset_env(env)
        self.reset_policy(policy)

    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, Values]:
        """Evaluate, remember when and how well, and write it to the loggers.

        If ``torch.distributed`` is initialised, every rank has to call this; all of them get the same answer.

        Args:
            save_ckpt_fn: Called with a file name when the metric is better than ever; on every rank, because saving
                may need all of them, as ``Trainer.save_checkpoint`` does.
            train_iter: Updates done; a negative number says nothing of when it was.
            envstep: Environment steps done.
            n_episode: None; there are no episodes here.

        Returns:
            Whether the metric is at least as good as ``stop_value`` after at least one update, and its values by name.
            ``stop_value`` stands for every name when it is compared, so :meth:`IMetric.gt` decides whether all or some
            of them have to reach it.

        Raises:
            ValueError: If ``n_episode`` is given, or see :meth:`run`.
            TypeError: If an argument is of the wrong type.
            RuntimeError: If there is no data loader or no policy.
        """
        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        if n_episode is not None:
            raise ValueError(f"n_episode must be None, a metric evaluator runs no episodes, got {n_episode}")
        started = perf_counter()
        values, batches = self._measure()
        seconds = perf_counter() - started
        times = {"batch_count": batches, "evaluate_time": seconds, "avg_time_per_batch": seconds / batches}
        self._log.write({**times, **values}, train_iter, envstep)
        self._note_eval(train_iter)
        self._save_if_best(values, save_ckpt_fn)
        return train_iter > 0 and self._is_good_enough(values), values

    def run(self) -> Values:
        """Return the metric's values by name, over the data of all ranks.

        Rank r of W takes the batches r, r + W, ... of the data loader; or all of them, if a ``DistributedSampler``
        shares the examples out, which repeats some of them if they are not divisible by W.

        Raises:
            ValueError: If a rank has no batch, or each rank would shuffle the examples in its own way.
            RuntimeError: If there is no data loader or no policy.
        """
        return self._measure()[0]

    def close(self) -> None:
        """Forget data loader, metric and policy."""
        self._loader = self._meter = self._policy = None

    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint: the best metric and when the last evaluation was."""
        return {**super().state_dict(), "best_metric": self.best_metric}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        super().load_state_dict(state_dict)
        self.best_metric = state_dict["best_metric"]

    def _measure(self) -> tuple[Values, int]:
        """Return the metric's values, and how many batches all ranks measured."""
        if self._meter is None or self._policy is None:
            raise RuntimeError("the evaluator needs (data loader, metric) and a policy: pass them to reset")
        self._policy.reset()
        self._meter.reset()
        batches = 0
        for inputs, label in self._share():
            self.steps_made += 1
            output = self._policy.forward(nested.to_tensor(inputs))
            device = nested.leaves(output)[0].device
            self._meter.update(output, nested.to(nested.to_tensor(label), device))
            batches += 1
        total, without = sum_over_ranks(torch.tensor([batches, batches == 0])).tolist()
        if without:
            raise ValueError(f"every rank needs a batch of the data loader, but {without} got none")
        values = self._meter.compute()
        self._meter.reset()
        return values, total

    def _share(self) -> Iterable[Any]:
        """Return this rank's batches."""
        rank, world_size = rank_and_world_size()
        sampler = getattr(self._loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            return islice(self._loader, None)
        if world_size > 1 and isinstance(sampler, RandomSampler):
            raise ValueError("shuffle must be False on several ranks, or the sampler a DistributedSampler")
        return islice(self._loader, rank, None, world_size)

    def _save_if_best(self, values: Values, save_ckpt_fn: SaveFunction | None) -> None:
        meter, best = self._meter, self.best_metric
        assert meter is not None
        if best is None or (meter.gt(values, best) and not meter.gt(best, values)):  # an equal one is no better
            self.best_metric = values
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best.ckpt")

    def _is_good_enough(self, values: Values) -> bool:
        threshold = self.config.stop_value
        assert self._meter is not None
        return threshold is not None and self._meter.gt(values, dict.fromkeys(values, threshold))
