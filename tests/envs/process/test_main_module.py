"""Env processes import gymnasium, numpy and the env's module, but neither torch nor the user's script."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.envs import FaultBarrier, Pausable, make_vector_env
from lightning_ding.envs.process.main_module import hidden_script
from tests.envs.modules import ModulesEnv

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "lightning", "torchmetrics", "tensorboard", "pytest", "scipy", "matplotlib", "jsonargparse"}
SCRIPT = """
import dataclasses, sys
print("the script runs")
import decimal  # stands for torch
import gymnasium as gym
import numpy as np
from lightning_ding.envs import ProcessVectorEnv, make_vector_env

@dataclasses.dataclass
class Note:
    number: int

class Env(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    note = None
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"imports": "decimal" in sys.modules, "note": Note(7)}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}
    def is_note(self):
        return isinstance(self.note, Note) and self.note.number
    def add(self, note):
        return Note(note.number + 1)

gym.register("OfScript-v0", entry_point="__main__:Env")
for envs in (ProcessVectorEnv([Env] * 2, context=sys.argv[1]), make_vector_env("OfScript-v0", 2, "async")):
    infos = envs.reset()[1]
    assert not infos["imports"].any()
    assert [type(note) is Note and note.number for note in infos["note"]] == [7, 7]
    envs.set_attr("note", [Note(3), Note(4)])
    assert envs.call("is_note") == (3, 4)
    assert envs.call("add", Note(1)) == (Note(2), Note(2))
    envs.close()
print("done")
"""


@pytest.mark.usefixtures("own_fork_server")
def test_env_processes_import_only_modules_that_the_env_needs() -> None:
    envs: Any = make_vector_env(ModulesEnv, 2, "async", wrappers=[FaultBarrier, Pausable])
    found = envs.call("modules")
    envs.close()
    for modules in found:
        assert {"gymnasium", "numpy", "lightning_ding"} <= set(modules)
        assert not HEAVY & set(modules)


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_script_needs_no_guard_and_sends_its_own_classes(tmp_path: Path, context: str) -> None:
    script = tmp_path / "bare.py"
    script.write_text(SCRIPT)

    done = subprocess.run([sys.executable, str(script), context], capture_output=True, text=True, timeout=120, cwd=ROOT)

    assert done.stderr == ""
    assert done.stdout.split("\n") == ["the script runs", "done", ""]


def test_threads_that_start_processes_leave_the_script_where_it_is() -> None:
    script = sys.modules["__main__"]

    def start() -> None:
        for _ in range(200):
            with hidden_script():
                assert sys.modules["__main__"] is not script

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.modules["__main__"] is script
