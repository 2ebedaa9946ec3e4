"""A coordinator in a separate process, which answers messages sent as lines of JSON and shows its buffer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.transport import Refusal
from tests.distributed.coordinator.coordinating import config


def main() -> None:
    folder = Path(sys.argv[1])
    cfg = config(folder, snapshot_interval=float(sys.argv[2]))
    coordinator = Coordinator(cfg, FileStore(folder / "data"), resume=sys.argv[3] == "resume")
    coordinator.start()
    for line in sys.stdin:
        name, message = json.loads(line)
        print(json.dumps(answer(coordinator, name, message)), flush=True)


def answer(coordinator: Coordinator, name: str, message: dict[str, Any]) -> dict[str, Any]:
    if name == "show":
        replay = next(iter(coordinator.run.replays.values()))
        storage, counts = replay.buffer._storage, replay.counts  # type: ignore[attr-defined]
        rows = {name: column[: storage.count].tobytes().hex() for name, column in storage.columns.items()}
        return {"rows": rows, "env_step": counts.env_step, "episode": counts.episode, "sample": counts.sample}
    try:
        return coordinator.handle(name, message)
    except Refusal as refusal:
        return {"status": refusal.status}


if __name__ == "__main__":
    main()
