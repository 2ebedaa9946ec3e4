"""Two ranks of torch.distributed that try what learners do together; started once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("learner_ranks_script.py")


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two gloo ranks reports; see learner_ranks_script.py."""
    folder = tmp_path_factory.mktemp("two_ranks")
    command = [sys.executable, str(SCRIPT), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=120)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks that it started too
            raise
    assert process.returncode == 0, output
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]
