"""Snapshots and journal entries that have changed on the disk: nothing is lost, and nothing is used silently."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.checkpoints.manifest import write_manifest
from tests.distributed.coordinator.coordinating import Run, both, config, transitions


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Run, Any]:
    """Return a run with two snapshots, and entries after each of them, and its collector."""
    run = Run(config(tmp_path / "run"))
    _, collector = both(run)
    for first in (0, 4):
        collector.send(transitions(first=first))
        run.coordinator.save()
    collector.send(transitions(first=8))
    return run, collector


def folder_of(run: Run, name: str) -> Path:
    """Return the folder of a kind of files of the only buffer."""
    (folder,) = Path(run.cfg["main"]["exp_name"], "coordinator", name).iterdir()
    return folder


def flip(file: Path, where: float = 0.9) -> None:
    """Flip a bit of a file."""
    content = bytearray(file.read_bytes())
    content[int(where * len(content))] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


def test_snapshot_of_an_earlier_version_with_a_count_that_is_gone_is_read(saved: tuple[Run, Any]) -> None:
    run, collector = saved
    before = (run.rows(), asdict(run.counts))
    for folder in folder_of(run, "snapshots").iterdir():
        file = folder / "state.json"
        state = json.loads(file.read_text())
        file.write_text(json.dumps({**state, "counts": {**state["counts"], "serial": 3}}))
        write_manifest(folder, {"entry": state["counts"]["accepted"]})

    run.restart()

    assert (run.rows(), asdict(run.counts)) == before
    assert "serial" not in before[1]
    assert collector.send(transitions(first=12))["accepted"]


DAMAGES: list[tuple[str, str, Callable[[Path], None]]] = [
    (name, told, damage)
    for name in ("buffer.safetensors", "state.json")
    for told, damage in (("has changed since", flip), (" bytes, and had ", truncate), (" is missing", Path.unlink))
]
DAMAGES += [("manifest.json", "is not valid JSON", truncate), ("manifest.json", "has no manifest.json", Path.unlink)]


@pytest.mark.parametrize(("name", "told", "damage"), DAMAGES)
def test_damaged_snapshot_is_replaced_by_the_one_before_it_and_the_journal_with_one_line(
    name: str, told: str, damage: Any, saved: tuple[Run, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run, collector = saved
    before = (run.rows(), asdict(run.counts))
    older, newer = sorted(folder_of(run, "snapshots").iterdir())
    damage(newer / name)

    run.restart()

    assert (run.rows(), asdict(run.counts)) == before
    (line,) = errors(caplog)
    assert line.startswith(f"the snapshot {newer.name} of {newer.parent.name} cannot be used: {newer}")
    assert line.endswith(f"; using {older} and all entries of the journal after it instead, so no data are lost")
    assert "\n" not in line
    assert told in line
    assert collector.send(transitions(first=12))["accepted"]
    run.coordinator.save()
    third = newer.with_name("000000000003")
    assert sorted(folder_of(run, "snapshots").iterdir()) == [older, third]  # both can be used
    caplog.clear()
    run.restart()
    assert run.rows()["reward"] == list(range(16))
    assert errors(caplog) == []


def test_damaged_first_snapshot_is_replaced_by_the_whole_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(config(tmp_path / "run"))
    _, collector = both(run)
    for first in (0, 4):
        collector.send(transitions(first=first))
    run.coordinator.save()
    flip(folder_of(run, "snapshots") / "000000000001" / "buffer.safetensors")
    run.restart()
    assert run.rows()["reward"] == list(range(8))
    (line,) = errors(caplog)
    assert line.endswith("using the whole journal instead, so no data are lost")


def test_run_is_not_resumed_without_the_data_of_its_damaged_snapshots(saved: tuple[Run, Any]) -> None:
    run, _ = saved
    older, newer = sorted(folder_of(run, "snapshots").iterdir())
    for folder in (older, newer):
        flip(folder / "buffer.safetensors")
    run.coordinator.run.database.close()
    files = {file: file.read_bytes() for file in older.parents[2].rglob("*") if file.is_file()}
    with pytest.raises(
        ValueError, match=r"data of the run cannot be restored: .*2/buffer.* has changed .*; there is no"
    ):
        run.restart()
    assert {file: file.read_bytes() for file in older.parents[2].rglob("*") if file.is_file()} == files


@pytest.mark.parametrize("part", ["record", "data"])
def test_entry_that_has_changed_is_set_aside_with_an_error_and_not_used(
    part: str, saved: tuple[Run, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run, collector = saved
    collector.send(transitions(first=12))
    entry = sorted(folder_of(run, "journal").iterdir())[-2]
    if part == "record":
        text = json.dumps(run.entries[3]).replace('"env_step": 4', '"env_step": 5')
        database = run.coordinator.run.database
        database._connected().execute("UPDATE records SET value = ? WHERE name = 3", (text,))
    else:
        flip(entry)

    run.restart()

    assert run.rows()["reward"] == [*range(8), *range(12, 16)]
    (line,) = errors(caplog)
    assert line.startswith(f"the journal entry {entry.stem} cannot be used, its data are in ")
    assert "changed since" in line
    assert [file.name for file in folder_of(run, "damaged").iterdir()] == [entry.name]
    assert list(run.entries) == [2, 4]
    assert collector.send(transitions(first=16))["accepted"]


def test_entry_whose_record_has_no_number_any_more_is_set_aside_too(
    saved: tuple[Run, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run, collector = saved
    collector.send(transitions(first=12))
    run.coordinator.run.database._connected().execute("UPDATE records SET name = 'x' WHERE name = 3")
    run.restart()
    assert run.rows()["reward"] == [*range(8), *range(12, 16)]
    (line,) = errors(caplog)
    assert line.startswith("the journal entry 000000000003_")
    assert line.endswith(": its record is missing")


def test_acknowledged_entries_that_are_gone_are_reported(
    saved: tuple[Run, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run, collector = saved
    collector.send(transitions(first=12))
    (data,) = folder_of(run, "journal").glob("000000000003*")
    data.unlink()
    run.coordinator.run.database.write({(f"entry of {run.replay.buffer_id}", 3): None})
    run.restart()
    (line,) = errors(caplog)
    assert line.startswith("1 acknowledged messages of the attempt ")


def test_data_without_their_record_are_reported(saved: tuple[Run, Any], caplog: pytest.LogCaptureFixture) -> None:
    run, _ = saved
    run.coordinator.run.database.write({(f"entry of {run.replay.buffer_id}", 3): None})
    entry = max(folder_of(run, "journal").iterdir())
    run.restart()
    (line,) = errors(caplog)
    assert line.startswith(f"the journal entry {entry.stem} cannot be used")
    assert line.endswith("its record is missing")
