"""Evaluating by acting in envs.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.envs import EnvStepper
from lightning_ding.policy.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.evaluator.base import ISerialEvaluator
from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor
from lightning_ding.worker_config import EvaluatorConfig


@SERIAL_EVALUATOR_REGISTRY.register("interaction")
class InteractionSerialEvaluator(ISerialEvaluator):
    """Runs a fixed quota of greedy episodes in each env.

    In an env with autoreset disabled every episode has a seed of its own, so that the result does not depend on how
    many envs or ranks share the work. In the other modes only the first episode of each env can be seeded.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: A gymnasium vector env; its owner closes it.
        policy: A policy's eval mode.
        seed: Of the episodes; the same episodes come back at every evaluation.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset({"eval_freq", "n_episode", "stop_value", "render", "figure_path"})

    def __init__(
        self,
        cfg: ConfigLike[EvaluatorConfig] = None,
        env: VectorEnv | None = None,
        policy: EvalMode | None = None,
        seed: int = 0,
    ) -> None:
        self.config: EvaluatorConfig = self.resolve_config(cfg)
        self.seed = seed
        self._stepper: EnvStepper | None = None
        self._policy: EvalMode | None = None
        self.best_return = -np.inf
        self._last_eval_iter: int | None = None
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Take ``env`` if it is given; episodes begin with the next evaluation."""
        if env is not None:
            self._stepper = EnvStepper(env)

    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Reset the policy's evaluating state, after taking ``policy`` if it is given."""
        if policy is not None:
            self._policy = policy
        if self._policy is not None:
            self._policy.reset()

    def reset(self, policy: EvalMode | None = None, env: VectorEnv | None = None) -> None:
        """Take what is given and forget the best return and the last evaluation."""
        self.best_return = -np.inf
        self._last_eval_iter = None
        self.reset_env(env)
        self.reset_policy(policy)

    def should_eval(self, train_iter: int) -> bool:
        """Return whether ``eval_freq`` updates have passed since the last evaluation, or there was none."""
        return self._last_eval_iter is None or train_iter - self._last_eval_iter >= self.config.eval_freq

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate, and remember when and how well.

        Args:
            save_ckpt_fn: Called with a file name when the mean return is the best so far.
            train_iter: Updates done.
            envstep: Environment steps done, reported back.
            n_episode: Episodes; None takes the config's.

        Returns:
            Whether the mean return reached ``stop_value`` after at least one update, and ``eval_episode_return``,
            ``eval_episode_length``, ``return_mean``, ``train_iter`` and ``envstep``.
        """
        total = self.config.n_episode if n_episode is None else n_episode
        returns, lengths = self.run(range(total))
        self._last_eval_iter = train_iter
        mean = float(np.mean(returns))
        if mean > self.best_return:
            self.best_return = mean
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best.ckpt")
        stop = self.config.stop_value is not None and mean >= self.config.stop_value and train_iter > 0
        info = {"eval_episode_return": returns, "eval_episode_length": lengths, "return_mean": mean}
        return stop, {**info, "train_iter": train_iter, "envstep": envstep}

    def run(self, episodes: Sequence[int]) -> tuple[list[float], list[int]]:
        """Run episodes and return their returns and lengths.

        Args:
            episodes: Their numbers, from which their seeds come; E >= 1 of them.

        Returns:
            E returns and E lengths in env steps, in the order of ``episodes``.

        Raises:
            RuntimeError: If there is no env or no policy.
            ValueError: If ``episodes`` is empty.
        """
        require(len(episodes) >= 1, "n_episode", ">= 1", len(episodes))
        if self._stepper is None or self._policy is None:
            raise RuntimeError("the evaluator needs an env and a policy: pass them to the constructor or to reset")
        return self._run(self._stepper, self._policy, _Plan(episodes, self._stepper, self.seed))

    def close(self) -> None:
        """Forget env and policy; the env is left open for whoever made it."""
        self._stepper = None
        self._policy = None

    def _run(self, stepper: EnvStepper, policy: EvalMode, plan: _Plan) -> tuple[list[float], list[int]]:
        policy.reset()
        obs = stepper.reset(plan.first_seeds())
        totals = np.zeros(stepper.env.num_envs)
        steps = np.zeros(stepper.env.num_envs, dtype=np.int64)
        while not plan.monitor.is_finished():
            stepper.next_seed = plan.next_seeds()
            action = nested.to_numpy(policy.forward(obs)["action"])
            timestep = stepper.step(action)
            obs = stepper.obs
            totals += timestep.reward * timestep.valid
            steps += timestep.valid
            if not timestep.valid.all():
                policy.reset(np.flatnonzero(~timestep.valid).tolist())  # it saw the last observation once more
            ended = np.flatnonzero(timestep.terminated | timestep.truncated)
            if len(ended):
                plan.record(ended, totals, steps)
                policy.reset(ended.tolist())
                totals[ended] = 0
                steps[ended] = 0
        return plan.results()


class _Plan:
    """Which episode each env runs, with which seed, and what came of it."""

    def __init__(self, episodes: Sequence[int], stepper: EnvStepper, seed: int) -> None:
        num_envs = stepper.env.num_envs
        self.monitor = VectorEvalMonitor(num_envs, len(episodes))
        self._seeded_resets = stepper.mode == AutoresetMode.DISABLED
        seeds = [int(np.random.SeedSequence([seed, episode]).generate_state(1)[0]) for episode in episodes]
        self._seeds = [seeds[env_id::num_envs] for env_id in range(num_envs)]
        by_env = [np.arange(len(seeds))[env_id::num_envs] for env_id in range(num_envs)]
        self._order = np.argsort(np.concatenate(by_env))
        self._started = np.ones(num_envs, dtype=np.int64)

    def first_seeds(self) -> list[int | None]:
        """Return a seed for the first episode of each env; None for an env that has no quota."""
        return [seeds[0] if seeds else None for seeds in self._seeds]

    def next_seeds(self) -> list[int | None]:
        """Return a seed for the next episode of each env, None behind its quota."""
        if not self._seeded_resets:
            return [None] * len(self._seeds)
        return [seeds[n] if n < len(seeds) else None for seeds, n in zip(self._seeds, self._started, strict=True)]

    def record(self, ended: Any, totals: Any, steps: Any) -> None:
        """Record the episodes that ended."""
        for env_id in ended.tolist():
            self.monitor.update_info(env_id, {"length": int(steps[env_id])})
            self.monitor.update_reward(env_id, totals[env_id])
        self._started[ended] += 1

    def results(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths in the order of the episodes."""
        returns, info = np.array(self.monitor.get_episode_return()), self.monitor.get_episode_info() or {}
        return returns[self._order].tolist(), np.array(info["length"])[self._order].tolist()
