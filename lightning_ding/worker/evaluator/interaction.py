"""Evaluating by acting in envs.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.config import ConfigLike, require
from lightning_ding.envs import EnvStepper, Timestep
from lightning_ding.modes import EvalMode
from lightning_ding.ranks import rank_and_world_size
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.actions import actions_of
from lightning_ding.worker.arguments import check_policy_kwargs, check_switches
from lightning_ding.worker.evaluator.base import ISerialEvaluator, SaveFunction, run_sharded
from lightning_ding.worker.evaluator.config import INTERACTION_KEYS, EvaluatorConfig
from lightning_ding.worker.evaluator.monitor import EpisodePlan, VectorEvalMonitor
from lightning_ding.worker.evaluator.video import MAX_FRAMES, Rendering, check_can_render, frames_of
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker.players import eval_mode_of


@SERIAL_EVALUATOR_REGISTRY.register("interaction")
class InteractionSerialEvaluator(ISerialEvaluator):
    """Runs a fixed quota of greedy episodes in each env.

    In an env with autoreset disabled every episode has its own seed, so the result does not depend on the number of
    envs or ranks that share the work. In the other modes only the first episode of each env can be seeded.

    An episode that a fault of its env cuts short is not counted but run again.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: A gymnasium vector env; its owner closes it.
        policy: A policy, or its eval mode.
        tb_logger: A TensorBoard ``SummaryWriter`` or a Lightning logger, for numbers, videos and figures; or None.
        exp_name: Part of the name of the logger of Python's logging.
        instance_name: Name that distinguishes several evaluators, in logs and names of figures.
        seed: Seed of the episodes, together with the number of the evaluation; see :meth:`run`.

    Raises:
        ValueError: If a config key is unknown or has no effect here, or a value is out of range.
        ImportError: If there is a ``figure_path`` and the extra ``video`` is not installed.
    """

    config_keys: ClassVar[frozenset[str]] = INTERACTION_KEYS

    def __init__(
        self,
        cfg: ConfigLike[EvaluatorConfig] = None,
        env: VectorEnv | None = None,
        policy: EvalMode | None = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "evaluator",
        seed: int = 0,
    ) -> None:
        self.config: EvaluatorConfig = self.resolve_config(cfg)
        self.seed = seed
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._rendering = Rendering(self.config, self._log)
        self._stepper: EnvStepper | None = None
        self._video: NDArray[np.uint8] | None = None
        if env is not None:
            self.reset_env(env)
        if policy is not None:
            self.reset_policy(policy)

    @property
    def env(self) -> VectorEnv | None:
        """The vector env; None if none was given yet."""
        return None if self._stepper is None else self._stepper.env

    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Replace the env if one is given; episodes begin with the next evaluation."""
        if env is not None:
            stepper, limit = EnvStepper(env), self.config.max_episode_steps
            require(limit is None or stepper.can_cut, "max_episode_steps", 'None with mode="native"', limit)
            self._stepper = stepper

    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Replace the policy if one is given, and reset its evaluating state."""
        if policy is not None:
            self._policy = eval_mode_of(policy)
        if self._policy is not None:
            self._policy.reset()

    def reset(self, policy: EvalMode | None = None, env: VectorEnv | None = None) -> None:
        """Replace policy and env where they are given; reset the best return, all evaluations and the last video."""
        self.evaluations = 0
        self.best_return = -np.inf
        self._last_eval_iter = None
        self._rendering.last_video = None
        self.reset_env(env)
        self.reset_policy(policy)

    def should_render(self, envstep: int, train_iter: int) -> bool:
        """Return whether the config asks for a video of an evaluation made now; the call changes nothing."""
        return self._rendering.is_video_due(envstep, train_iter)

    def check_can_render(self) -> None:
        """Raise if a video could not be made or written.

        Raises:
            ValueError: If the envs give no frames, or the logger takes no videos.
            ImportError: If the extra ``video`` is not installed.
        """
        self._rendering.check(self._parts()[0].env)

    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
        force_render: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate, store the update and the score of the evaluation, and write the results to the loggers.

        If ``torch.distributed`` is initialised, every rank has to call this and runs its share of the episodes; all of
        them get the same result. Videos show the episodes of rank zero.

        Args:
            save_ckpt_fn: Function called with a file name when the mean return is the best so far. It is called on
                every rank, because saving may need all of them, as ``Trainer.save_checkpoint`` does.
            train_iter: Updates so far; negative if not known.
            envstep: Environment steps so far.
            n_episode: Number of episodes over all ranks; None takes the config's ``n_episode``.
            force_render: Record a video of this evaluation, regardless of the config.
            policy_kwargs: Arguments of the policy's ``forward``.

        Returns:
            Whether the mean return reached ``stop_value`` after at least one update, and plain Python numbers:
            ``eval_episode_return`` and ``eval_episode_length`` of each episode, ``return_mean``, ``return_std``,
            ``return_min``, ``return_max``, ``train_iter`` and ``envstep``.

        Raises:
            ValueError: If there are fewer episodes than ranks, or none; or a video is due and the envs give no frames,
                or the logger takes none.
            TypeError: If an argument is of the wrong type.
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
            ImportError: If a video is due and the extra ``video`` is not installed.
        """
        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        check_switches(force_render=force_render)
        check_policy_kwargs(policy_kwargs)
        renders = force_render or self.should_render(envstep, train_iter)
        if renders:
            self.check_can_render()
        started = perf_counter()
        total = self.config.n_episode if n_episode is None else n_episode
        renders_here = renders and rank_and_world_size()[0] == 0
        table = run_sharded(lambda episodes: self.run(episodes, renders_here, policy_kwargs), total)
        seconds = perf_counter() - started
        returns, lengths = table[0].tolist(), table[1].astype(int).tolist()
        if renders:
            self.write_video(envstep, train_iter)
        self.write_figure(returns, envstep, train_iter)
        values = self.config.summary(returns)
        stop = self._conclude(self._log, values, lengths, seconds, train_iter, envstep, save_ckpt_fn)
        info = {"eval_episode_return": returns, "eval_episode_length": lengths, **values}
        return stop, {**info, "train_iter": train_iter, "envstep": envstep}

    def run(
        self,
        episodes: Sequence[int],
        video: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
        number: int | None = None,
    ) -> tuple[list[float], list[int]]:
        """Run episodes and return their returns and lengths.

        Args:
            episodes: Numbers of the episodes, E >= 1; they determine the seeds.
            video: Keep the frames of the episodes for :meth:`write_video` and :meth:`pop_video`.
            policy_kwargs: Arguments of the policy's ``forward``.
            number: Number of the evaluation, >= 0, which also decides the seeds unless ``fixed_starts`` is set; None
                counts the calls.

        Returns:
            E returns and E lengths in env steps, in the order of ``episodes``; all NaN and 0 if it was cancelled.

        Raises:
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
            ValueError: If ``episodes`` is empty, the policy gives no actions or of a wrong shape, or ``video`` is true
                and the envs give no frames.
        """
        stepper, policy = self._parts()
        if video:
            check_can_render(stepper.env)
        plan = EpisodePlan(episodes, stepper.env.num_envs, self.seed, self._number(number))
        monitor = VectorEvalMonitor(stepper.env.num_envs, len(episodes))
        results = np.full((2, len(episodes)), np.nan)
        self._run(stepper, policy, plan, results, monitor if video else None, policy_kwargs or {})
        if not plan.is_finished:
            return [float("nan")] * len(episodes), [0] * len(episodes)
        self._video = monitor.get_video(MAX_FRAMES)
        return results[0].tolist(), results[1].astype(int).tolist()

    def pop_video(self) -> NDArray[np.uint8] | None:
        """Remove and return the videos of the last run's worst, median and best episodes.

        Returns:
            The result of :meth:`VectorEvalMonitor.get_video`, at most 300 frames; None without a video of the last run.
        """
        video, self._video = self._video, None
        return video

    def write_video(self, envstep: int, train_iter: int) -> None:
        """Write the video of the last run to the logger, if this rank made one, and store the time."""
        stepper, _ = self._parts()
        self._rendering.write_video(self.pop_video(), stepper.env, envstep, train_iter)

    def write_figure(self, returns: Sequence[float], envstep: int, train_iter: int) -> None:
        """Write a figure of the returns of all ranks, if there is a ``figure_path``."""
        self._rendering.write_figure(returns, envstep, train_iter)

    def close(self) -> None:
        """Release env and policy. The owner of the env closes it."""
        self._stepper = None
        self._policy = None
        self._video = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: counters, the best return, and when the last video was made."""
        own = {"best_return": float(self.best_return), "evaluations": self.evaluations}
        return {**super().state_dict(), **own, "last_film": self._rendering.last_video}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        super().load_state_dict(state_dict)
        self.best_return = state_dict["best_return"]
        self.evaluations = state_dict["evaluations"]
        self._rendering.last_video = state_dict["last_film"]

    def _parts(self) -> tuple[EnvStepper, EvalMode]:
        if self._stepper is None or self._policy is None:
            raise RuntimeError("the evaluator needs an env and a policy: pass them to the constructor or to reset")
        return self._stepper, self._policy

    def _run(
        self,
        stepper: EnvStepper,
        policy: EvalMode,
        plan: EpisodePlan,
        results: NDArray[np.float64],
        monitor: VectorEvalMonitor | None,
        policy_kwargs: Mapping[str, Any],
    ) -> None:
        """Run the episodes of a plan and write their returns and lengths to ``results``, shape (2, E)."""
        policy.reset()
        obs = stepper.reset(plan.first_seeds())
        so_far = np.zeros((2, stepper.env.num_envs))
        while not (plan.is_finished or self.cancel_requested):
            self.steps_made += 1
            stepper.next_seed = plan.next_seeds()
            frames = frames_of(stepper.env) if monitor else []
            action = actions_of(policy.forward(obs, **policy_kwargs), stepper.env)
            timestep = stepper.step(action)
            so_far[0] += timestep.reward * timestep.valid
            so_far[1] += timestep.valid
            if monitor:
                monitor.update_video({i: frames[i] for i in np.flatnonzero(timestep.valid).tolist()})
            if self.config.max_episode_steps is not None:
                timestep = self._cut_long_episodes(stepper, timestep, so_far[1])
            obs = stepper.obs
            ended = timestep.terminated | timestep.truncated
            starts = np.flatnonzero(ended | ~timestep.valid)  # where not valid, it acted on a last observation again
            if len(starts):
                _record(plan, timestep, so_far, results, monitor)
                policy.reset(starts.tolist())
                so_far[:, ended] = 0

    def _cut_long_episodes(self, stepper: EnvStepper, timestep: Timestep, steps: NDArray[Any]) -> Timestep:
        """Return the step with those episodes truncated that have reached ``max_episode_steps``."""
        cut = self._is_too_long(steps) & timestep.valid & ~(timestep.terminated | timestep.truncated)
        if not cut.any():
            return timestep
        stepper.cut(cut)
        return timestep._replace(truncated=timestep.truncated | cut)


def _record(
    plan: EpisodePlan,
    timestep: Timestep,
    so_far: NDArray[np.float64],
    results: NDArray[np.float64],
    monitor: VectorEvalMonitor | None,
) -> None:
    """Record the episodes that ended in a step, and plan those again that a fault cut short.

    Args:
        plan: The episodes that the envs run.
        timestep: The step.
        so_far: Returns and lengths of the running episodes, shape (2, N).
        results: Returns and lengths of all episodes, shape (2, E); changed in place.
        monitor: Records of the videos; None if there are none.

    Raises:
        RuntimeError: After more than E faults.
    """
    for env_id in np.flatnonzero(timestep.terminated | timestep.truncated).tolist():
        position = plan.running[env_id]
        if position is None:
            continue
        if timestep.abnormal[env_id]:
            plan.fail(env_id, timestep.fault(env_id))
            if monitor:
                monitor.drop_video(env_id)
        else:
            results[:, position] = so_far[:, env_id]
            plan.end(env_id)
            if monitor:
                monitor.update_reward(env_id, so_far[0, env_id])
