"""The weights that learners publish, and which of them are kept."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import sync_tree
from lightning_ding.distributed.block_files import read_block, write_block
from lightning_ding.distributed.coordinator.database import DamagedError, Database, Key
from lightning_ding.distributed.transport import Message, Refusal, Store

logger = logging.getLogger(__name__)

KEPT = 2  # publications of a policy, so that a worker can still read the previous one
LOST = 1_000_000  # serial numbers to skip after a power failure; more publications than it can have lost
BOOT = Path("/proc/sys/kernel/random/boot_id")  # changes whenever the machine starts


@dataclass(frozen=True)
class Publication:
    """Weights of a policy after some number of updates; by default none."""

    serial: int = 0
    """Number of this publication of the policy, from 1, which grows even if a learner continues from an older
    checkpoint."""
    policy_version: int = 0
    """Updates that produced the weights."""
    handle: Any = None
    since: int = 0
    """Number of the publication with which the learner has last continued from an older checkpoint, so that earlier
    ones may have other weights of the same version; 0 if it has not."""
    is_snapshot: bool = False
    """Whether it is kept until :meth:`PublishedWeights.keep_only` removes it."""


class PublishedWeights:
    """The newest publications of each policy; must not be used from several threads at once.

    When the run is finished, :meth:`pack` moves the weights into files of their own, because the store is emptied.

    Only a publication that is also kept as a snapshot is synced to the disk. Otherwise syncing would take longer than
    the rest of a publication, and after a power failure the learner publishes again anyway.

    Args:
        database: Database of the run, for what is known of the weights.
        folder: Folder of packed weights.
        store: Store of the weights.
    """

    def __init__(self, database: Database, folder: Path, store: Store) -> None:
        self._database = database
        self._folder = folder
        self._store = store
        self._published: dict[str, list[Publication]] = {}
        self.least: dict[str, Any] = {"boot": _boot(), "serial": 1}
        """Smallest serial number of the next publication, and the id of the machine's start for which that holds."""
        self._unwritten: set[str] = set()  # policies whose publications the database does not have yet
        self._gone: list[Publication] = []  # to delete once the database is without them

    def publish(self, policy_id: str, policy_version: int, handle: Any, snapshot: str | None = None) -> int:
        """Publish weights as the newest ones of a policy, and return their serial number.

        Args:
            policy_id: Id of the policy.
            policy_version: Updates that produced the weights.
            handle: Handle of a block of the kind "policy".
            snapshot: Policy id under which the weights are also kept, until :meth:`keep_only` removes them.
        """
        known = self._published.setdefault(policy_id, [])
        before = self.newest(policy_id)
        serial: int = max(before.serial + 1, self.least["serial"])
        is_back = policy_version < before.policy_version
        known.append(Publication(serial, policy_version, handle, serial if is_back else before.since))
        self._unwritten.add(policy_id)
        if snapshot is not None:
            self._published[snapshot] = [Publication(1, policy_version, handle, is_snapshot=True)]
            self._unwritten.add(snapshot)
        self._gone += known[:-KEPT]
        del known[:-KEPT]
        self.write(is_synced=snapshot is not None)
        return serial

    def handles(self) -> list[Any]:
        """Return the handles of all weights that are kept."""
        return [one.handle for known in self._published.values() for one in known]

    def newer(self, policy_id: str, serial: int) -> Message:
        """Return the newest weights of a policy; ``handle`` is None if their serial is ``serial`` or there are none."""
        newest = self.newest(policy_id)
        handle = newest.handle if newest.serial != serial else None
        return {"handle": handle, "serial": newest.serial or -1, "policy_version": newest.policy_version}

    def serials(self) -> dict[str, int]:
        """Return the newest serial number of each policy."""
        return {policy_id: known[-1].serial for policy_id, known in self._published.items()}

    def newest(self, policy_id: str) -> Publication:
        """Return the newest publication of a policy."""
        return (self._published.get(policy_id) or [Publication()])[-1]

    def keep_only(self, needed: set[str]) -> None:
        """Remove the snapshots that are not among some policies."""
        snapshots = [name for name, known in self._published.items() if known[-1].is_snapshot]
        for name in set(snapshots) - needed:
            self._gone += self._published.pop(name)
            self._unwritten.add(name)
        self.write()

    def pack(self) -> None:
        """Write the newest weights of each policy into files, from which :meth:`load` puts them into a store again.

        Raises:
            OSError: If a file cannot be written; then the database still names the blocks in the store.
        """
        self._folder.mkdir(exist_ok=True)
        for number, (name, known) in enumerate(sorted(self._published.items())):
            try:
                block = self._store.get(known[-1].handle)
            except Refusal as refusal:
                self._lose(name, refusal)
                continue
            write_block(file := self._folder / f"{number}.safetensors", *block)
            self._published[name] = [replace(known[-1], handle=file.name)]
        sync_tree(self._folder)  # the database names only files that survive a power failure
        self._unwritten |= self._published.keys()
        self.write()

    def load(self, least: Mapping[str, Any]) -> None:
        """Read what was published, and put packed weights into the store.

        If the machine was restarted, for example after a power failure, the newest publications may be lost. A
        collector may have their weights, so later serial numbers are larger than those of any that can be lost.

        Args:
            least: Earlier value of the attribute; empty if an earlier version had none.
        """
        for name, known in self._database.read("policy"):
            if isinstance(known, DamagedError):
                logger.error("the weights of %s are lost: %s", name, known)
                continue
            self._published[name] = [Publication(**one) for one in known]
        self.least["serial"] = least["serial"]
        if least["boot"] != self.least["boot"]:
            newest = max((known[-1].serial for known in self._published.values()), default=0)
            self.least["serial"] = max(self.least["serial"], newest) + LOST
        packed = {name: known[-1] for name, known in self._published.items() if isinstance(known[-1].handle, str)}
        for name, one in packed.items():
            try:
                block = read_block(self._folder / one.handle, 2**62)
            except Refusal as refusal:
                self._lose(name, refusal)
                continue
            self._published[name] = [replace(one, handle=self._store.put("policy", *block))]
            self._unwritten.add(name)
        self.write()
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, is_synced: bool = True) -> None:
        """Write what the database does not have yet, and only then delete the blocks that are not needed any more.

        Raises:
            OSError: If it cannot be written; the next call tries again.
        """
        if not self._unwritten:
            return
        changes: dict[Key, Any] = {}
        for name in self._unwritten:
            known = self._published.get(name)
            changes["policy", name] = None if known is None else [asdict(one) for one in known]
        self._database.write(changes, is_synced)
        self._unwritten.clear()
        kept = self.handles()
        while self._gone:
            one = self._gone.pop()
            if one.handle not in kept:
                self._store.delete(one.handle)

    def _lose(self, policy_id: str, why: Refusal) -> None:
        logger.error("the weights of %s are lost: %s", policy_id, why.reason)
        del self._published[policy_id]
        self._unwritten.add(policy_id)


def _boot() -> str:
    """Return an id of the time since the machine was started; an empty one where the system has none."""
    return BOOT.read_text().strip() if BOOT.exists() else ""
