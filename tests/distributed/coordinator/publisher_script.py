"""A learner in a separate process, which publishes weights once: ``publisher_script FOLDER VERSION SECONDS``.

Each weight is VERSION. Writing them takes SECONDS, during which a part of the file is on the disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from lightning_ding.distributed import block_files
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.config import LearningTask
from lightning_ding.distributed.flask_fs.auth import read_token
from lightning_ding.distributed.flask_fs.channel import FlaskChannel
from lightning_ding.distributed.published_weights import publish_weights

SIZE = 100_000  # weights of four bytes
PARTS = 100


def write_slowly(tensors: dict[str, Any], file: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file in small parts."""
    content = save(tensors, dict(metadata))
    size = len(content) // PARTS + 1
    with file.open("wb") as stream:
        for start in range(0, len(content), size):
            stream.write(content[start : start + size])
            stream.flush()
            time.sleep(float(sys.argv[3]) / PARTS)


def publish(task: AssignedTask) -> None:
    version = int(sys.argv[2])
    state = {"model": {"weight": torch.full((SIZE,), float(version))}, "iter": version}
    publish_weights(worker, LearningTask.read(task.task_info), state)
    worker.leave()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    vars(block_files)["write_tensors"] = write_slowly
    worker = CommWorker(FlaskChannel(folder, token=read_token(None, folder)), "learner")
    sys.exit(worker.run(publish))
