"""Started by test_tensor_file.py: python buffer_memory_script.py KIND MEGABYTES FILE.

Fills a buffer, saves it and loads it into another one, and prints how many megabytes of memory each took at its peak
beyond what the buffers keep. Loading maps the file, and its pages do not count: the system takes them back when it
likes.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ding.worker import AdvancedReplayBuffer, EpisodeReplayBuffer, NaiveReplayBuffer

CLASSES: dict[str, Any] = {
    "naive": NaiveReplayBuffer,
    "priority": AdvancedReplayBuffer,
    "episode": EpisodeReplayBuffer,
    "frame_stack": NaiveReplayBuffer,
}
LENGTH = 100  # steps of an episode


def memory(what: str) -> float:
    """Return what the system says of this process's memory, in megabytes."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def peak_during(action: Callable[[], None]) -> float:
    """Return the highest memory that is not a file's while something is done that lets other threads run."""
    peak, is_over = memory("RssAnon"), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.002):
            peak = max(peak, memory("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    action()
    is_over.set()
    thread.join()
    return max(peak, memory("RssAnon"))


def episode(number: int, stacked: bool) -> dict[str, Any]:
    """Return an episode whose observations follow each other."""
    rng = np.random.default_rng(number)
    if stacked:
        frames = rng.integers(255, size=(LENGTH + 4, 84, 84), dtype=np.uint8)
        obs: Any = np.stack([frames[step : step + 4] for step in range(LENGTH + 1)])
    else:
        obs = rng.random((LENGTH + 1, 1_000), dtype=np.float32)
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "reward": np.zeros(LENGTH, np.float32)}
    last = np.arange(LENGTH) == LENGTH - 1
    return columns | {"terminated": last, "truncated": np.zeros(LENGTH, bool)}


def main(kind: str, megabytes: int, file: Path) -> None:
    """Fill, save, load, and print."""
    stacked = kind == "frame_stack"
    size = int(megabytes * 1e6 / (84 * 84 if stacked else 4_000)) // LENGTH * LENGTH
    config = {"replay_buffer_size": size, "frame_stack": 4 if stacked else 1}
    source = CLASSES[kind](config, seed=0)
    for number in range(size // LENGTH):
        part = episode(number, stacked)
        mark = {"env_id": np.zeros(LENGTH, np.int64), "episode_id": np.full(LENGTH, number)}
        source.push([part] if kind == "episode" else part | mark)
    assert source.nbytes >= 0.95e6 * megabytes
    before = memory("VmHWM")
    source.save_data(file)
    saving = memory("VmHWM") - before
    assert file.stat().st_size >= 0.95e6 * megabytes
    target = CLASSES[kind](config, seed=1)
    before = memory("RssAnon")
    loading = peak_during(lambda: target.load_data(file)) - before - target.nbytes / 1e6
    assert target.count() == source.count()
    print(f"{saving:.1f} {loading:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
