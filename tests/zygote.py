"""A process that has imported the large packages and forks for each script: python -m tests.zygote DESCRIPTOR.

Importing torch and Lightning takes seconds, and a fork milliseconds. A forked script runs as a new Python would run it,
in a separate process with the arguments, the folder, the environment and the streams that ``tests.processes`` sends.
It imports lightning_ding itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import types
from typing import Any

IMPORTED: tuple[str, ...] = (
    "torch.utils.tensorboard",
    "torch.distributed.optim",
    "torch.onnx",
    "lightning",
    "gymnasium.vector",
)
IMPORTED += ("jsonargparse", "omegaconf", "lightning.pytorch.cli", "safetensors.torch")


def next_script(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request; return it in the process that shall run it, and None at the end of all requests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # waits for the processes that wait for scripts
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not message:
            return None
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            *streams, status = descriptors
            script = os.fork()
            if script == 0:
                os.close(status)
                return json.loads(message), streams
            report(script, status, streams)
        for descriptor in descriptors:
            os.close(descriptor)


def report(script: int, status: int, streams: list[int]) -> None:
    """Write the id of a script's process, wait for its end, write its exit code, and end."""
    for descriptor in (0, 1, 2, *streams):
        os.close(descriptor)
    os.write(status, f"{script}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
    os.write(status, f"{code}\n".encode())
    os._exit(0)


def run(arguments: list[str]) -> None:
    """Run what ``python ARGUMENTS`` runs."""
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    """Fork for each request, and run its script."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("tests.quick_parsing").install()
    threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else [""]
    assert len(threads) == 1, "a forked process has one thread"
    gc.collect()
    gc.freeze()
    script = next_script(control)
    if script is None:
        return
    control.close()
    request, streams = script
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["start_new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    path, new_path = os.environ["PYTHONPATH"], request["environment"]["PYTHONPATH"]
    sys.path[:] = [new_path if entry == path else entry for entry in sys.path]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    run(request["arguments"])


if __name__ == "__main__":
    main()
