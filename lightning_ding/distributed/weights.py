"""The weights that learners publish, and which of them are kept."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text
from lightning_ding.distributed.channel import Message, Store

logger = logging.getLogger(__name__)

KEPT = 2  # publications of a policy: a reader who was told of the last but one still finds it


@dataclass
class Publication:
    """One policy's weights of one moment."""

    serial: int
    """Counts the publications of the policy, from 1 on."""
    version: int
    """Updates made by then."""
    handle: Any


class Weights:
    """The newest publications of each policy, kept in a file too; not safe to use from several threads.

    The file is on the disk itself when a snapshot comes or goes. Else nobody waits for that, which would take longer
    than all the rest of a publication: after a power cut the learner publishes anew.

    Args:
        file: Of what is published, without the weights themselves.
        store: Of the weights.
    """

    def __init__(self, file: Path, store: Store) -> None:
        self._file = file
        self._store = store
        self._published: dict[str, list[Publication]] = {}
        self._snapshots: set[str] = set()

    def publish(self, policy_id: str, version: int, handle: Any, snapshot: str | None = None) -> int:
        """Make weights the newest ones of a policy, and return their serial.

        Args:
            policy_id: Whose they are.
            version: Updates made by then.
            handle: Of a block of the kind "policy".
            snapshot: A name under which they are kept until :meth:`keep_only` lets them go.
        """
        known = self._published.setdefault(policy_id, [])
        serial = known[-1].serial + 1 if known else 1
        known.append(Publication(serial, version, handle))
        if snapshot is not None:
            self._published[snapshot] = [Publication(1, version, handle)]
            self._snapshots.add(snapshot)
        gone = known[:-KEPT]
        del known[:-KEPT]
        self._forget(gone, is_synced=snapshot is not None)
        return serial

    def is_newest(self, policy_id: str, handle: Any) -> bool:
        """Return whether these are the newest weights of a policy already."""
        known = self._published.get(policy_id, [])
        return bool(known) and known[-1].handle == handle

    def newer(self, policy_id: str, serial: int) -> Message:
        """Return the newest weights of a policy, without a handle if their serial is known or there are none yet."""
        known = self._published.get(policy_id)
        if not known:
            return {"handle": None, "serial": -1, "version": 0}
        newest = known[-1]
        handle = newest.handle if newest.serial != serial else None
        return {"handle": handle, "serial": newest.serial, "version": newest.version}

    def serials(self) -> dict[str, int]:
        """Return the newest serial of each policy."""
        return {policy_id: known[-1].serial for policy_id, known in self._published.items()}

    def version(self, policy_id: str) -> int:
        """Return the version of the newest weights of a policy, 0 if there are none."""
        known = self._published.get(policy_id)
        return known[-1].version if known else 0

    def keep_only(self, needed: set[str]) -> None:
        """Let go of the snapshots that are not among some policies."""
        for name in self._snapshots - needed:
            self._snapshots.remove(name)
            self._forget(self._published.pop(name))

    def load(self) -> None:
        """Read the file, if there is one."""
        if self._file.exists():
            try:
                content = json.loads(self._file.read_text())
            except ValueError as error:  # of a power cut
                logger.error("%s is torn, and the weights that it names are lost: %s", self._file, error)
                return
            self._snapshots = set(content["snapshots"])
            for name, known in content["policies"].items():
                self._published[name] = [Publication(**one) for one in known]

    def _forget(self, gone: list[Publication], is_synced: bool = True) -> None:
        """Write down what is left, and only then delete the blocks that nobody is told of any more."""
        policies = {name: [asdict(one) for one in known] for name, known in self._published.items()}
        text = json.dumps({"policies": policies, "snapshots": sorted(self._snapshots)})
        replace_text(self._file, text, is_synced)
        kept = [one.handle for known in self._published.values() for one in known]
        for one in gone:
            if one.handle not in kept:
                self._store.delete(one.handle)
