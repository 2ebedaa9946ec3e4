"""Two hosts: network namespaces that are joined by one cable, and share a disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

SETUP = """
mount -t tmpfs none /run
ip netns add a
ip netns add b
ip link add cable_a netns a type veth peer name cable_b netns b
ip -n a addr add 10.99.0.1/24 dev cable_a
ip -n b addr add 10.99.0.2/24 dev cable_b
ip -n a link set cable_a up
ip -n b link set cable_b up
"""

COORDINATOR = """
import json, sys
from pathlib import Path
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.file_store import FileStore
folder = Path(sys.argv[1])
store = FileStore(folder / "data")
total = lambda name, message: {"total": int(store.get(message["data_id"]).tensors["x"].sum())}
try:
    FlaskServer(total, "10.99.0.1")
except ValueError as error:
    print(error)
server = FlaskServer(total, "10.99.0.1", token="0123456789abcdef")
server.start()
(folder / "new").write_text(json.dumps({"host": "10.99.0.1", "port": server.port}))
(folder / "new").rename(folder / "coordinator.json")
sys.stdin.read()
server.close()
"""

WORKER = """
import socket, sys
from pathlib import Path
import torch
from lightning_ding.distributed.transport import Refusal
from lightning_ding.distributed.flask_fs.channel import FlaskChannel
folder = Path(sys.argv[1])
channel = FlaskChannel(folder, token="0123456789abcdef", reconnect_timeout=60)
handle = channel.store.put("data", {"x": torch.arange(10)})
print(channel.call("collector_data_task", {"data_id": handle}))
try:
    FlaskChannel(folder).call("collector_data_task", {"data_id": handle})
except Refusal as refusal:
    print(refusal)
"""


def inside(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell script as root in separate namespaces."""
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "bash",
        "-ec",
    ]
    words = [*command, SETUP + script, "bash", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)


@pytest.mark.slow
def test_a_worker_on_another_host_reaches_the_coordinator_with_its_token_alone(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs the programs unshare and ip")
    probe = inside("true")
    if probe.returncode != 0:
        pytest.skip(f"no network namespaces here: {probe.stderr.strip()[:200]}")
    (tmp_path / "coordinator.py").write_text(COORDINATOR)
    (tmp_path / "worker.py").write_text(WORKER)
    script = """
    mkfifo "$2/end"
    ip netns exec a "$1" "$2/coordinator.py" "$2" < "$2/end" > "$2/said" &
    exec 3> "$2/end"
    ip netns exec b "$1" "$2/worker.py" "$2"
    exec 3>&-
    wait
    cat "$2/said"
    """
    found = inside(script, sys.executable, tmp_path)
    assert found.returncode == 0, found.stderr
    worker, refused, coordinator = found.stdout.splitlines()
    assert worker == "{'total': 45}"
    assert refused.startswith("401: ")
    assert coordinator.startswith("host must be a loopback address unless there is a token")
