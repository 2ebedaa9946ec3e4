"""PPO of which all processes of a run write down what the coordinator keeps and what the learners learn from.

The coordinator, too, imports this module, because the config of the policy names it. Each process appends to files of
its own, so that a line that a kill has cut off is the last one of its file.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.distributed.coordinator.intake import Intake
from lightning_ding.distributed.coordinator.journal import Entry
from lightning_ding.policy.ppo import PPOPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.distributed import acknowledged
from tests.distributed.recorded_cartpole import COLUMNS

VARIABLE = "CHAOS"
"""Environment variable with the folder, in whose folder ``records`` the files are."""
KEPT, LEARNED = "kept", "learned"
_apply = Intake.apply


@cache
def _file(kind: str, pid: int) -> int:
    folder = Path(os.environ[VARIABLE]) / "records"
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / f"{kind}-{time.time_ns()}-{pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _write(kind: str, rows: Any, **about: Any) -> None:
    about["rows"] = base64.b64encode(acknowledged.as_rows(rows).tobytes()).decode()
    os.write(_file(kind, os.getpid()), f"{json.dumps(about)}\n".encode())


def records(folder: Path, kind: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the process id and the records of each process, the first process first; ``rows`` are (S, COLUMNS)."""
    for file in sorted((folder / "records").glob(f"{kind}-*")):
        whole = file.read_text().rpartition("\n")[0].splitlines()
        yield int(file.name.split("-")[2]), [_decoded(json.loads(line)) for line in whole]


def _decoded(record: dict[str, Any]) -> dict[str, Any]:
    rows: NDArray[np.float32] = np.frombuffer(base64.b64decode(record["rows"]), np.float32).reshape(-1, COLUMNS)
    return {**record, "rows": rows}


def apply(self: Intake, entry: Entry, rows: Any) -> None:
    """Process a message as the coordinator does, when it arrives or is read from the journal, and record its rows."""
    _apply(self, entry, rows)
    if rows is not None and VARIABLE in os.environ:  # not in a process that only looks at a stopped run
        _write(KEPT, rows, number=entry.number)


Intake.apply = apply  # type: ignore[method-assign]


@POLICY_REGISTRY.register("recorded_ppo")
class RecordedPPO(PPOPolicy):
    """Records a rollout before it learns from it."""

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        about = {name: batch[name].unique().tolist() for name in ("policy_version", "env_id")}
        episodes = batch["episode_id"].tolist()
        _write(LEARNED, batch, train_iter=self.progress.train_iter, episodes=episodes, **about)
        return super()._forward_learn(batch)
