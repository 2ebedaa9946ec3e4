"""The functions through which a parallel collector gets weights and sends data, in two forms.

Here a collector fetches weights with ``(path, serial)``, stores the columns of a message with ``(data)``, sends the
message with ``(metadata)`` and gets an answer. Functions of the other form take ``(path)``,
``(data_id, sample)`` for each transition, and ``(metadata)`` without an answer.

Shapes: K transitions of a message.
"""

from __future__ import annotations

import inspect
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_ding import nested
from lightning_ding.distributed.published_weights import FetchWeights
from lightning_ding.distributed.transport import Message

logger = logging.getLogger(__name__)

Report = Callable[[Message], Message]
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


class PathFetch:
    """Fetches weights with a function of the path alone.

    Args:
        function: Returns ``model``, a state dict, and ``iter``, the updates that produced it; None if there is nothing
            new. An ``OSError``, for example because there is no file yet, means the same.
    """

    def __init__(self, function: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._function = function

    def __call__(self, path: str, serial: int) -> Mapping[str, Any] | None:
        """Return the weights if they are of a later update than ``serial``, which they get as their serial number."""
        try:
            info = self._function(path)
        except OSError as error:
            logger.debug("no weights of %r: %s", path, error)
            return None
        if info is None or int(info["iter"]) <= serial:
            return None
        return {**info, "serial": int(info["iter"])}


class Calls:
    """The functions of a collector, each in one of the two forms.

    Args:
        get_policy_update_info: Function of ``(path, serial)`` or ``(path)``.
        send_stepdata: Function of ``(data)`` or ``(data_id, sample)``.
        send_metadata: Function of ``(metadata)``, which may return an answer.
        report: Function that sends the counts of a message whose answer is not known yet, and returns it.
    """

    def __init__(
        self,
        get_policy_update_info: Callable[..., Any],
        send_stepdata: Callable[..., Any],
        send_metadata: Callable[[Message], Any],
        report: Report = answer_of_no_coordinator,
    ) -> None:
        self._asks_always = not takes(get_policy_update_info, 2)
        self.fetch: FetchWeights = PathFetch(get_policy_update_info) if self._asks_always else get_policy_update_info
        self._sends_samples = not takes(send_stepdata, 1)
        self._send_stepdata = send_stepdata
        self._send_metadata = send_metadata
        self._report = report

    def serials(self, answer: Message, paths: Sequence[str]) -> Mapping[str, int]:
        """Return the serial numbers of the newest weights, as far as they are known from the answer."""
        return dict.fromkeys(paths, NEWER) if self._asks_always else answer["policy"]

    def send(self, data: Any, metadata: Message) -> Message:
        """Send a message and return the answer.

        Args:
            data: Nested dict of tensors, leading axis K; None if there are no transitions.
            metadata: Metadata of the message without ``data_id``.
        """
        if self._sends_samples:
            if data is not None:
                self._send_each(data, metadata)
            return self._report(metadata)
        handle = None if data is None else self._send_stepdata(data)
        answer = self._send_metadata({"data_id": handle, **metadata})
        return answer if isinstance(answer, Mapping) else self._report(metadata)  # type: ignore[return-value]

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
            reference = self._send_stepdata(about["data_id"], {**sample, "done": sample["terminated"]})  # type: ignore[dict-item,index]
            self._send_metadata(about if reference is None else {**about, "object_ref": reference})
        if metadata["returns"]:
            info = {"eval_flag": False, "get_info_time": time.time(), "collector_done": False}
            self._send_metadata({**info, **counts})
