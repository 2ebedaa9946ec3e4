"""The vector envs of a run, and the evaluations in them, with the episodes distributed over the ranks.

Shapes: E episodes of an evaluation over all ranks.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_ding.config import require
from lightning_ding.datamodules.resume import Seeds
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.named import EnvLike
from lightning_ding.envs.vector import MODES, AutoresetName, EnvTimeout, SaysProgress, VectorMode
from lightning_ding.utils.ranks import sum_over_ranks
from lightning_ding.worker import InteractionSerialEvaluator, create_serial_evaluator, get_serial_evaluator_cls

Stage = Literal["validate", "test"]
SLOW = 5.0  # seconds
FIXED = frozenset(
    {
        *(
            "env_id",
            "mode",
            "wrappers",
            "env_kwargs",
            "env_timeout",
            "num_workers",
            "train_wrappers",
            "eval_wrappers",
            "eval_env_id",
        ),
        *("eval_env_kwargs", "import_names", "info_keys", "monitor", "eval_every", "checkpoint_every", "overlap"),
        *("norm_obs", "norm_reward", "demonstrations"),
    }
)
"""Options that are checked or translated by the constructor, so that a later value would have no effect or only half
of it. Others, such as ``max_env_step``, may be set between two fits."""
NOT_KEPT = frozenset({"demonstrations"})
"""The names among them that are no attributes."""


class RunEnvs:
    """Makes the vector envs of a run, and closes them.

    Args:
        mode: How the envs are stepped.
        env_timeout: Time limits for an env.
        import_names: Modules that the process of an env imports first.
        num_workers: Number of env processes, at most one for each env; None for the number of cores.
    """

    def __init__(
        self,
        mode: VectorMode,
        env_timeout: EnvTimeout,
        import_names: Sequence[str],
        num_workers: int | None = None,
    ) -> None:
        self.mode: VectorMode = mode
        self._num_workers = num_workers
        self.opened: list[VectorEnv] = []
        """The open envs, which :meth:`close` closes; further ones may be added."""
        self._options: dict[str, Any] = {"env_timeout": env_timeout, "import_names": import_names}
        self._making: str | None = None
        self._checked: tuple[int, ...] | None = None  # ids of what the envs were made of that were checked last

    def make(
        self,
        env_id: EnvLike,
        num_envs: int,
        wrappers: Sequence[Callable[[Any], Any]],
        env_kwargs: Mapping[str, Any],
        autoreset: AutoresetName | None,
        restarts: bool,
    ) -> VectorEnv:
        """Return a new vector env, whose first env is checked unless the last ones were made of the same parts.

        Args:
            env_id: The env.
            num_envs: Number of envs, >= 1.
            wrappers: Wrappers of each env, the innermost first.
            env_kwargs: Arguments of the env.
            autoreset: When an env is reset; None for the default of the mode.
            restarts: Whether the process of an env is replaced when it fails.
        """
        parts = (id(env_id), id(env_kwargs), *map(id, wrappers))
        made = {
            **self._options,
            "check_api": parts != self._checked,
            "on_env_error": "restart" if restarts else "raise",
            "num_workers": None if self._num_workers is None else min(self._num_workers, num_envs),
        }
        self._making = f"an env of {plain(env_id)}, which is made, reset or stepped for the first time"
        try:
            with said_if_slow(f"making {num_envs} envs of {plain(env_id)}"):
                env = make_vector_env(env_id, num_envs, self.mode, None, wrappers, env_kwargs, autoreset, **made)
        finally:
            self._making = None
        self._checked = parts
        self.opened.append(env)
        return env

    def in_progress(self) -> str | None:
        """Return which env is made, or is in which step or reset now, or None; native vector envs do not say it."""
        if self._making is not None:
            return self._making
        cores = [env.unwrapped for env in self.opened]
        found = (core.in_progress() for core in cores if isinstance(core, SaysProgress))
        return next((text for text in found if text is not None), None)

    def close(self) -> None:
        """Close the envs, and end their processes. The next envs are checked again."""
        self._checked = None
        envs, self.opened = self.opened, []
        for env in envs:
            env.close()
        if envs and MODES[self.mode].has_processes:
            from lightning_ding.envs.process.processes import end_fork_server

            end_fork_server()


class Evaluation:
    """Runs this rank's share of the episodes of each evaluation of a policy.

    Args:
        trainer: The Trainer.
        policy: The policy to evaluate.
        n_episode: Number of episodes over all ranks, at least one for each rank; None means the policy's
            ``eval.evaluator.n_episode``.

    Raises:
        ValueError: If there are fewer episodes than ranks, or the evaluator cannot distribute its episodes over ranks.
    """

    def __init__(self, trainer: Trainer, policy: Any, n_episode: int | None) -> None:
        self.config = policy.config.eval.evaluator
        self.n_episode: int = n_episode or self.config.n_episode
        ranks = trainer.world_size
        require(self.n_episode >= ranks, "n_episode", f"at least one for each of {ranks} ranks", self.n_episode)
        self.episodes = range(self.n_episode)[trainer.global_rank :: ranks]
        """Numbers of the episodes that this rank runs."""
        is_known = issubclass(get_serial_evaluator_cls(self.config), InteractionSerialEvaluator)
        allowed = "that of an InteractionSerialEvaluator, such as 'interaction' (the callback RunEvaluator runs others)"
        require(is_known, "eval.evaluator.type", allowed, self.config.type)
        if self.config.render.render_freq > 0:
            from lightning_ding.worker.evaluator.video import choose_mujoco_gl

            choose_mujoco_gl()  # before the envs are made, in this process or in others
        self._trainer = trainer
        self._policy = policy

    def make_evaluator(self, env: VectorEnv, seed: int, stage: Stage) -> InteractionSerialEvaluator:
        """Make the evaluator from the vector env and the seed of the run. The policy must have the env's spaces."""
        media = None
        if self._trainer.loggers:
            from lightning_ding.worker.evaluator.rendering import LoggerMedia

            media = LoggerMedia(self._trainer.loggers)
        self.evaluator: InteractionSerialEvaluator = create_serial_evaluator(  # type: ignore[assignment]
            self.config,
            env=env,
            policy=self._policy.eval_mode,
            tb_logger=media,
            seed=Seeds(seed).evaluation(stage),
            instance_name="test" if stage == "test" else "eval",
        )
        if self.config.render.render_freq > 0:
            self.evaluator.check_can_render()
        return self.evaluator

    def run(self) -> dict[str, Any]:
        """Return the results of this rank's episodes, shape (E,) each, zero for the episodes of other ranks.

        They are ``episode_return``, ``episode_length`` and ``infos``: numbers of the infos by name, ``success_rate``
        and those of ``info_keys``, NaN where the env gives none.
        """
        evaluator, progress = self.evaluator, self._policy.progress
        now = {"envstep": progress.env_step, "train_iter": progress.train_iter}
        renders = evaluator.should_render(**now)
        number = 0 if self._trainer.testing else progress.train_iter
        results = evaluator.run(self.episodes, video=renders and self._trainer.is_global_zero, number=number)
        infos = evaluator.infos_of(self.episodes)
        table = torch.zeros(2 + len(infos), self.n_episode)
        table[:, self.episodes] = torch.tensor([*results, *infos.values()])
        if renders:
            evaluator.write_video(**now)
        if evaluator.config.figure_path is not None:
            evaluator.write_figure(sum_over_ranks(table[0]).tolist(), **now)
        by_name = dict(zip(infos, table[2:], strict=True))
        return {"episode_return": table[0], "episode_length": table[1], "infos": by_name}


@contextmanager
def said_if_slow(what: str, seconds: float = SLOW) -> Iterator[None]:
    """Log one line if the body of the ``with`` statement takes longer, while it still runs.

    Args:
        what: Description of the body, such as "making 2 envs".
        seconds: Longest time without the line, > 0.
    """
    timer = threading.Timer(seconds, rank_zero_info, (f"{what} takes longer than {seconds:g} s",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def plain(value: Any) -> Any:
    """Return an argument as None, booleans, numbers, strings, lists and dicts; callables are given by their names.

    Example:
        >>> plain({"env_id": partial(dict, a=1), "wrappers": (plain,), "seed": np.int64(3)})
        {'env_id': 'builtins.dict', 'wrappers': ['lightning_ding.datamodules.run_envs.plain'], 'seed': 3}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if isinstance(value, partial):
        return plain(value.func)
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Iterable):
        return [plain(below) for below in value]
    return getattr(value, "id", None) or str(value)  # an EnvSpec has an id


class FixedOptions:
    """Refuses to set an option that is read once, instead of ignoring it."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            AttributeError: For an option that only the constructor takes.
        """
        is_parameter = name in NOT_KEPT and name in inspect.signature(type(self)).parameters
        if name in FIXED and (name in vars(self) or is_parameter):
            raise AttributeError(
                f"{name} cannot be set later: pass it to the constructor of a new {type(self).__name__}"
            )
        super().__setattr__(name, value)
