"""Middleware that act in envs: collectors and the evaluator of :mod:`lightning_ding.di_engine.worker`, in thin form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_ding.config import require
from lightning_ding.di_engine import worker
from lightning_ding.di_engine.env_managers import BaseEnvManager
from lightning_ding.di_engine.framework.task import task
from lightning_ding.di_engine.rl_utils import get_epsilon_greedy_fn

logger = logging.getLogger(__name__)


class Row(dict[str, Any]):
    """A transition whose entries are attributes as well.

    Example:
        >>> row = Row(reward=1.0)
        >>> row.reward += 1
        >>> row["reward"], "reward" in row
        (2.0, True)
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"a transition has no {name!r}; it has {sorted(self)}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def rows_by_env(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, list[int]]:
    """Return transitions one env after the other, and the index of the last one of each env.

    The result has the ``options`` of a collector's list.
    """
    env_id = np.array([row.get("env_id", 0) for row in rows])
    order = np.argsort(env_id, kind="stable")
    ends = np.flatnonzero(np.diff(env_id[order], append=-1)).tolist()
    return worker.Rows([Row(rows[place]) for place in order.tolist()], getattr(rows, "options", {})), ends


def _seed(env: Any, seed: int, **kwargs: Any) -> None:
    """Set the seed of the envs of a manager that has none yet."""
    if isinstance(env, BaseEnvManager) and env.seed_of_run is None:
        env.seed(seed, **kwargs)


class _Collects:
    """Collects data each time that it is called with a context."""

    worker_class: Any
    amount: str
    """Key of the config that says how much."""

    def __init__(self, cfg: Any, policy: Any, env: Any, random_collect_size: int = 0) -> None:
        self.cfg, self.policy, self.env, self.random_collect_size = cfg, policy, env, random_collect_size
        _seed(env, cfg.seed)
        collect = cfg.policy.get("collect", {})
        section = {name: value for name, value in collect.get("collector", {}).items() if name != "type"}
        self.collector = self.worker_class(section, env, policy, exp_name=cfg.get("exp_name", "default_experiment"))

    def _amount(self) -> int | None:
        """Return how much to collect; None for what the policy asks for."""
        found = self.cfg.policy.get("collect", {}).get(self.amount)
        return None if found is None else int(found)

    def _collect(self, ctx: Any, done: int) -> Any:
        """Collect and count.

        Args:
            ctx: The context.
            done: How much was collected before.
        """
        steps, episodes = self.collector.envstep, self.collector.episode
        missing = self.random_collect_size - done
        kwargs: dict[str, Any] = {"train_iter": ctx.train_iter}
        if missing > 0:
            data = self.collector.collect(missing, random_collect=True, record_random_collect=False, **kwargs)
        else:
            data = self.collector.collect(self._amount(), policy_kwargs=ctx.collect_kwargs, **kwargs)
        ctx.env_step += self.collector.envstep - steps
        ctx.env_episode += self.collector.episode - episodes
        return data


class StepCollector(_Collects):
    """Collects ``policy.collect.n_sample`` transitions, times ``unroll_len``, into ``ctx.trajectories``.

    Args:
        cfg: Config of the run.
        policy: Collect mode of a policy.
        env: An env manager, or a vector env.
        random_collect_size: Transitions with random actions that the first call collects instead, >= 0.
    """

    worker_class = worker.SampleSerialCollector
    amount = "n_sample"

    def _amount(self) -> int | None:
        found = super()._amount()
        return None if found is None else found * int(self.cfg.policy.collect.get("unroll_len") or 1)

    def __call__(self, ctx: Any) -> None:
        """Set ``trajectories`` and ``trajectory_end_idx``, and count ``env_step`` and ``env_episode``."""
        ctx.trajectories, ctx.trajectory_end_idx = rows_by_env(self._collect(ctx, ctx.env_step))


class EpisodeCollector(_Collects):
    """Collects ``policy.collect.n_episode`` whole episodes into ``ctx.episodes``.

    Args:
        cfg: Config of the run.
        policy: Collect mode of a policy.
        env: An env manager, or a vector env.
        random_collect_size: Episodes with random actions that the first call collects instead, >= 0.
    """

    worker_class = worker.EpisodeSerialCollector
    amount = "n_episode"

    def __call__(self, ctx: Any) -> None:
        """Set ``episodes``, and count ``env_step`` and ``env_episode``."""
        found = self._collect(ctx, ctx.env_episode)
        ctx.episodes = [worker.Rows([Row(row) for row in one], getattr(one, "options", {})) for one in found]


def interaction_evaluator(
    cfg: Any, policy: Any, env: Any, render: bool = False, **kwargs: Any
) -> Callable[[Any], None]:
    """Return a middleware that evaluates at the start and every ``policy.eval.evaluator.eval_freq`` updates.

    It sets ``eval_value`` and ``eval_output``, and ends the task when the mean return reaches ``env.stop_value`` after
    at least one update.

    Args:
        cfg: Config of the run.
        policy: Eval mode of a policy.
        env: An env manager, or a vector env.
        render: Only False: set ``policy.eval.evaluator.render`` for videos.
        kwargs: Arguments of the policy's eval mode.

    Raises:
        ValueError: If ``render`` is true.
    """
    require(not render, "render", "False: set policy.eval.evaluator.render for videos", render)
    _seed(env, cfg.seed, dynamic_seed=False)
    section = {**cfg.policy.get("eval", {}).get("evaluator", {})}
    section.pop("type", None)
    for name, given in (("n_episode", cfg.env.get("n_evaluator_episode")), ("stop_value", cfg.env.get("stop_value"))):
        section |= {} if given is None else {name: given}
    exp_name = cfg.get("exp_name", "default_experiment")
    evaluator = worker.InteractionSerialEvaluator(section, env, policy, exp_name=exp_name)
    freq = evaluator.config.eval_freq

    def evaluate(ctx: Any) -> None:
        if ctx.last_eval_iter != -1 and ctx.train_iter - ctx.last_eval_iter < freq:
            return
        env_step = ctx.env_step if ctx.has_attr("env_step") else -1
        stop, result = evaluator.eval(None, ctx.train_iter, env_step, policy_kwargs=kwargs)
        mean = result["return_mean"]
        ctx.last_eval_iter, ctx.eval_value, ctx.last_eval_value = ctx.train_iter, mean, mean
        for name in ("min", "max", "std"):
            setattr(ctx, f"eval_value_{name}", result[f"return_{name}"])
        ctx.eval_output = {"episode_return": mean, **result}
        logger.info(f"evaluation at update {ctx.train_iter}, env step {env_step}: mean return {mean:.3f}")
        if stop:
            task.finish = True

    return evaluate


def eps_greedy_handler(cfg: Any) -> Callable[[Any], Generator[None]]:
    """Return a middleware that sets ``collect_kwargs["eps"]`` by ``policy.other.eps`` and the env steps."""
    eps = cfg.policy.other.eps
    value = get_epsilon_greedy_fn(eps.start, eps.end, eps.decay, eps.type)

    def eps_greedy(ctx: Any) -> Generator[None]:
        ctx.collect_kwargs["eps"] = value(ctx.env_step)
        yield
        ctx.collect_kwargs.pop("eps", None)

    return eps_greedy


def eps_greedy_masker() -> Callable[[Any], None]:
    """Return a middleware that sets ``collect_kwargs["eps"]`` to 0 for the collectors after it."""

    def mask(ctx: Any) -> None:
        ctx.collect_kwargs["eps"] = 0.0

    return mask
