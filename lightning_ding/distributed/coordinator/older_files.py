"""Files of runs of earlier versions, which kept state, publications and entries in a JSON file each."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_ding.distributed.coordinator.database import DamagedError, Database, Key

logger = logging.getLogger(__name__)

STATE_FILE = "state.json"


def import_older(files: Path, database: Database) -> None:
    """Move the records of an earlier version into the database; do nothing if there are none.

    Args:
        files: Folder of the coordinator's files.
        database: The database, which does not exist yet.

    Raises:
        DamagedError: If the state is damaged.
        OSError: If a file cannot be read or written.
    """
    if database.file.exists() or not (state_file := files / STATE_FILE).exists():
        return
    records: dict[Key, Any] = {}
    try:
        state = json.loads(state_file.read_text())
        scheduler = state["scheduler"]
        book = scheduler.pop("book")
        records |= {("state", name): state.get(name) for name in ("results", "buffers", "fixed", "finished")}
        records["state", "scheduler"] = {**scheduler, "runs": book["runs"], "over": book["over"]}
        for task in book["tasks"]:
            records["contents", task["task_id"]] = task.pop("info")
            task.pop("attempts", None)
            records["tasks", task["task_id"]] = task
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"{state_file} is damaged, so the run cannot be resumed: {error!r}") from error
    records |= _publications(files / "policies.json")
    entries = [file for file in files.glob("journal/*/*.json") if file.name[0].isdigit()]
    for file in entries:
        records |= _entry(file)
    database.write(records)
    for file in (*entries, files / "policies.json", state_file):
        file.unlink(missing_ok=True)


def _publications(file: Path) -> dict[Key, Any]:
    try:
        content = json.loads(file.read_text()) if file.exists() else {"policies": {}, "snapshots": []}
        found: dict[Key, Any] = {}
        for name, known in content["policies"].items():
            about = {"is_snapshot": name in content["snapshots"]}
            found["policy", name] = [renamed(one, version="policy_version") | about for one in known]
        return found
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # after a power failure
        logger.error("%s is truncated, and the weights in it are lost: %s", file, error)
        return {}


def _entry(file: Path) -> dict[Key, Any]:
    """Return the record of an entry; none if it is damaged, as its data are then found to have no record."""
    try:
        content = json.loads(file.read_text())
        content.pop("crc32", None)
        return {(f"entry of {file.parent.name}", content["number"]): renamed(content, newest_version="policy_version")}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.error("the journal entry %s cannot be used: %s", file, error)
        return {}


def renamed(saved: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return a saved mapping with the current names of its keys.

    Args:
        saved: Mapping from a file that an earlier version may have written.
        names: Current name of each key by its earlier name.

    Example:
        >>> renamed({"newest_version": 3, "seq": 0}, newest_version="policy_version")
        {'policy_version': 3, 'seq': 0}
    """
    return {names.get(key, key): value for key, value in dict(saved).items()}
