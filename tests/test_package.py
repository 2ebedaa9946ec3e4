from __future__ import annotations

import shutil
import subprocess
import sys
import venv
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


@pytest.mark.slow
def test_wheel_and_sdist_work_in_a_new_environment(tmp_path: Path) -> None:
    """Packages that this one needs are those of this environment, so that nothing is downloaded."""
    source, dist = tmp_path / "source", tmp_path / "dist"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns("build", "*.egg-info", ".*", "runs"))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    files = sorted(dist.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    for file in files:
        folder, made = tmp_path / file.suffix[1:], tmp_path / f"from{file.suffix}"
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", made, file], check=True)
        venv.create(folder)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        install = [*pip, "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index"]
        subprocess.run([*install, *made.iterdir()], check=True)
        code = "import lightning_ding.callbacks as one; print(one.__file__)"
        python = [str(folder / "bin" / "python"), "-c", code]
        where = subprocess.run(python, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()
        assert Path(where).is_relative_to(site)
        fit = ["fit", "--policy", "dqn", "--data.env_id", "CartPole-v1", "--data.max_env_step", "20"]
        flags = ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(folder / "run")]
        subprocess.run([folder / "bin" / "lightning-ding", *fit, *flags], cwd=tmp_path, check=True)
        assert list(folder.glob("run/**/last.ckpt"))


@pytest.mark.parametrize("name", ["callbacks", "datamodules"])
def test_folder_at_the_top_refuses_to_be_a_second_copy(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert f"import lightning_ding.{name}, not {name}" in done.stderr


def test_import_writes_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import lightning_ding.entry.lightning_cli"], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []
