"""Parallel collectors in DI-engine's form: functions that take other arguments, and classes with the parts of a step.

A collector fetches weights with ``(path, serial)``, stores the columns of a message with ``(data)``, sends the message
with ``(metadata)`` and gets an answer. In DI-engine's form these functions take ``(path)``, or ``(data_id, sample)``
for each transition, and return nothing.
"""

from __future__ import annotations

import inspect
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning_ding import nested
from lightning_ding.distributed.collector.base import BaseParallelCollector, Functions
from lightning_ding.distributed.transport import Message
from lightning_ding.utils.modes import not_implemented

logger = logging.getLogger(__name__)

NEWER = 2**62  # serial number above all others: ask for newer weights at every opportunity


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with ``count`` positional arguments.

    Example:
        >>> takes(lambda path: None, 2), takes(lambda path, serial=-1: None, 2)
        (False, True)
    """
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def answer_of_no_coordinator(metadata: Message) -> Message:
    """Return the answer to a message that no coordinator receives: continue with the settings of the task."""
    return {"accepted": True, "close": False, "wait": 0.0, "policy": {}, "collect_setting": {}, "random": False}


def functions_of(collector: BaseParallelCollector) -> Functions:
    """Return the functions of a collector in the form that it calls, whichever form each of them has.

    Raises:
        RuntimeError: If a function is missing.
    """
    names = ("get_policy_update_info", "send_stepdata", "send_metadata")
    given = [getattr(collector, name) for name in names]
    if None in given:
        needed = "get_policy_update_info, send_stepdata and send_metadata"
        raise RuntimeError(f"{type(collector).__name__} needs {needed}: pass them, or set them before start()")
    report = getattr(collector, "report", answer_of_no_coordinator)
    fetch, store, send = given
    calls = Calls(fetch, store, send, report, collector.config.policy_update_path)
    return calls.fetch, calls.store, calls.send


class Calls:
    """The functions of a collector, of which some may take the path alone, or ``(data_id, sample)`` of a transition.

    Args:
        fetch: Returns the newest weights, see ``FetchWeights``; or takes the path, and returns ``model``, a state dict,
            and ``iter``, the updates that produced it, or None if there is nothing new. An ``OSError``, for example
            because there is no file yet, means the same.
        store: Stores a nested dict of tensors and returns its handle, or stores a transition.
        send: Sends the metadata of a message, and returns the answer or None; or those of a transition.
        report: Sends the counts of a message whose answer is not known yet, and returns it.
        paths: Ids of the policies.
    """

    def __init__(self, fetch: Any, store: Any, send: Any, report: Callable[[Message], Message], paths: Any) -> None:
        self._asks_always, self._sends_samples = not takes(fetch, 2), not takes(store, 1)
        self._fetch, self._store, self._send, self._report, self._paths = fetch, store, send, report, paths

    def fetch(self, path: str, serial: int) -> Mapping[str, Any] | None:
        """Return the weights if they are newer than ``serial``, the number of updates for a function of the path."""
        if not self._asks_always:
            found: Mapping[str, Any] | None = self._fetch(path, serial)
            return found
        try:
            info = self._fetch(path)
        except OSError as error:
            logger.debug("no weights of %r: %s", path, error)
            return None
        if info is None or int(info["iter"]) <= serial:
            return None
        return {**info, "serial": int(info["iter"])}

    def store(self, data: Any) -> Any:
        """Store transitions and return their handle; transitions that are sent one by one are returned themselves."""
        return data if self._sends_samples else self._store(data)

    def send(self, message: Message) -> Message:
        """Send a message and return the answer."""
        metadata = {name: value for name, value in message.items() if name != "data_id"}
        if not self._sends_samples:
            answer = self._send(message)
            answer = answer if isinstance(answer, dict) else self._report(metadata)
        else:
            if message["data_id"] is not None:
                self._send_each(message["data_id"], metadata)
            answer = self._report(metadata)
        return {**answer, "policy": dict.fromkeys(self._paths, NEWER)} if self._asks_always else answer

    def _send_each(self, data: Any, metadata: Message) -> None:
        """Send each transition and its metadata; at the end of an episode also the counts of the task."""
        counts = {name: metadata[name] for name in ("cur_episode", "cur_sample", "cur_step")}
        for sample in nested.unbind(data):
            env_id = int(sample["env_id"])  # type: ignore[index,arg-type]
            about = {
                "eval_flag": False,
                "data_id": f"env_{env_id}_{uuid.uuid4().hex}",
                "env_id": env_id,
                "policy_iter": metadata["policy_iter"],
                "unroll_len": 1,
                "compressor": "none",
                "get_data_time": time.time(),
                "priority": 1.0,
                **counts,
            }
            reference = self._store(about["data_id"], {**sample, "done": sample["terminated"]})  # type: ignore[dict-item,index]
            self._send(about if reference is None else {**about, "object_ref": reference})
        if metadata["returns"]:
            info = {"eval_flag": False, "get_info_time": time.time(), "collector_done": False}
            self._send({**info, **counts})


# ---------------------------------------------------------------------- classes with a method for each part of a step

STEPS = ("_policy_inference", "_env_step", "_process_timestep", "_update_policy")
"""Methods of a class in this form, which also sets ``policy`` and ``env_manager``.

``env_manager`` needs ``ready_obs``, the observations of the envs that wait for an action, and ``done``, whether the
task is over. Observations, actions and timesteps are passed on as they are.
"""
LEVELS = {"info": logging.INFO, "debug": logging.DEBUG, "error": logging.ERROR}
"""Methods that write a text to Python's logging, at these levels."""
NOTHING = ("_start_thread", "_join_thread")
"""Methods that start what works in the background, and wait for its end; they do nothing by default."""


def method_of(collector: Any, name: str) -> Callable[..., Any]:
    """Return a method that a class in this form may use or lack.

    Raises:
        AttributeError: If there is no such method.
        NotImplementedError: If the class has to implement it.
    """
    if name in LEVELS:
        return partial(_write, collector, LEVELS[name])
    if name in NOTHING:
        return lambda: None
    if name in STEPS:
        raise not_implemented(collector, name)
    raise AttributeError(f"{type(collector).__name__!r} object has no attribute {name!r}")


def run_steps(collector: Any) -> None:
    """Step until the envs are done, or the collector is closed."""
    collector._end_flag = False
    collector._update_policy()
    collector._start_thread()
    while not collector._end_flag:
        actions = collector._policy_inference(collector.env_manager.ready_obs)
        collector._process_timestep(collector._env_step(actions))
        if collector.env_manager.done:
            break


def _write(collector: Any, level: int, text: str) -> None:
    prefix = "EVALUATOR" if collector.config.eval_flag else "COLLECTOR"
    name = type(collector).__name__
    logging.getLogger(type(collector).__module__).log(level, "[%s(%s)]: %s", prefix, name, text)
