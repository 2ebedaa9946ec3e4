"""The weights that learners publish, and which of them are kept."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lightning_ding.checkpoints.files import replace_text
from lightning_ding.distributed.block_files import read_block, write_block
from lightning_ding.distributed.coordinator.journal import renamed
from lightning_ding.distributed.transport import Message, Refusal, Store

logger = logging.getLogger(__name__)

KEPT = 2  # publications of a policy, so that a worker can still read the previous one


@dataclass
class Publication:
    """Weights of a policy after some number of updates."""

    serial: int
    """Number of this publication of the policy, from 1."""
    policy_version: int
    """Updates that produced the weights."""
    handle: Any


class Newest(NamedTuple):
    """The newest weights of a policy; 0 and 0 if there are none."""

    serial: int = 0
    """Number of their publication, which grows even if a learner continues from an older checkpoint."""
    policy_version: int = 0
    """Updates that produced them."""


class PublishedWeights:
    """The newest publications of each policy, indexed in a file; must not be used from several threads at once.

    When the run is finished, :meth:`pack` moves the weights into files next to the index, because the store is emptied.

    The file is only synced when a snapshot is added or removed. Otherwise syncing would take longer than the rest of a
    publication, and after a power failure the learner publishes again anyway.

    Args:
        file: Index of the publications, without the weights.
        store: Store of the weights.
    """

    def __init__(self, file: Path, store: Store) -> None:
        self._file = file
        self._folder = file.with_suffix("")  # of packed weights
        self._store = store
        self._published: dict[str, list[Publication]] = {}
        self._snapshots: set[str] = set()
        self._gone: list[Publication] = []  # to delete once the index without them is on the disk
        self._is_written = True

    def publish(self, policy_id: str, policy_version: int, handle: Any, snapshot: str | None = None) -> int:
        """Publish weights as the newest ones of a policy, and return their serial number.

        Args:
            policy_id: Id of the policy.
            policy_version: Updates that produced the weights.
            handle: Handle of a block of the kind "policy".
            snapshot: Policy id under which the weights are also kept, until :meth:`keep_only` removes them.
        """
        known = self._published.setdefault(policy_id, [])
        serial = known[-1].serial + 1 if known else 1
        known.append(Publication(serial, policy_version, handle))
        if snapshot is not None:
            self._published[snapshot] = [Publication(1, policy_version, handle)]
            self._snapshots.add(snapshot)
        self._gone += known[:-KEPT]
        del known[:-KEPT]
        self._is_written = False
        self.write(is_synced=snapshot is not None)
        return serial

    def is_newest(self, policy_id: str, handle: Any) -> bool:
        """Return whether these weights are already the newest ones of a policy."""
        known = self._published.get(policy_id, [])
        return bool(known) and known[-1].handle == handle

    def handles(self) -> list[Any]:
        """Return the handles of all weights that are kept."""
        return [one.handle for known in self._published.values() for one in known]

    def newer(self, policy_id: str, serial: int) -> Message:
        """Return the newest weights of a policy; ``handle`` is None if their serial is ``serial`` or there are none."""
        known = self._published.get(policy_id)
        if not known:
            return {"handle": None, "serial": -1, "policy_version": 0}
        newest = known[-1]
        handle = newest.handle if newest.serial != serial else None
        return {"handle": handle, "serial": newest.serial, "policy_version": newest.policy_version}

    def serials(self) -> dict[str, int]:
        """Return the newest serial number of each policy."""
        return {policy_id: known[-1].serial for policy_id, known in self._published.items()}

    def newest(self, policy_id: str) -> Newest:
        """Return which weights of a policy are the newest."""
        known = self._published.get(policy_id)
        return Newest(known[-1].serial, known[-1].policy_version) if known else Newest()

    def keep_only(self, needed: set[str]) -> None:
        """Remove the snapshots that are not among some policies."""
        for name in self._snapshots - needed:
            self._snapshots.remove(name)
            self._gone += self._published.pop(name)
            self._is_written = False
        self.write()

    def pack(self) -> None:
        """Write the newest weights of each policy into files, from which :meth:`load` puts them into a store again.

        Raises:
            OSError: If a file cannot be written; then the index still names the blocks in the store.
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
        self._is_written = False
        self.write()

    def load(self) -> None:
        """Read the file, if there is one, and put packed weights into the store."""
        if self._file.exists():
            try:
                content = json.loads(self._file.read_text())
                snapshots, policies = set(content["snapshots"]), content["policies"].items()
                published = {
                    name: [Publication(**renamed(one, version="policy_version")) for one in known]
                    for name, known in policies
                }
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # after a power failure
                logger.error("%s is truncated, and the weights in it are lost: %s", self._file, error)
                return
            self._snapshots, self._published = snapshots, published
            self._unpack()

    def write(self, is_synced: bool = True) -> None:
        """Write the index unless it is on the disk, and only then delete the blocks that are not in it any more.

        Raises:
            OSError: If the index cannot be written; the next call tries again.
        """
        if self._is_written:
            return
        policies = {name: [asdict(one) for one in known] for name, known in self._published.items()}
        text = json.dumps({"policies": policies, "snapshots": sorted(self._snapshots)})
        replace_text(self._file, text, is_synced)
        self._is_written = True
        kept = self.handles()
        while self._gone:
            one = self._gone.pop()
            if one.handle not in kept:
                self._store.delete(one.handle)

    def _lose(self, policy_id: str, why: Refusal) -> None:
        logger.error("the weights of %s are lost: %s", policy_id, why.reason)
        del self._published[policy_id]
        self._snapshots.discard(policy_id)

    def _unpack(self) -> None:
        packed = {name: known[-1] for name, known in self._published.items() if isinstance(known[-1].handle, str)}
        for name, one in packed.items():
            try:
                block = read_block(self._folder / one.handle, 2**62)
            except Refusal as refusal:
                self._lose(name, refusal)
                continue
            self._published[name] = [replace(one, handle=self._store.put("policy", *block))]
        if packed:
            self._is_written = False
            self.write()
        shutil.rmtree(self._folder, ignore_errors=True)
