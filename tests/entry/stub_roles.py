"""Stands in for lightning_ding.entry.roles: does at each start what ``plan.json`` in the folder of the run says.

A plan is a list for each role, one entry a start, of: an exit code, ``"work"`` (until a signal, the coordinator until
there is a file ``end``), ``"kill"`` (itself), ``"stubborn"`` (SIGTERM does nothing), ``"finish"`` (write the
result), ``"finish and kill"`` (then die), ``"give up"``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path


def main() -> int:
    role, file = sys.argv[1], Path(sys.argv[3])
    lifeline = int(sys.argv[sys.argv.index("--lifeline") + 1])
    threading.Thread(target=lambda: os.read(lifeline, 1) or os._exit(9), daemon=True).start()
    folder = file.parent
    starts = folder / f"starts-{role}"
    with starts.open("a") as log:
        address = (folder / "coordinator.json").exists()
        log.write(" ".join(sys.argv[1:]) + f" address={address} pid={os.getpid()}\n")
    plan = json.loads((folder / "plan.json").read_text())[role]
    action = plan[min(len(starts.read_text().splitlines()), len(plan)) - 1]
    print(f"2026-01-01 00:00:00,000 WARNING stub: {role} does {action}", flush=True)
    if isinstance(action, int):
        return action
    if action == "kill":
        (folder / "coordinator.json").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "is-stubborn").touch()
    if action == "give up":
        (folder / "result.json").write_text('{"error": "too many failures"}')
        return 3
    if str(action).startswith("finish"):
        time.sleep(0.5)
        (folder / "result.json").write_text('{"env_step": 7}')
        if action == "finish and kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
    for _ in range(600):
        if role == "coordinator" and (folder / "end").exists():
            return 0
        time.sleep(0.1)
    return 1


if __name__ == "__main__":
    sys.exit(main())
