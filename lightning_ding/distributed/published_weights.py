"""Published weights: how a learner writes them, and how a collector reads them.

The weights are a block of the kind ``"policy"``: the tensors of the model by name or, if collecting needs statistics
too, the parts ``model``, ``normaliser`` and ``return_statistics``, those that there are. The settings of envs are in
its metadata. Everything in between only passes on the handle of the block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lightning_ding.callbacks.remote import PARTS
from lightning_ding.distributed.comm_worker.loop import CommWorker
from lightning_ding.distributed.config import LearningTask
from lightning_ding.distributed.transport import Message, Refusal

logger = logging.getLogger(__name__)

SETTINGS = "env_settings"  # the part of published weights that is in the metadata of their block
FIRST_WEIGHTS = 600.0  # seconds to wait for the first weights, while the learner starts
LONG = 10.0  # seconds of waiting after which a warning is logged
PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two requests for the first weights
GROWTH = 0.1  # pause as a share of the time waited so far, so that many collectors do not ask too often
FetchWeights = Callable[[str, int], Mapping[str, Any] | None]
"""A function of a policy id and a serial number that returns a result like :func:`fetch_weights`."""


def publish_weights(worker: CommWorker, task: LearningTask, state_dict: Mapping[str, Any]) -> None:
    """Write weights into the store, and report them to the coordinator.

    Args:
        worker: Worker that has the task.
        task: Task of the learner, with its settings.
        state_dict: ``model`` and, if collecting needs them, ``normaliser`` and ``return_statistics``: flat tensors by
            name; ``iter``: the updates that produced them; ``env_settings``, if envs were set: their text.

    Raises:
        LeaseLostError: If another learner has the task now.
        OSError: If the store has no space.
    """
    policy_version = int(state_dict["iter"])
    tensors = {part: state_dict[part] for part in PARTS if part in state_dict}
    block = tensors if len(tensors) > 1 else tensors["model"]
    metadata = {"policy_version": str(policy_version)}
    metadata |= {SETTINGS: state_dict[SETTINGS]} if SETTINGS in state_dict else {}
    handle = worker.channel.store.put("policy", block, metadata)
    worker.call("learner_send_policy", policy_id=task.policy_id, policy_version=policy_version, data_id=handle)


def fetch_weights(
    worker: CommWorker, policy_id: str, serial: int = -1, newest: Message | None = None
) -> dict[str, Any] | None:
    """Return the newest weights of a policy.

    Args:
        worker: Worker that has the task.
        policy_id: Id of the policy.
        serial: Number of the newest publication that the caller has; -1 for none.
        newest: Latest answer to a message with data; if it contains newer weights, the coordinator is not asked.

    Returns:
        A mapping with ``model`` (a state dict), ``iter`` (number of updates that produced it), ``serial`` (number of
        the publication) and, if collecting needs them, ``normaliser`` and ``return_statistics`` (state dicts) and
        ``env_settings`` (text). None if there are no newer weights, or they have just been replaced.

    Raises:
        LeaseLostError: If another worker has the task now.
    """
    if newest is not None and (handle := newest.get("weights", {}).get(policy_id)) is not None:
        known = {"serial": newest["policy"][policy_id], "policy_version": newest["policy_version"][policy_id]}
        if known["serial"] != serial and (found := _read(worker, {"handle": handle, **known})) is not None:
            return found
    try:
        answer = worker.call("get_policy", policy_id=policy_id, serial=serial)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return None  # nothing is published yet
    return None if answer["handle"] is None else _read(worker, answer)


def _read(worker: CommWorker, answer: Message) -> dict[str, Any] | None:
    """Return the weights that an answer describes; None if they have just been replaced."""
    try:
        tensors, metadata = worker.channel.store.get(answer["handle"])
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return None
    state = tensors if "model" in tensors else {"model": tensors}
    settings = {SETTINGS: metadata[SETTINGS]} if SETTINGS in metadata else {}
    return {**state, **settings, "iter": answer["policy_version"], "serial": answer["serial"]}


class PolicyWeights:
    """Loads the newest published weights into a policy, and tracks their version.

    Args:
        path: Policy id.
        fetch: Function that returns the newest weights.
        mode: Collect or eval mode of the policy.
        update_second: Minimum time between two updates, in seconds.
        is_renewed: Whether the weights are updated after the first ones.
    """

    def __init__(
        self, path: str, fetch: FetchWeights, mode: Any, update_second: float = 0.0, is_renewed: bool = True
    ) -> None:
        self.path = path
        self.policy_version = 0
        """Number of updates that produced the weights."""
        self.env_settings = ""
        """Settings of the envs that came with the weights, see ``EnvHandles.text``."""
        self._fetch = fetch
        self._mode = mode
        self._update_second = update_second
        self._is_renewed = is_renewed
        self._serial = -1
        self._updated_at = time.monotonic()

    def wait_for_first(self, tick: Callable[[], None], timeout: float = FIRST_WEIGHTS) -> None:
        """Wait for the first weights and load them.

        Args:
            tick: Function that is called between two requests.
            timeout: Longest time to wait, in seconds.

        Raises:
            TimeoutError: If there are no weights after ``timeout`` seconds.
        """
        began, has_warned = time.monotonic(), False
        while not self.update():
            tick()
            waited = time.monotonic() - began
            if waited > timeout:
                raise TimeoutError(f"there are no weights of {self.path!r} after {timeout:g} s")
            if waited > LONG and not has_warned:
                has_warned = True
                logger.warning("no weights of %r were published in %g s: is a learner running?", self.path, LONG)
            time.sleep(min(max(PAUSE, GROWTH * waited), LONGEST_PAUSE))

    def renew(self, serials: Mapping[str, int]) -> None:
        """Load newer weights, if there are any and the last update is long enough ago.

        Args:
            serials: Serial number of the newest publication of each policy, from the coordinator's answer.
        """
        is_time = time.monotonic() - self._updated_at >= self._update_second
        if self._is_renewed and is_time and serials.get(self.path, -1) > self._serial:
            self.update()

    def update(self) -> bool:
        """Load newer weights, if there are any, and return whether there were."""
        self._updated_at = time.monotonic()
        found = self._fetch(self.path, self._serial)
        if found is None:
            return False
        self._mode.load_state_dict({part: found[part] for part in PARTS if part in found})
        self.policy_version, self.env_settings = int(found["iter"]), str(found.get(SETTINGS, ""))
        self._serial = int(found["serial"])
        return True
