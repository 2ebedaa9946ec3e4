"""The rollout that collectors deliver with the newest weights, from which an on-policy learner learns.

Shapes: S transitions of a rollout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.distributed.block_files import read_block, write_block

LARGEST = 2  # size of a rollout, as a multiple of the one that was asked for, from which on blocks wait
PARTS = "parts"  # key of the metadata of a file that describes the blocks


@dataclass(frozen=True)
class RolloutSettings:
    """How much a rollout has, and when it is complete."""

    size: int
    """Transitions, or whole episodes, of a rollout, >= 1."""
    in_episodes: bool = False
    """Whether ``size`` counts episodes."""
    share: float = 1.0
    """Share of ``size`` with which a rollout is complete, in (0, 1]."""
    uses_late: bool = False
    """Whether transitions of the version before are learned from too, in addition to those that complete a rollout; if
    not, they are dropped."""

    @property
    def enough(self) -> int:
        """Transitions or episodes with which a rollout is complete."""
        return math.ceil(self.size * self.share)


@dataclass(frozen=True)
class _Part:
    """The share of a rollout that one message has delivered."""

    run_id: str
    slot: int
    number: int
    """Number of the message in the journal."""
    is_late: bool
    length: int
    """Number of its transitions."""
    amount: int
    """Number of its transitions or episodes, in the unit of the rollout's size."""


class Rollout:
    """The blocks of the rollout of one version of the weights; must not be used from several threads at once.

    The rollout can be read any number of times until newer weights are published. A learner that was restarted and
    publishes the same version again therefore learns from the same transitions.

    Args:
        settings: Its size, and what happens to transitions that come late.

    Example:
        >>> rollout = Rollout(RolloutSettings(size=4))
        >>> rollout.begin(serial=1, policy_version=0)
        >>> rows = {"policy_version": torch.zeros(4, dtype=torch.int64), "episode_id": torch.zeros(4)}
        >>> rollout.push(rows, run_id="a", slot=0, number=1), rollout.is_complete
        (4, True)
    """

    def __init__(self, settings: RolloutSettings) -> None:
        self.settings = settings
        self.policy_version = 0
        """Version of the weights with which it is collected."""
        self._serial = -1  # of the publication of these weights
        self._version_before: int | None = None
        self._blocks: list[tuple[_Part, dict[str, Any]]] = []

    def begin(self, serial: int, policy_version: int) -> None:
        """Begin the rollout of newer weights, unless they are known.

        Args:
            serial: Number of the publication, which grows also if a learner continues from an older checkpoint.
            policy_version: Number of updates that produced the weights.
        """
        if serial <= self._serial:
            return
        if policy_version != self.policy_version:
            self._version_before = self.policy_version if self._serial >= 0 else None
            self._blocks = []
        self._serial, self.policy_version = serial, policy_version

    def push(self, rows: dict[str, Any], run_id: str, slot: int, number: int) -> int:
        """Add the transitions of a message, as far as they belong to this rollout, and return how many do.

        Transitions that come late are only added while they are fewer than a rollout.

        Args:
            rows: Transitions with ``policy_version`` and ``episode_id``.
            run_id: Id of the attempt that sent the message.
            slot: Index of its task.
            number: Number of the message in the journal.
        """
        versions = rows["policy_version"]
        is_late = versions != self.policy_version
        taken = ~is_late
        uses_late = self.settings.uses_late and self._amount(is_late=True) < self.settings.size
        if uses_late and (before := self._version_before) is not None and before < self.policy_version:
            taken = taken | (versions == before)
        if not taken.any():
            return 0
        rows = rows if taken.all() else cast("dict[str, Any]", nested.index(rows, taken))
        has_late = bool((is_late & taken).any())
        self._blocks.append((_Part(run_id, slot, number, has_late, *self._sizes(rows)), rows))
        return nested.length(rows)

    def drop_episodes(self, episode_ids: Collection[int]) -> None:
        """Remove the transitions of episodes."""
        dropped, blocks = torch.tensor(list(episode_ids)), []
        for part, rows in self._blocks:
            kept = ~torch.isin(rows["episode_id"], dropped)
            if kept.all():
                blocks.append((part, rows))
            elif kept.any():
                left: dict[str, Any] = nested.index(rows, kept)
                length, amount = self._sizes(left)
                blocks.append((replace(part, length=length, amount=amount), left))
        self._blocks = blocks

    @property
    def is_complete(self) -> bool:
        """Whether enough was collected with the newest weights to learn from."""
        return self._amount() >= self.settings.enough

    @property
    def is_full(self) -> bool:
        """Whether there is so much that further messages should wait for the next rollout."""
        return self._amount() >= LARGEST * self.settings.size

    def holds(self, run_id: str, collectors: int) -> bool:
        """Return whether a collector should wait for newer weights, because it has delivered its part.

        Args:
            run_id: Id of its attempt.
            collectors: Number of collectors that are at work; when one is lost, the parts of the others grow.
        """
        own = sum(part.amount for part, _ in self._blocks if part.run_id == run_id and not part.is_late)
        return self.is_complete or own >= math.ceil(self.settings.size / max(1, collectors))

    def rows(self) -> dict[str, Any]:
        """Return the transitions, leading axis S; those of an env are in chronological order.

        The order does not depend on which collector was the first to deliver.
        """
        blocks = sorted(self._blocks, key=lambda block: (block[0].slot, block[0].number))
        return cast("dict[str, Any]", nested.concatenate([rows for _, rows in blocks]))

    def count(self) -> int:
        """Return the number of transitions."""
        return sum(part.length for part, _ in self._blocks)

    def update(self, priorities: Mapping[str, Any]) -> None:
        """Refuse priorities.

        Raises:
            ValueError: Always, as transitions of a rollout have none.
        """
        require(False, "priorities", "those of a replay buffer", "some for a rollout")

    def save_data(self, file: Path) -> None:
        """Write the rollout into a file.

        Raises:
            OSError: If the file cannot be written.
        """
        state = {"serial": self._serial, "version": self.policy_version, "before": self._version_before}
        about = {PARTS: json.dumps({**state, "parts": [asdict(part) for part, _ in self._blocks]})}
        write_block(file, {str(number): rows for number, (_, rows) in enumerate(self._blocks)}, about)

    def load_data(self, file: Path) -> None:
        """Read the rollout that ``save_data`` wrote.

        Raises:
            Refusal: If the file is missing or damaged.
        """
        tensors, metadata = read_block(file, 2**62)
        state = json.loads(metadata[PARTS])
        self._serial, self.policy_version = state["serial"], state["version"]
        self._version_before = state["before"]
        self._blocks = [(_Part(**part), tensors[str(number)]) for number, part in enumerate(state["parts"])]

    def _amount(self, is_late: bool = False) -> int:
        """Return how much was collected with the newest weights, or came late, in the unit of the size."""
        return sum(part.amount for part, _ in self._blocks if part.is_late == is_late)

    def _sizes(self, rows: dict[str, Any]) -> tuple[int, int]:
        """Return the number of transitions, and of what a rollout counts."""
        length = nested.length(rows)
        return length, int((rows["terminated"] | rows["truncated"]).sum()) if self.settings.in_episodes else length
