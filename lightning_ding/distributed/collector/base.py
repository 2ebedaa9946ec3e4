"""The interface of parallel collectors, and the statistics of their episodes."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from easydict import EasyDict

from lightning_ding import nested
from lightning_ding.config import ConfigLike, resolve, to_easydict
from lightning_ding.distributed.config import CollectorTaskConfig
from lightning_ding.distributed.published_weights import FetchWeights, PolicyWeights
from lightning_ding.distributed.transport import Message
from lightning_ding.envs.handle import EnvSettings, apply_setting, settings_of
from lightning_ding.policy.factory import create_policy
from lightning_ding.registry import PARALLEL_COLLECTOR_REGISTRY
from lightning_ding.rl.running import combine_moments, moments
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.modes import not_implemented
from lightning_ding.worker.base import get_class

logger = logging.getLogger(__name__)

Functions = tuple[FetchWeights, Callable[[Any], Any], Callable[[Message], Message]]
"""Functions that fetch weights, store transitions and return their handle, and send a message and return the answer."""
LATEST = 1000  # newest returns that are kept individually, since a task may last for weeks


class BaseParallelCollector:
    """Does one task: collects and sends transitions until it is closed, or evaluates.

    Weights change only between two messages. All transitions of a message are therefore collected with weights of the
    same version, which each transition stores as ``policy_version``.

    The functions are attributes and may be set after the constructor; ``start`` needs them. Each may also have
    another form, and a subclass may implement the parts of a step itself, see
    :mod:`lightning_ding.di_engine.collector_forms`; its ``cfg`` may then have further keys. Other subclasses implement
    :meth:`_setup`.

    Args:
        cfg: The ``collector_cfg`` of the task.
        get_policy_update_info: Function that returns the newest weights, see ``FetchWeights``.
        send_stepdata: Function that stores a nested dict of tensors and returns its handle.
        send_metadata: Function that sends the metadata of a message and returns the answer.
        tick: Function that is called at each step; an error that it raises ends the task.

    Raises:
        ValueError: If a key is unknown or a value is out of range.
    """

    policy: Any = None
    """The policy that acts, or its mode."""
    env_manager: Any = None
    """The envs."""
    is_attached = False
    """Whether the functions are those of a comm worker, which have the form that is called here."""
    ask: Callable[[], Message] | None = None
    """Function that waits a little and returns new settings, for a collector that has to wait for newer weights;
    without one it collects on."""

    def __init__(
        self,
        cfg: ConfigLike[CollectorTaskConfig],
        get_policy_update_info: Callable[..., Any] | None = None,
        send_stepdata: Callable[..., Any] | None = None,
        send_metadata: Callable[[Message], Any] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._cfg: Any = cfg
        self._has_own_steps = hasattr(type(self), "_policy_inference")
        if isinstance(cfg, Mapping):
            cfg = foreign("parallel_config").task_of(cfg, self._has_own_steps)
        self.config: CollectorTaskConfig = resolve(CollectorTaskConfig, cfg)
        self.get_policy_update_info = get_policy_update_info
        self.send_stepdata = send_stepdata
        self.send_metadata = send_metadata
        self.tick = tick
        self._functions: Functions | None = None
        self._statistics = TaskStatistics()
        self._weights: list[PolicyWeights] = []
        self._settings, self._settings_text = EnvSettings(), ""  # of the envs, as last applied
        self._env: Any = None  # env of the serial collector or evaluator, closed at the end
        self._collector: Any = None
        self._evaluator: Any = None
        self._limit: dict[str, int | None] = {}  # longest episode of an evaluation, from the policy's config
        self._end_flag = False
        self._is_done = False
        self._seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return foreign("collector_forms").method_of(self, name)

    # ------------------------------------------------------------------ for subclasses

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults of a task as an ``EasyDict``."""
        return EasyDict(to_easydict(CollectorTaskConfig()), cfg_type=f"{cls.__name__}Dict")

    def _setup(self, seeds: list[np.random.SeedSequence]) -> None:
        """Make the env, the policies, their weights (the main player's first) and the serial worker.

        Args:
            seeds: Three seeds: of the envs, of the policies, and of evaluations.
        """
        raise not_implemented(self, "_setup")

    def _collect_once(self, random: bool, setting: Mapping[str, Any]) -> tuple[Any, Message]:
        """Return the transitions of one message, leading axis of transitions, and the metadata of its episodes."""
        collector, amount = self._collector, (self.config.n_sample, self.policy_version)
        options = {"random_collect": random, "policy_kwargs": setting}
        if not collector.collects_whole_episodes:
            options["drop_extra"] = False
        found = collector.collect(*amount, **options)
        (returns, lengths), names = collector.pop_episodes(), collector.pop_infos()
        rows = [dict(zip(names, infos, strict=True)) for _, _, _, *infos in collector.pop_records()]
        infos = [{name: value for name, value in row.items() if math.isfinite(value)} for row in rows]
        ended = {"returns": returns, "lengths": lengths, "dropped_episodes": collector.pop_dropped_episodes()}
        return self._transitions(found), {**ended, "infos": infos} if any(infos) else ended

    def _transitions(self, found: Any) -> Any:
        """Return the transitions in a result of the serial collector."""
        return found

    def _evaluate(self) -> None:
        """Run the episodes of an evaluation and count them in ``self._statistics``."""
        returns, lengths = self._evaluator.run(range(self.config.n_episode or 0))
        self._statistics.add_episodes(self._own_returns(returns))
        self._statistics.step += sum(lengths)

    def _own_returns(self, returns: Any) -> list[float]:
        """Return the returns of the main player among those of an evaluator."""
        return list(returns)

    def _add_policy(self, path: str, seed: np.random.SeedSequence, is_renewed: bool = True) -> Any:
        """Make a policy for the env, register its weights, and return its mode, which calls ``tick`` at each step."""
        config, env = self.config, self._env
        policy = create_policy(config.policy, enable_field=["eval" if config.eval_flag else "collect"])
        policy.build(env.single_observation_space, env.single_action_space)
        policy.seed(seed)
        self._limit = {"max_episode_steps": policy.config.eval.evaluator.max_episode_steps}
        mode: Any = policy.eval_mode if config.eval_flag else policy.collect_mode
        assert self._functions is not None
        self._weights.append(PolicyWeights(path, self._functions[0], mode, config.update_policy_second, is_renewed))
        self.policy, self.env_manager = self.policy or mode, self._env
        step = "forward" if config.eval_flag else "process_transition"
        function = getattr(mode, step)

        def tick_and_call(*args: Any, **kwargs: Any) -> Any:
            self._tick()
            return function(*args, **kwargs)

        return mode._replace(**{step: tick_and_call})

    # ------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Do the task until it ends or is closed.

        Raises:
            TimeoutError: If no weights are published in time.
            RuntimeError: If a function that it needs was not given.
        """
        began = time.perf_counter()
        if self._has_own_steps:
            foreign("collector_forms").run_steps(self)
            return
        given: Any = (self.get_policy_update_info, self.send_stepdata, self.send_metadata)
        self._functions = given if self.is_attached else foreign("collector_forms").functions_of(self)
        try:
            torch.manual_seed(self.config.seed)  # some policies explore with torch's global generator
            self._setup(np.random.SeedSequence(self.config.seed).spawn(3))
            for weights in self._weights:
                weights.wait_for_first(self._tick)
            if self._apply_settings() and not self.config.eval_flag:
                self._collector.reset_env()  # so that the first episodes begin with them
            if self.config.eval_flag:
                self._evaluate()
            else:
                self._collect()
            self._is_done = True
        except _ClosedError:
            logger.info("a task was closed before its end")
        finally:
            self._seconds = time.perf_counter() - began
            env, self._env = self._env, None
            if env is not None:
                env.close()

    def close(self) -> None:
        """End the task at its next step; may be called from any thread and repeatedly."""
        self._end_flag = True
        if self._has_own_steps:
            self._join_thread()

    def get_finish_info(self) -> Message:
        """Return the summary of the task as builtins.

        ``collector_done`` is false for an evaluation that was closed before its end.
        """
        env = self.config.env
        return {
            "eval_flag": self.config.eval_flag,
            "env_num": env.evaluator_env_num if self.config.eval_flag else env.collector_env_num,
            "duration": self._seconds,
            "train_iter": self.policy_version,
            "collector_done": self._is_done or not self.config.eval_flag,
            **self._statistics.summary(self._seconds),
            "finish_time": time.time(),
        }

    @property
    def policy_version(self) -> int:
        """Number of updates that produced the weights of the main player."""
        return self._weights[0].policy_version if self._weights else 0

    # ------------------------------------------------------------------ collecting

    def _collect(self) -> None:
        nothing: Message = {"returns": [], "lengths": [], "dropped_episodes": []}
        answer = self._send(None, nothing, 0.0)  # the answer contains the first settings
        messages, enough = 0, math.inf if self.config.n_episode is None else self.config.n_episode
        while not (self._end_flag or answer["close"] or self._counts()[1] >= enough):
            for weights in self._weights:
                weights.renew(answer["policy"])
            self._apply_settings()
            if answer.get("hold", False) and self.ask is not None:
                self._tick()
                answer = self.ask()
                continue
            began = time.perf_counter()
            setting = {**self.config.collect_setting, **answer["collect_setting"]}
            data, ended = self._collect_once(bool(answer["random"]), setting)
            answer = self._send(data, ended, time.perf_counter() - began)
            messages += 1
            if messages % self.config.print_freq == 0:
                summary = self._statistics.summary(0.0)
                reported = None if self.policy is None else policy_of(self.policy).module.collect_metrics
                if reported is not None:  # by the main player's ``_forward_collect``
                    summary |= {f"collect/{name}": value for name, value in reported.flush().items()}
                logger.info("%d messages, policy version %d: %s", messages, self.policy_version, summary)

    def _apply_settings(self) -> bool:
        """Make the settings of envs that came with the weights of the main player; return whether any was new."""
        text = self._weights[0].env_settings if self._weights else ""
        if text == self._settings_text:
            return False
        self._settings_text = text
        changed = self._settings.update(settings_of(text, self.config.eval_flag))
        for setting in changed:
            apply_setting(self._env, setting)
        return bool(changed)

    def _send(self, data: Any, ended: Message, seconds: float) -> Message:
        """Send collected transitions, or None at the beginning of a task, and return the answer."""
        assert self._functions is not None
        _, store, send = self._functions
        step, episode = self._counts()
        sample = 0 if data is None else nested.length(data)
        metadata = {
            "policy_iter": self.policy_version,
            "env_step": step - self._statistics.step,
            "cur_episode": episode,
            "cur_sample": self._statistics.sample + sample,
            "cur_step": step,
            "get_data_time": seconds,
        }
        handle = None if data is None else store(nested.to_tensor(data))
        answer = send({"data_id": handle, **metadata, **ended})
        self._statistics.step = step
        self._statistics.sample += sample
        self._statistics.add_episodes(ended["returns"])
        return answer

    def _counts(self) -> tuple[int, int]:
        """Return the env steps and the episodes since the start of the task."""
        return self._collector.envstep, self._collector.episode

    def _tick(self) -> None:
        self.tick()
        if self._end_flag:
            raise _ClosedError


class _ClosedError(Exception):
    """The task was closed during a step; transitions that are not sent yet are dropped."""


def create_parallel_collector(cfg: Any, **kwargs: Any) -> BaseParallelCollector:
    """Return a collector of the class that ``cfg.type`` names, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_parallel_collector_cls(cfg)(cfg, **kwargs)


def get_parallel_collector_cls(cfg: Any) -> type[BaseParallelCollector]:
    """Return the class of the collector that ``cfg.type`` names.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    found: type[BaseParallelCollector] = get_class(PARALLEL_COLLECTOR_REGISTRY, cfg)
    return found


class TaskStatistics:
    """Counts episodes, env steps and transitions of a task, in bounded memory."""

    def __init__(self) -> None:
        self.episode = 0
        self.step = 0
        self.sample = 0
        self._returns: deque[float] = deque(maxlen=LATEST)
        self._moments = moments(torch.empty(0))

    def add_episodes(self, returns: Sequence[float]) -> None:
        """Count ended episodes by their returns."""
        self.episode += len(returns)
        self._moments = combine_moments(*self._moments, *moments(torch.tensor(returns, dtype=torch.float64)))
        self._returns.extend(returns)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return counts, averages per episode, and mean and standard deviation of the returns.

        Args:
            seconds: Duration of the task.

        Returns:
            Builtins; mean and standard deviation are None without an episode.
        """
        episodes = max(1, self.episode)
        known = self.episode > 0
        _, mean, m2 = self._moments
        return {
            "real_episode_count": self.episode,
            "step_count": self.step,
            "sample_count": self.sample,
            "avg_time_per_episode": seconds / episodes,
            "avg_step_per_episode": self.step / episodes,
            "avg_sample_per_episode": self.sample / episodes,
            "reward_mean": mean.item() if known else None,
            "reward_std": (m2 / episodes).sqrt().item() if known else None,
            "reward_raw": list(self._returns),
        }
