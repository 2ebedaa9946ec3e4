"""The manifest of a checkpoint: the list of its files, which is written last and shows that it is complete."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text

MANIFEST = "manifest.json"
SCHEMA = 1
CHUNK = 1 << 20  # bytes


class TornCheckpointError(ValueError):
    """A folder that is not a complete checkpoint."""


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the manifest of a complete folder: facts such as the env step, and name, size and CRC-32 of every file.

    Raises:
        OSError: If a file cannot be read or the manifest not written.
    """
    files = {name: {"size": path.stat().st_size, "crc32": _crc32(path)} for name, path in sorted(_files(folder))}
    replace_text(folder / MANIFEST, json.dumps({"schema": SCHEMA, **facts, "files": files}, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest that ``write_manifest`` wrote.

    Raises:
        TornCheckpointError: If the manifest is missing or cannot be read.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError as error:
        raise TornCheckpointError(f"{folder} has no {MANIFEST}: it was never completed") from error
    except ValueError as error:
        raise TornCheckpointError(f"{folder / MANIFEST} is not valid JSON: {error}") from error
    known = isinstance(manifest, dict) and manifest.get("schema") == SCHEMA
    if not known or not isinstance(manifest.get("files"), dict):
        raise TornCheckpointError(f"{folder / MANIFEST} must have schema {SCHEMA} and a list of files")
    for name, entry in manifest["files"].items():
        if not isinstance(entry, dict) or not {"size", "crc32"} <= entry.keys():
            raise TornCheckpointError(f"{folder / MANIFEST} must have size and crc32 of {name}, got {entry}")
    return manifest


def verify(folder: Path) -> dict[str, Any]:
    """Check that every file of a checkpoint's manifest exists with unchanged content, and return the manifest.

    Raises:
        TornCheckpointError: If the checkpoint differs from its manifest; the message names the file and the difference.
        OSError: If a file cannot be read.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise TornCheckpointError(f"{file} is missing")
        if file.stat().st_size != expected["size"]:
            raise TornCheckpointError(f"{file} has {file.stat().st_size} bytes, and had {expected['size']}")
        if _crc32(file) != expected["crc32"]:
            raise TornCheckpointError(f"{file} has changed since it was written")
    return manifest


def verify_archive(file: Path) -> None:
    """Check the CRC-32 of each entry of a file in torch's format, which ``torch.load`` does not check.

    Files in another format are not checked.

    Raises:
        TornCheckpointError: If an entry differs from what was written.
        OSError: If the file cannot be read.
    """
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise TornCheckpointError(f"{file} has changed since it was written: {error}") from error
    if damaged is not None:
        raise TornCheckpointError(f"{file} has changed since it was written: its entry {damaged}")


def forget_files(folder: Path, pattern: str) -> None:
    """Remove the files that match a pattern from a checkpoint, which stays complete at every moment.

    Raises:
        TornCheckpointError: If the checkpoint has no manifest.
        OSError: If the manifest cannot be written, or a file cannot be removed.
    """
    manifest = read_manifest(folder)
    gone = {name for name, path in _files(folder) if path.relative_to(folder).match(pattern)}
    if not gone:
        return
    manifest["files"] = {name: entry for name, entry in manifest["files"].items() if name not in gone}
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=1))
    for name in gone:
        (folder / name).unlink()


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Return the names and paths of all files except the manifest."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST]
    return [(path.relative_to(folder).as_posix(), path) for path in files]


def _crc32(file: Path) -> str:
    checksum = 0
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"
