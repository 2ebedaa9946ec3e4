"""Evaluating by acting in envs.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.envs import EnvStepper, Timestep
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import EvalMode
from lightning_ding.utils.ranks import rank_and_world_size
from lightning_ding.worker.actions import actions_of
from lightning_ding.worker.arguments import check_policy_kwargs, check_switches
from lightning_ding.worker.episodes import SUCCESS, SUCCESS_RATE, InfoCheck, Statistic
from lightning_ding.worker.evaluator.base import EpisodeEvaluator, SaveFunction
from lightning_ding.worker.evaluator.config import INTERACTION_KEYS
from lightning_ding.worker.evaluator.plan import EpisodePlan

if TYPE_CHECKING:
    from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor
    from lightning_ding.worker.infos import EpisodeInfos


@SERIAL_EVALUATOR_REGISTRY.register("interaction")
class InteractionSerialEvaluator(EpisodeEvaluator[EnvStepper, EvalMode]):
    """Runs a fixed quota of greedy episodes in each env.

    In an env with autoreset disabled every episode has its own seed, so the result does not depend on the number of
    envs or ranks that share the work. In the other modes only the first episode of each env can be seeded.

    An episode that an env fault cuts short is not counted but run again.

    See :class:`EpisodeEvaluator` for the arguments; the logger gets videos and figures too.

    Raises:
        ValueError: If a config key is unknown or has no effect here, or a value is out of range.
        ImportError: If there is a ``figure_path`` and the extra ``video`` is not installed.
    """

    config_keys: ClassVar[frozenset[str]] = INTERACTION_KEYS
    info_keys: Mapping[str, Statistic] = MappingProxyType({})
    """Numbers in the info of the env to return, with their statistics."""
    info_check: InfoCheck
    """The check that the env gives these numbers."""
    infos: Mapping[str, Sequence[float]] = MappingProxyType({})
    """Numbers of the infos of each episode of the last run, by name; NaN where the env gave none."""
    _video: NDArray[np.uint8] | None = None

    @override
    def _clear(self) -> None:
        super()._clear()
        self.info_check = InfoCheck()
        self._last_video: int | None = None  # the counter of ``render.mode`` when the last video was made
        if self.config.figure_path is not None:
            from lightning_ding.worker.evaluator.video import import_extra

            import_extra("matplotlib.figure")  # now, rather than after the first evaluation

    @override
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Replace the env if one is given; episodes begin with the next evaluation."""
        if env is not None:
            stepper, limit = EnvStepper(env), self.config.max_episode_steps
            require(limit is None or stepper.can_cut, "max_episode_steps", 'None with mode="native"', limit)
            self._stepper = stepper

    def should_render(self, envstep: int, train_iter: int) -> bool:
        """Return whether the config asks for a video of an evaluation made now; the call changes nothing."""
        freq = self.config.render.render_freq
        return freq > 0 and (self._last_video is None or self._now(envstep, train_iter) - self._last_video >= freq)

    def check_can_render(self) -> None:
        """Raise if a video could not be made or written.

        Raises:
            ValueError: If the envs give no frames, or no logger takes videos.
            ImportError: If the extra ``video`` is not installed.
        """
        from lightning_ding.worker.evaluator.rendering import check_takes_videos
        from lightning_ding.worker.evaluator.video import check_can_render

        check_can_render(self._parts()[0].env)
        check_takes_videos(self._log.tb_logger)

    @override
    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
        force_render: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate; see :class:`ISerialEvaluator`. Videos show the episodes of rank zero.

        Args:
            save_ckpt_fn: Function called on every rank with a file name when the mean return is the best so far.
            train_iter: Updates so far; negative if not known.
            envstep: Environment steps so far.
            n_episode: Number of episodes over all ranks; None means the config's ``n_episode``.
            force_render: Record a video of this evaluation, regardless of the config.
            policy_kwargs: Arguments of the policy's ``forward``.

        Returns:
            Whether the mean return reached ``stop_value`` after at least one update, and plain Python numbers:
            ``eval_episode_return`` and ``eval_episode_length`` of each episode, ``return_mean``, ``return_std``,
            ``return_min``, ``return_max``, ``train_iter`` and ``envstep``; ``success_rate``, the mean of
            ``info["is_success"]`` at the ends of episodes, if the env gives it; and the means of ``info_keys``.

        Raises:
            ValueError: If a video is due and the envs give no frames, or no logger takes videos.
            ImportError: If a video is due and the extra ``video`` is not installed.
        """
        from lightning_ding.worker.evaluator.direct import conclude, run_sharded

        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        check_switches(force_render=force_render)
        check_policy_kwargs(policy_kwargs)
        renders = force_render or self.should_render(envstep, train_iter)
        if renders:
            self.check_can_render()
        renders_here = renders and rank_and_world_size()[0] == 0

        def run(share: Sequence[int]) -> tuple[Any, Sequence[int]]:
            returns, lengths = self.run(share, renders_here, policy_kwargs)
            return np.array([returns, *self.infos_of(share).values()]), lengths

        table, lengths, seconds = run_sharded(run, self.config.n_episode if n_episode is None else n_episode)
        returns = table[0].tolist()
        if renders:
            self.write_video(envstep, train_iter)
        self.write_figure(returns, envstep, train_iter)
        episodes = {"eval_episode_return": returns, "eval_episode_length": lengths}
        values = self.config.summary(returns, dict(zip(self.info_names, table[1:], strict=True)))
        return conclude(self, episodes, values, seconds, save_ckpt_fn, train_iter, envstep)

    @override
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
            video: Keep the frames for :meth:`write_video` and :meth:`pop_video`: of the first episode, or of all if
                ``render.episodes`` is ``"all"``.
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
        monitor: VectorEvalMonitor | None = None
        if video:
            from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor
            from lightning_ding.worker.evaluator.video import MAX_FRAMES, check_can_render

            check_can_render(stepper.env)
            monitor = VectorEvalMonitor(stepper.env.num_envs, len(episodes))
        plan = EpisodePlan(self.config, episodes, stepper.env.num_envs, self.seed, self._number(number))
        self._run(stepper, policy, plan, monitor, policy_kwargs or {})
        self.infos = {name: values.tolist() for name, values in plan.infos.items()}
        if not plan.is_finished:
            return [float("nan")] * len(episodes), [0] * len(episodes)
        if not self.cancel_requested:  # making a video takes seconds
            self._video = monitor.get_video(MAX_FRAMES) if monitor else None
        return plan.returns.tolist(), plan.lengths.tolist()

    @property
    def info_names(self) -> tuple[str, ...]:
        """Names of the numbers that :meth:`infos_of` returns."""
        return (SUCCESS_RATE, *self.info_keys)

    def infos_of(self, episodes: Sequence[int]) -> dict[str, Sequence[float]]:
        """Return the infos of the last run, which had these episodes; NaN if a subclass does not record them."""
        none = [float("nan")] * len(episodes)
        return {name: self.infos.get(name, none) for name in self.info_names}

    def pop_video(self) -> NDArray[np.uint8] | None:
        """Remove and return the video of the last run's first episode, or those of its worst, median and best ones.

        Returns:
            The result of :meth:`VectorEvalMonitor.get_video`, at most 300 frames; None without a video of the last run.
        """
        video, self._video = self._video, None
        return video

    def write_video(self, envstep: int, train_iter: int) -> None:
        """Write the video of the last run to the logger, if this rank made one, and store the time on all ranks."""
        from lightning_ding.worker.evaluator.rendering import media_writer
        from lightning_ding.worker.evaluator.video import write_video

        env, video = self._parts()[0].env, self.pop_video()
        self._last_video = self._now(envstep, train_iter)
        if video is not None:
            name, step = self._log.tag("video", train_iter, envstep)
            fps = float((env.metadata or {}).get("render_fps", 30))
            write_video(media_writer(self._log.tb_logger), name, video, step, fps)

    def write_figure(self, returns: Sequence[float], envstep: int, train_iter: int) -> None:
        """Write a figure of the returns of all ranks to ``figure_path`` and the loggers, if there is a path.

        If the file cannot be written, the error is logged.
        """
        if self.config.figure_path is not None and rank_and_world_size()[0] == 0:
            from lightning_ding.worker.evaluator.rendering import write_figure

            write_figure(self._log, self.config.figure_path, returns, envstep, train_iter)

    @override
    def close(self) -> None:
        super().close()
        self._video = None

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: counters, the best return, and when the last video was made."""
        return {**super().state_dict(), "last_film": self._last_video}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._last_video = state_dict["last_film"]

    def _now(self, envstep: int, train_iter: int) -> int:
        return train_iter if self.config.render.mode == "train_iter" else envstep

    def _run(
        self,
        stepper: EnvStepper,
        policy: EvalMode,
        plan: EpisodePlan,
        monitor: VectorEvalMonitor | None,
        policy_kwargs: Mapping[str, Any],
    ) -> None:
        policy.reset()
        acts_on_reward = policy_of(policy).acts_on_reward
        infos: EpisodeInfos | None = None
        if self.info_keys:
            from lightning_ding.worker.infos import EpisodeInfos

            infos = EpisodeInfos(self.info_keys, stepper.env.num_envs, self.info_check)
        if monitor:
            from lightning_ding.worker.evaluator.video import FrameSource

            source = FrameSource(stepper.env, lambda: self.cancel_requested)
        obs = stepper.reset(plan.first_seeds())
        while not (plan.is_finished or self.cancel_requested):
            self.steps_made += 1
            stepper.next_seed = plan.next_seeds()
            frames = source.draw(plan.drawn()) if monitor else {}
            if self.cancel_requested:
                return
            action = actions_of(policy.forward(obs, **policy_kwargs), stepper.env)
            timestep = stepper.step(action)
            if acts_on_reward:
                policy_kwargs = {**policy_kwargs, "reward": timestep.reward}
            plan.add(timestep.reward, timestep.valid)
            if infos is not None:
                infos.add(timestep)
            if monitor:
                monitor.update_video({i: frame for i, frame in frames.items() if timestep.valid[i]})
            if self.config.max_episode_steps is not None:
                timestep = self._cut_long_episodes(stepper, timestep, plan)
            obs = stepper.obs
            ended = timestep.terminated | timestep.truncated
            starts = np.flatnonzero(ended | ~timestep.valid)  # where not valid, it acted on a last observation again
            if len(starts):
                found = {SUCCESS_RATE: timestep.number(SUCCESS)} if infos is None else infos.take(timestep, ended)
                plan.record(ended, timestep.abnormal, timestep.fault, monitor, found)
                policy.reset(starts.tolist())

    def _cut_long_episodes(self, stepper: EnvStepper, timestep: Timestep, plan: EpisodePlan) -> Timestep:
        """Return the step with those episodes truncated that have reached ``max_episode_steps``."""
        cut = self._is_too_long(plan) & timestep.valid & ~(timestep.terminated | timestep.truncated)
        if not cut.any():
            return timestep
        stepper.cut(cut)
        return timestep._replace(truncated=timestep.truncated | cut)
