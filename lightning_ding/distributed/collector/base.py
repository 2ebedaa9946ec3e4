"""What all parallel collectors have in common: the loop of a task, and what is said of it."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from lightning_ding import nested
from lightning_ding.config import ConfigLike, resolve
from lightning_ding.distributed.collector.config import CollectorTaskConfig
from lightning_ding.distributed.collector.tally import Tally
from lightning_ding.distributed.collector.weights import FetchWeights, Weights

logger = logging.getLogger(__name__)

Message = dict[str, Any]


class Collected(NamedTuple):
    """What one call of a serial collector gave."""

    data: Any
    """A nested dict of tensors, leading axis of transitions."""
    returns: list[float]
    """Of the main player, of the episodes that ended."""
    lengths: list[int]
    """Of these, in env steps."""
    dropped: list[int]
    """``episode_id`` of the episodes that a fault ended."""


class BaseParallelCollector(ABC):
    """Does one task: collects and sends until it is closed, or evaluates.

    Weights change only between two messages, so that each message's transitions were acted with whole weights of one
    version, which they carry as ``policy_version``.

    Args:
        cfg: The ``collector_cfg`` of the task.
        get_policy_update_info: Called with a policy id and the number of a publication, returns ``model``, ``iter``
            and ``serial`` of the newest weights, or None if they are no newer.
        send_stepdata: Stores a nested dict of tensors and returns its handle.
        send_metadata: Sends what is said of a message, and returns the answer.
        tick: Called at each step; what it raises ends the task.

    Raises:
        ValueError: If a key is unknown or a value is out of its range.
    """

    def __init__(
        self,
        cfg: ConfigLike[CollectorTaskConfig],
        get_policy_update_info: FetchWeights,
        send_stepdata: Callable[[Any], Any],
        send_metadata: Callable[[Message], Message],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.config: CollectorTaskConfig = resolve(CollectorTaskConfig, cfg)
        self._fetch = get_policy_update_info
        self._send_stepdata = send_stepdata
        self._send_metadata = send_metadata
        self._tick_outside = tick
        self._tally = Tally()
        self._weights: list[Weights] = []
        self._env: Any = None  # with close(); what collects or evaluates in it is the serial worker
        self._collector: Any = None
        self._is_closed = False
        self._is_done = False
        self._seconds = 0.0

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _setup(self, seeds: list[np.random.SeedSequence]) -> None:
        """Make ``self._env``, the policies, ``self._weights`` (the main player's first) and the serial worker.

        Args:
            seeds: Three, to make them with.
        """

    @abstractmethod
    def _collect_once(self, random: bool, setting: Mapping[str, Any]) -> Collected:
        """Return the transitions of one message."""

    @abstractmethod
    def _evaluate(self) -> None:
        """Run the episodes of an evaluation and count them in ``self._tally``."""

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Do the task, to its end or until it is closed.

        Raises:
            TimeoutError: If there are no weights to begin with.
        """
        began = time.perf_counter()
        try:
            torch.manual_seed(self.config.seed)  # some policies explore with torch's own generator
            self._setup(np.random.SeedSequence(self.config.seed).spawn(3))
            for weights in self._weights:
                weights.wait_for_first(self._tick)
            if self.config.eval_flag:
                self._evaluate()
            else:
                self._collect()
            self._is_done = True
        except _ClosedError:
            logger.info("a task was closed before its end")
        finally:
            self._seconds = time.perf_counter() - began
            self._close_env()

    def close(self) -> None:
        """Let the task end at its next step; from any thread, any number of times."""
        self._is_closed = True

    def get_finish_info(self) -> Message:
        """Return what is to be said of the task at its end, as builtins.

        ``collector_done`` is false for an evaluation that was broken off.
        """
        env = self.config.env
        return {
            "eval_flag": self.config.eval_flag,
            "env_num": env.evaluator_env_num if self.config.eval_flag else env.collector_env_num,
            "duration": self._seconds,
            "train_iter": self.version,
            "collector_done": self._is_done or not self.config.eval_flag,
            **self._tally.summary(self._seconds),
            "finish_time": time.time(),
        }

    @property
    def version(self) -> int:
        """Updates that made the main player's weights."""
        return self._weights[0].version if self._weights else 0

    # ------------------------------------------------------------------ collecting

    def _collect(self) -> None:
        answer = self._send(None, 0.0)  # says what to collect with
        messages = 0
        while not (self._is_closed or answer["close"] or self._is_enough()):
            for weights in self._weights:
                weights.renew(answer["policy"])
            began = time.perf_counter()
            setting = {**self.config.collect_setting, **answer["collect_setting"]}
            collected = self._collect_once(bool(answer["random"]), setting)
            answer = self._send(collected, time.perf_counter() - began)
            messages += 1
            if messages % self.config.print_freq == 0:
                logger.info("%d messages, weights of version %d: %s", messages, self.version, self._tally.summary(0.0))

    def _send(self, collected: Collected | None, seconds: float) -> Message:
        """Send what was collected, or that nothing was yet, and return the answer."""
        step, episode = self._counts()
        sample = 0 if collected is None else nested.length(collected.data)
        returns = [] if collected is None else collected.returns
        metadata = {
            "data_id": None if collected is None else self._send_stepdata(collected.data),
            "policy_iter": self.version,
            "env_step": step - self._tally.step,
            "cur_episode": episode,
            "cur_sample": self._tally.sample + sample,
            "cur_step": step,
            "get_data_time": seconds,
            "returns": returns,
            "lengths": [] if collected is None else collected.lengths,
            "dropped_episodes": [] if collected is None else collected.dropped,
        }
        answer = self._send_metadata(metadata)
        self._tally.step = step
        self._tally.sample += sample
        self._tally.add_episodes(returns)
        return answer

    def _counts(self) -> tuple[int, int]:
        """Return the env steps and episodes that were collected since the task began."""
        return self._collector.envstep, self._collector.episode

    def _close_env(self) -> None:
        """Close the env, if ``_setup`` got as far as that."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _is_enough(self) -> bool:
        return self.config.n_episode is not None and self._counts()[1] >= self.config.n_episode

    def _tick(self) -> None:
        self._tick_outside()
        if self._is_closed:
            raise _ClosedError

    def _ticking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that ticks each time before it is called."""

        def tick_and_call(*args: Any, **kwargs: Any) -> Any:
            self._tick()
            return function(*args, **kwargs)

        return tick_and_call


class _ClosedError(Exception):
    """The task was closed while something went on; what is not sent yet is dropped."""
