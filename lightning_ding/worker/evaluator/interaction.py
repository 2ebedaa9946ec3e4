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
from lightning_ding.policy.modes import EvalMode
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.actions import actions_of
from lightning_ding.worker.arguments import check_policy_kwargs, check_switches
from lightning_ding.worker.evaluator.base import ISerialEvaluator, SaveFunction
from lightning_ding.worker.evaluator.pictures import Pictures
from lightning_ding.worker.evaluator.plan import EpisodePlan
from lightning_ding.worker.evaluator.sharding import rank_and_world_size, run_sharded
from lightning_ding.worker.evaluator.video import MAX_FRAMES, check_can_render, frames_of
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker_config import EvaluatorConfig


@SERIAL_EVALUATOR_REGISTRY.register("interaction")
class InteractionSerialEvaluator(ISerialEvaluator):
    """Runs a fixed quota of greedy episodes in each env.

    In an env with autoreset disabled every episode has a seed of its own, so that the result does not depend on how
    many envs or ranks share the work. In the other modes only the first episode of each env can be seeded.

    An episode that a fault of its env cuts short is not counted but run again.

    Args:
        cfg: An ``EvaluatorConfig``, or a mapping to merge over its defaults.
        env: A gymnasium vector env; its owner closes it.
        policy: A policy, or its eval mode.
        tb_logger: A TensorBoard ``SummaryWriter`` or a Lightning logger, for numbers, films and figures; or None.
        exp_name: Part of the name of the logger of Python's logging.
        instance_name: Tells several evaluators apart, in logs and names of figures.
        seed: Of the episodes, together with the number of the evaluation; see :meth:`run`.

    Raises:
        ValueError: If a config key is unknown or does nothing here, or a value is out of range.
        ImportError: If there is a ``figure_path`` and the extra ``video`` is not installed.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"eval_freq", "n_episode", "stop_value", "fixed_starts", "max_episode_steps", "render", "figure_path"}
    )
    gives_up: bool = False
    """Set from another thread, breaks an evaluation off; until it is unset, none runs."""

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
        self.best_return = -np.inf
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._pictures = Pictures(self.config, self._log)
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
        """Take ``env`` if it is given; episodes begin with the next evaluation."""
        if env is not None:
            stepper, limit = EnvStepper(env), self.config.max_episode_steps
            require(limit is None or stepper.can_cut, "max_episode_steps", 'None with mode="native"', limit)
            self._stepper = stepper

    def reset_policy(self, policy: EvalMode | None = None) -> None:
        """Reset the policy's evaluating state, after taking ``policy`` if it is given."""
        if policy is not None:
            self._policy = getattr(policy, "eval_mode", policy)
        if self._policy is not None:
            self._policy.reset()

    def reset(self, policy: EvalMode | None = None, env: VectorEnv | None = None) -> None:
        """Take what is given and forget the best return, all evaluations and the last film."""
        self.evaluations = 0
        self.best_return = -np.inf
        self._last_eval_iter = None
        self._pictures.last_film = None
        self.reset_env(env)
        self.reset_policy(policy)

    def should_render(self, envstep: int, train_iter: int) -> bool:
        """Return whether the config asks for a film of an evaluation made now; asking changes nothing."""
        return self._pictures.is_film_due(envstep, train_iter)

    def check_can_film(self) -> None:
        """Raise if a film could not be made or written.

        Raises:
            ValueError: If the envs give no frames, or the logger takes no films.
            ImportError: If the extra ``video`` is not installed.
        """
        self._pictures.check(self._parts()[0].env)

    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
        force_render: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Evaluate, remember when and how well, and write it to the loggers.

        If ``torch.distributed`` is initialised, every rank has to call this and runs its share of the episodes; all of
        them get the same answer. Films show the episodes of rank zero.

        Args:
            save_ckpt_fn: Called with a file name when the mean return is the best so far; on every rank, because
                saving may need all of them, as ``Trainer.save_checkpoint`` does.
            train_iter: Updates done; a negative number says nothing of when it was.
            envstep: Environment steps done.
            n_episode: Episodes over all ranks; None takes the config's.
            force_render: Film this evaluation, whatever the config says.
            policy_kwargs: Arguments of the policy's ``forward``.

        Returns:
            Whether the mean return reached ``stop_value`` after at least one update, and plain Python numbers:
            ``eval_episode_return`` and ``eval_episode_length`` of each episode, ``return_mean``, ``return_std``,
            ``return_min``, ``return_max``, ``train_iter`` and ``envstep``.

        Raises:
            ValueError: If there are fewer episodes than ranks, or none; or a film is due and the envs give no frames,
                or the logger takes none.
            TypeError: If an argument is of the wrong type.
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
            ImportError: If a film is due and the extra ``video`` is not installed.
        """
        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        check_switches(force_render=force_render)
        check_policy_kwargs(policy_kwargs)
        films = force_render or self.should_render(envstep, train_iter)
        if films:
            self.check_can_film()
        started = perf_counter()
        total = self.config.n_episode if n_episode is None else n_episode
        films_here = films and rank_and_world_size()[0] == 0
        table = run_sharded(lambda episodes: self.run(episodes, films_here, policy_kwargs), total)
        returns, lengths = table[0].tolist(), table[1].astype(int).tolist()
        self._write(returns, lengths, perf_counter() - started, train_iter, envstep)
        if films:
            self.write_film(envstep, train_iter)
        self.write_figure(returns, envstep, train_iter)
        self._note_eval(train_iter)
        mean = float(np.mean(returns))
        self._save_if_best(mean, save_ckpt_fn)
        stop = self.config.stop_value is not None and mean >= self.config.stop_value and train_iter > 0
        info = {"eval_episode_return": returns, "eval_episode_length": lengths, **_summary(returns)}
        return stop, {**info, "train_iter": train_iter, "envstep": envstep}

    def run(
        self,
        episodes: Sequence[int],
        film: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
        number: int | None = None,
    ) -> tuple[list[float], list[int]]:
        """Run episodes and return their returns and lengths.

        Args:
            episodes: Their numbers, from which their seeds come; E >= 1 of them.
            film: Keep the frames of the episodes for :meth:`write_film` and :meth:`pop_video`.
            policy_kwargs: Arguments of the policy's ``forward``.
            number: Number of the evaluation, >= 0, from which the seeds come too unless ``fixed_starts`` is set; None
                counts the calls.

        Returns:
            E returns and E lengths in env steps, in the order of ``episodes``; all NaN and 0 if it gave up.

        Raises:
            RuntimeError: If there is no env or no policy, or the envs report more faults than there are episodes.
            ValueError: If ``episodes`` is empty, the policy gives no actions or of a wrong shape, or ``film`` is true
                and the envs give no frames.
        """
        stepper, policy = self._parts()
        if film:
            check_can_render(stepper.env)
        plan = EpisodePlan(episodes, stepper, self.seed, self._number(number))
        self._run(stepper, policy, plan, film, policy_kwargs or {})
        if not plan.monitor.is_finished():
            return [float("nan")] * len(episodes), [0] * len(episodes)
        self._video = plan.monitor.get_video(MAX_FRAMES)
        return plan.results()

    def pop_video(self) -> NDArray[np.uint8] | None:
        """Return the films of the last run's worst, median and best episodes, and forget them.

        Returns:
            As :meth:`VectorEvalMonitor.get_video`, at most 300 frames; None if the last run was not filmed.
        """
        video, self._video = self._video, None
        return video

    def write_film(self, envstep: int, train_iter: int) -> None:
        """Write the film of the last run to the logger, if it was filmed here, and note when the last film was."""
        stepper, _ = self._parts()
        self._pictures.write_film(self.pop_video(), stepper.env, envstep, train_iter)

    def write_figure(self, returns: Sequence[float], envstep: int, train_iter: int) -> None:
        """Write a figure of the returns of all ranks, if there is a ``figure_path``."""
        self._pictures.write_figure(returns, envstep, train_iter)

    def close(self) -> None:
        """Forget env and policy; the env is left open for whoever made it."""
        self._stepper = None
        self._policy = None
        self._video = None

    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint: the evaluations so far, their best return, and when the last film was."""
        own = {"best_return": float(self.best_return), "evaluations": self.evaluations}
        return {**super().state_dict(), **own, "last_film": self._pictures.last_film}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        super().load_state_dict(state_dict)
        self.best_return = state_dict["best_return"]
        self.evaluations = state_dict["evaluations"]
        self._pictures.last_film = state_dict["last_film"]

    def _parts(self) -> tuple[EnvStepper, EvalMode]:
        if self._stepper is None or self._policy is None:
            raise RuntimeError("the evaluator needs an env and a policy: pass them to the constructor or to reset")
        return self._stepper, self._policy

    def _run(
        self, stepper: EnvStepper, policy: EvalMode, plan: EpisodePlan, film: bool, policy_kwargs: Mapping[str, Any]
    ) -> None:
        policy.reset()
        obs = stepper.reset(plan.first_seeds())
        totals = np.zeros(stepper.env.num_envs)
        steps = np.zeros(stepper.env.num_envs, dtype=np.int64)
        while not (plan.monitor.is_finished() or self.gives_up):
            self.steps_made += 1
            stepper.next_seed = plan.next_seeds()
            frames = frames_of(stepper.env) if film else []
            action = actions_of(policy.forward(obs, **policy_kwargs), stepper.env)
            timestep = stepper.step(action)
            totals += timestep.reward * timestep.valid
            steps += timestep.valid
            if film:
                plan.monitor.update_video({i: frames[i] for i in np.flatnonzero(timestep.valid).tolist()})
            if self.config.max_episode_steps is not None:
                timestep = self._cut_long_episodes(stepper, timestep, steps)
            obs = stepper.obs
            ended = timestep.terminated | timestep.truncated
            starts = np.flatnonzero(ended | ~timestep.valid)  # where not valid, it saw the last observation once more
            if len(starts):
                plan.record(timestep, totals, steps)
                policy.reset(starts.tolist())
                totals[ended] = 0
                steps[ended] = 0

    def _cut_long_episodes(self, stepper: EnvStepper, timestep: Timestep, steps: NDArray[np.int64]) -> Timestep:
        """Return the step with the episodes truncated that have reached ``max_episode_steps``."""
        cut = self._is_too_long(steps) & timestep.valid & ~(timestep.terminated | timestep.truncated)
        if not cut.any():
            return timestep
        stepper.cut(cut)
        return timestep._replace(truncated=timestep.truncated | cut)

    def _save_if_best(self, mean: float, save_ckpt_fn: SaveFunction | None) -> None:
        if mean > self.best_return:
            self.best_return = mean
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best.ckpt")

    def _write(self, returns: list[float], lengths: list[int], seconds: float, train_iter: int, envstep: int) -> None:
        n_episode, n_envstep = len(returns), sum(lengths)
        values = {
            "episode_count": n_episode,
            "envstep_count": n_envstep,
            "avg_envstep_per_episode": n_envstep / n_episode,
            "evaluate_time": seconds,
            "avg_time_per_episode": seconds / n_episode,
            "avg_envstep_per_sec": n_envstep / seconds,
        }
        self._log.write({**values, **_summary(returns)}, train_iter, envstep)


def _summary(returns: list[float]) -> dict[str, float]:
    numbers = {"mean": np.mean(returns), "std": np.std(returns), "min": np.min(returns), "max": np.max(returns)}
    return {f"return_{name}": float(value) for name, value in numbers.items()}
