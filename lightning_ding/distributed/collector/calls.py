"""The functions through which a parallel collector gets weights and sends data.

A collector fetches weights with ``(path, serial)``, stores the columns of a message with ``(data)``, sends the message
with ``(metadata)`` and gets an answer. Functions of another form, which take ``(path)`` or ``(data_id, sample)`` for
each transition, are those of :mod:`lightning_ding.di_engine.parallel_forms`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_ding.distributed.published_weights import FetchWeights
from lightning_ding.distributed.transport import Message
from lightning_ding.utils.foreign import foreign

Report = Callable[[Message], Message]


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


class Calls:
    """The functions of a collector.

    Args:
        fetch: Returns the newest weights, see ``FetchWeights``.
        send_stepdata: Stores a nested dict of tensors and returns its handle.
        send_metadata: Sends the metadata of a message and returns the answer, or None.
        report: Sends the counts of a message whose answer is not known yet, and returns it.
    """

    def __init__(
        self,
        fetch: FetchWeights,
        send_stepdata: Callable[..., Any],
        send_metadata: Callable[[Message], Any],
        report: Report = answer_of_no_coordinator,
    ) -> None:
        self.fetch = fetch
        self._send_stepdata = send_stepdata
        self._send_metadata = send_metadata
        self._report = report

    def serials(self, answer: Message, paths: Sequence[str]) -> Mapping[str, int]:
        """Return the serial numbers of the newest weights, as far as they are known from the answer."""
        found: Mapping[str, int] = answer["policy"]
        return found

    def send(self, data: Any, metadata: Message) -> Message:
        """Send a message and return the answer.

        Args:
            data: Nested dict of tensors, leading axis K; None if there are no transitions.
            metadata: Metadata of the message without ``data_id``.
        """
        handle = None if data is None else self._send_stepdata(data)
        answer = self._send_metadata({"data_id": handle, **metadata})
        return answer if isinstance(answer, dict) else self._report(metadata)


def calls_of(fetch: Any, send_stepdata: Any, send_metadata: Any, report: Report = answer_of_no_coordinator) -> Calls:
    """Return the functions of a collector, each in one of the two forms; the arguments are those of :class:`Calls`."""
    is_own = takes(fetch, 2) and takes(send_stepdata, 1)
    kind: type[Calls] = Calls if is_own else foreign("parallel_forms").SampleCalls
    return kind(fetch, send_stepdata, send_metadata, report)
