"""Memory, files, threads and processes of a process, and whether they grow."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COUNTS = ("files", "threads", "processes")


@dataclass(frozen=True)
class Sample:
    """Memory, files, threads and processes at one time."""

    episode: int
    memory_mib: float
    files: int
    threads: int
    processes: int

    @classmethod
    def now(cls, episode: int) -> Sample:
        """Count what this process holds, garbage left out."""
        gc.collect()
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        memory, threads = int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"])
        return cls(episode, memory, len(os.listdir("/proc/self/fd")), threads, len(descendants(os.getpid())))


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs, also those that died and were not waited for."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        children.setdefault(parent, []).append(int(file.parent.name))
    found = children.get(pid, [])
    for child in found:  # which grows by theirs
        found.extend(children.get(child, []))
    return found


def judge(samples: Sequence[Sample], bound_mib: float) -> dict[str, Any]:
    """Return what grew, and whether all is flat.

    Args:
        samples: Samples in chronological order, at least eight.
        bound_mib: Maximum growth, in MiB, of a line fitted to the memory.
    """
    settled = samples[len(samples) // 4 :]
    first, second = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    episode = np.array([sample.episode for sample in settled], dtype=float)
    slope = float(np.polyfit(episode, [sample.memory_mib for sample in settled], 1)[0])
    growth = {"memory_mib": slope * float(episode[-1] - episode[0])}
    for name in COUNTS:
        growth[name] = float(max(getattr(s, name) for s in second) - max(getattr(s, name) for s in first))
    is_flat = growth["memory_mib"] <= bound_mib and all(growth[name] <= 0 for name in COUNTS)
    return {"growth": growth, "bytes_per_episode": slope * 2**20, "bound_mib": bound_mib, "is_flat": is_flat}
