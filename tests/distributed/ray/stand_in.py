"""A stand-in for the coordinator's actor."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import torch

from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.ray.workers import answer
from lightning_ding.distributed.transport import Refusal


class StandIn:
    """Does with blocks what a coordinator does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RayStore(folder)
        self.weights: Any = None
        self.failed = 0
        self.rounds: list[Any] = []
        self.is_free = threading.Event()

    def handle(self, name: str, message: Any, deleted: Any) -> Any:
        return answer(self.said, self.store, name, message, deleted)

    def said(self, name: str, message: Any) -> Any:
        return getattr(self, name)(message)

    def echo(self, message: Any) -> Any:
        return message

    def pid(self, message: Any) -> Any:
        return {"pid": os.getpid()}

    def refuse(self, message: Any) -> Any:
        raise Refusal(message["status"], "because")

    def defect(self, message: Any) -> Any:
        raise ZeroDivisionError("a defect")

    def journal(self, message: Any) -> Any:
        self.store.move(message["data_id"], self.folder / "journal.safetensors")
        return {"accepted": True}

    def full_disk(self, message: Any) -> Any:
        """Fail twice as if the disk was full, then answer."""
        self.failed += 1
        if self.failed % 3:
            raise OSError(errno.ENOSPC, "no space left")
        return self.journal(message)

    def always_full(self, message: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left")

    def collector_data_task(self, message: Any) -> Any:
        """Wait as for a snapshot."""
        return {"accepted": self.is_free.wait(30.0)}

    def heartbeat(self, message: Any) -> Any:
        return {}

    def free(self, message: Any) -> Any:
        self.is_free.set()
        return {}

    def not_yet(self, message: Any) -> Any:
        return {"accepted": False, "wait": 0.1}

    def learned(self, message: Any) -> Any:
        handle = message["info"]["priority_info"]
        total = float(self.store.get(handle).tensors["priority"].sum())
        self.store.delete(handle)
        return {"sum": total}

    def batch(self, message: Any) -> Any:
        self.rounds.append(self.store.put("batch", {"obs": torch.arange(message["rows"])}))
        return {"data": self.rounds[-1]}

    def publish(self, message: Any) -> Any:
        self.weights = message["data_id"]
        self.store.get(self.weights)
        (self.folder / "weights").write_text(self.weights["name"])
        return {"serial": 0}

    def newest(self, message: Any) -> Any:
        name = (self.folder / "weights").read_text()
        return {"handle": {"kind": "policy", "name": name}}

    def held(self, message: Any) -> Any:
        return {"rounds": len([one for one in self.rounds if one.content is not None])}
