"""Rules that are read off the syntax tree of the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unsafe_source import findings

ROOT = Path(__file__).parents[1]
FOLDERS = ("lightning_ding", "callbacks", "datamodules", "recipes", "benchmarks")

UNSAFE = [
    "import pickle; pickle.load(file)",
    "import pickle as p; p.loads(data)",
    "from pickle import load; load(file)",
    "from pickle import loads as read; read(data)",
    "import pickle; read = pickle.load; read(file)",
    "import pickle; map(pickle.loads, lines)",
    "import pickle; pickle.Unpickler(file).load()",
    "from pickle import *",
    "import pickle; getattr(pickle, 'load')(file)",
    "import importlib; importlib.import_module('pickle').load(file)",
    "__import__('pickle').loads(data)",
    "import cloudpickle; cloudpickle.loads(data)",
    "import joblib; joblib.load(file)",
    "import shelve; shelve.open(file)",
    "import torch; torch.load(file)",
    "import torch; torch.load(file, map_location='cpu')",
    "import torch; torch.load(file, weights_only=False)",
    "import torch; torch.load(file, weights_only=not trust)",
    "import torch; torch.load(file, **arguments)",
    "import torch as t; t.load(file)",
    "from torch import load; load(file)",
    "from torch import load as read; read(file, weights_only=None)",
    "import torch.serialization; torch.serialization.load(file)",
    "from torch.serialization import load; load(file)",
    "import torch; read = torch.load; read(file, weights_only=True)",
    "import torch, functools; functools.partial(torch.load, file)",
    "policy.load_from_checkpoint(file, weights_only=False)",
    "import numpy as np; np.load(file, allow_pickle=True)",
    "import numpy as np; np.load(file, None, True)",
    "from numpy import load; load(file, allow_pickle=trust)",
    "import numpy as np; np.load(file, **{'allow_pickle': True})",
    "import numpy as np; np.save(file, data, allow_pickle=True)",
    "import subprocess; subprocess.run(command, shell=True)",
    "from subprocess import Popen; Popen(command, shell=flag)",
    "arguments = {'shell': True}",
    "import subprocess; subprocess.getoutput(command)",
    "import os; os.system(command)",
    "import os as o; o.popen(command)",
    "from os import system; system(command)",
    "from os import popen as run; run(command)",
    "eval(text)",
    "exec(text)",
    "import builtins; builtins.eval(text)",
    "run = eval; run(text)",
    "map(eval, lines)",
    "try:\n    f()\nexcept:\n    pass",
]

INNOCENT = [
    "evaluator.eval()",
    "model.eval(); self.policy.eval()",
    "class Evaluator:\n    def eval(self): ...\n    def exec(self): ...",
    "config.eval.evaluator.n_episode",
    "eval: int = 3",
    "import re; re.compile('x'); compile_seconds = 3",
    "import pickle; pickle.dumps(data)",
    "buffer.load(file); self.load(file)",
    "import json; json.load(file); json.loads(text)",
    "import yaml; yaml.safe_load(text)",
    "import torch; torch.load(file, map_location='cpu', weights_only=True)",
    "from torch import load; load(file, weights_only=True)",
    "trainer.save_checkpoint(file, weights_only=False)",
    "import numpy as np; np.load(file); np.load(file, allow_pickle=False); np.load(file, 'r')",
    "import subprocess; subprocess.run(['ls'], shell=False)",
    "import os; os.replace(a, b); os.kill(1, 2)",
    "from safetensors.torch import load; load(data)",
    "open(file)",
    "from lightning_ding.worker.buffer import *",
    "try:\n    f()\nexcept OSError:\n    pass",
]


def sources() -> dict[str, str]:
    files = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py") if not p.parent.is_symlink()]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def test_source_never_calls_self_log_but_for_an_evaluation() -> None:
    found = [
        name
        for name, source in sources().items()
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("log", "log_dict")
        if call.args or call.keywords  # a tensor's logarithm takes nothing
        if ast.unparse(call.func.value) not in ("math", "np", "torch", "logger", "self._logger", "self.one.experiment")
        if not ast.unparse(call.func.value).startswith("logging.getLogger")
    ]
    assert found == ["lightning_ding/policy/base/metrics.py"]


def test_source_has_nothing_that_could_run_somebody_elses_code() -> None:
    found = {name: texts for name, source in sources().items() if (texts := findings(source))}
    peers = found.pop("benchmarks/killed_sides.py")  # checkpoints of other libraries, which this process has written
    assert {text.partition(": ")[2] for text in peers} == {
        "weights_only must be True",
        "torch.load without weights_only=True",
        "pickle.loads",
    }
    assert found == {}


def test_source_rules_see_many_files() -> None:
    assert len(sources()) > 100


@pytest.mark.parametrize("source", UNSAFE)
def test_rule_catches(source: str) -> None:
    assert findings(source) != []


@pytest.mark.parametrize("source", INNOCENT)
def test_rule_lets_pass(source: str) -> None:
    assert findings(source) == []
