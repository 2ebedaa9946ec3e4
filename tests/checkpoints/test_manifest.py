from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_ding.checkpoints import TornCheckpointError, verify
from lightning_ding.checkpoints.manifest import forget_files, write_manifest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a folder with a manifest."""
    folder = tmp_path / "last-64"
    for name in ("run.ckpt", "rank_0/rng.pt", "rank_0/buffer.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")
    write_manifest(folder, {"env_step": 64})
    return folder


def test_manifest_lists_every_file_with_size_and_checksum(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert manifest["env_step"] == 64
    assert sorted(manifest["files"]) == ["rank_0/buffer.safetensors", "rank_0/rng.pt", "run.ckpt"]
    content = b"content of run.ckpt"
    assert manifest["files"]["run.ckpt"] == {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def test_complete_checkpoint_verifies_and_returns_its_manifest(checkpoint: Path) -> None:
    assert verify(checkpoint)["env_step"] == 64


def shorten(folder: Path) -> None:
    (folder / "rank_0" / "rng.pt").write_text("content")


def change(folder: Path) -> None:
    (folder / "rank_0" / "rng.pt").write_text("content of rank_0/rng.px")


def remove(folder: Path) -> None:
    (folder / "run.ckpt").unlink()


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def cut_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schema": 1, "files"')


def write_other_json(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"name": "a web page"}')


def change_key(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(file.read_text().replace('"size"', '"sizf"', 1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shorten, "rank_0/rng.pt has 7 bytes, and had 24"),
        (change, "rank_0/rng.pt has changed since it was written"),
        (remove, "run.ckpt is missing"),
        (remove_manifest, "last-64 has no manifest.json: it was never completed"),
        (cut_manifest, "manifest.json is not valid JSON"),
        (write_other_json, "manifest.json must have schema 1 and a list of files"),
        (change_key, "manifest.json must have size and crc32 of rank_0/buffer.safetensors, got {"),
    ],
)
def test_damage_is_found_and_named(checkpoint: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(checkpoint)
    with pytest.raises(TornCheckpointError, match=re.escape(message)):
        verify(checkpoint)


def test_checkpoint_is_whole_without_the_files_that_it_has_forgotten(checkpoint: Path) -> None:
    forget_files(checkpoint, "rank_*/buffer*")
    assert sorted(verify(checkpoint)["files"]) == ["rank_0/rng.pt", "run.ckpt"]
    assert verify(checkpoint)["env_step"] == 64
    assert not (checkpoint / "rank_0" / "buffer.safetensors").exists()


def test_checkpoint_is_whole_if_forgetting_is_broken_off(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("killed here")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OSError, match="killed here"):
        forget_files(checkpoint, "rank_*/buffer*")
    verify(checkpoint)
