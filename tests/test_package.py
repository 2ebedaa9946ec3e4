from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules(folder: Path, prefix: str) -> set[str]:
    return {prefix + path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def test_wheel_holds_every_module(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: setuptools puts whatever an old build/ still holds into the wheel
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns("build", "*.egg-info", ".*", "runs"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    expected = modules(ROOT / "lightning_ding", "lightning_ding/")
    for name in ("callbacks", "datamodules"):
        expected |= modules(ROOT / name, f"lightning_ding/{name}/")
    assert {name for name in names if name.endswith(".py")} == expected
    assert "lightning_ding/py.typed" in names


@pytest.mark.parametrize("name", ["callbacks", "datamodules"])
def test_folder_at_the_top_refuses_to_be_a_second_copy(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert f"import lightning_ding.{name}, not {name}" in done.stderr


def test_import_writes_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import lightning_ding.entry.lightning_cli"], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []
