"""The count of files for DI-engine that find their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import ding_names


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # which the hook extends
    files = {
        "dizoo/toy/envs/toy_env.py": "from ding.envs import BaseEnv\n@ENV_REGISTRY.register('toy')\nclass Toy: ...\n",
        "dizoo/toy/envs/test_toy_env.py": "ENV_REGISTRY.register\nfrom ding.nothing import x\n",
        "dizoo/toy/entry/toy_dqn_main.py": "def main():\n    from ding.policy import DQNPolicy, IBCPolicy\n",
        "dizoo/toy/entry/toy_deploy.py": "import ding.model\nimport torch\n",
        "ding/policy/common_utils.py": "from ding.nothing import x\n",
        "ding/policy/mine.py": "from .base_policy import Policy\nfrom ..utils import Registry\nfrom . import sac\n",
        "ding/example/dqn.py": "from ding.framework import task\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_and_missing_names_are_counted(sources: Path) -> None:
    found = ding_names.check(sources)
    assert {kind: (one.complete, len(one.files)) for kind, one in found.items()} == {
        "env files": (1, 1),
        "main, eval and deploy scripts": (1, 2),
        "policy sources": (0, 1),
        "examples": (1, 1),
    }
    missing = found["main, eval and deploy scripts"].files["dizoo/toy/entry/toy_dqn_main.py"]
    assert missing == [("ding.policy", "IBCPolicy")]
    assert found["policy sources"].files["ding/policy/mine.py"] == [("ding.policy", "sac")]


def test_counts_are_printed(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = sources / "names.json"
    ding_names.main(["--folder", str(sources), "--missing", "1", "--out", str(out)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "1 of 2 main, eval and deploy scripts find every name"
    assert len(lines) == 5
    assert '"IBCPolicy"' in out.read_text()
