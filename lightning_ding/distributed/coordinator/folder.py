"""The folder of a run: the lock of its coordinator, the run that it holds, and the checks before a start."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.database import DamagedError, Database, Key
from lightning_ding.distributed.coordinator.resume import check_end, name_of

COORDINATOR = "coordinator"
"""Folder of the coordinator's files in the folder of a run."""
DATABASE_FILE = "run.db"
"""Database of a run, in that folder; there is one as long as the run can be resumed."""
PARTS_OF_STATE = {"scheduler", "results", "evaluations", "buffers", "fixed", "least"}
KINDS = ("tasks", "contents")
"""Parts of the state with a record for each task: what changes, and the ``task_info``."""
LOCK_FILE = "coordinator.lock"
PAUSE = 0.1  # seconds between two attempts


class FolderInUseError(ValueError):
    """Another coordinator uses the folder of a run."""


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a folder against other coordinators, in this process and in others, inside a ``with`` block.

    The kernel releases the lock at the end of the process, however it ends.

    Args:
        folder: Folder of the run, which is made if it does not exist.
        patience: Seconds to wait for a coordinator that is ending, >= 0.

    Raises:
        FolderInUseError: If another coordinator uses the folder.
    """
    import fcntl  # not available on Windows

    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with (folder / LOCK_FILE).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    told = f"another coordinator uses {str(folder)!r}; choose another main.exp_name"
                    raise FolderInUseError(told) from None
            time.sleep(PAUSE)
        yield


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run that can be resumed."""
    return (folder / COORDINATOR / DATABASE_FILE).exists()


def database_of(folder: Path) -> Database:
    """Return the database of the run in a folder, which need not exist."""
    return Database(folder / COORDINATOR / DATABASE_FILE)


def records_of(state: Mapping[str, Any]) -> dict[Key, Any]:
    """Return the records of a state, of which a change of a task rewrites few."""
    parts: dict[Key, Any] = {("state", name): part for name, part in state.items() if name not in KINDS}
    return parts | {(kind, name): value for kind in KINDS for name, value in state[kind].items()}


def read_state(database: Database) -> dict[str, Any]:
    """Return the state of a run.

    Raises:
        DamagedError: If a record of it is missing or damaged.
    """
    kinds = {kind: dict(database.read(kind)) for kind in ("state", *KINDS)}
    found = kinds.pop("state")
    damaged = (one for part in (found, *kinds.values()) for one in part.values() if isinstance(one, DamagedError))
    why = next(damaged, f"it has the records {sorted(found)}")
    is_whole = found.keys() >= PARTS_OF_STATE and kinds["tasks"].keys() == kinds["contents"].keys()
    if isinstance(why, DamagedError) or not is_whole:
        raise DamagedError(f"{database.file} is damaged, so the run cannot be resumed: {why}")
    return {"finished": None, **found, **kinds}


def check_start(config: ParallelConfig, resume: bool, may_have_learner: bool = False) -> bool:
    """Check that a run can be started or resumed in its folder, before anything is written there.

    Args:
        config: Config of the run.
        resume: Whether a run is to be resumed.
        may_have_learner: Whether a learner of a new run may have written into the folder already.

    Returns:
        Whether the run in the folder is finished.

    Raises:
        ValueError: If another coordinator uses the folder, it holds files of a run and ``resume`` is false, or
            ``resume`` is true and it holds no run, or a finished one that the config would end again.
    """
    folder = Path(config.main.exp_name)
    with locked(folder) if (folder / LOCK_FILE).exists() else nullcontext():
        check_folder(folder, resume, may_have_learner)
        if not holds_run(folder):
            return False
        database = database_of(folder)
        try:
            end = read_state(database)["finished"]
        except OSError as error:
            told = f"{database.file} cannot be read, perhaps another process uses it: {error}"
            raise FolderInUseError(told) from error
        finally:
            database.close()
    if end is not None:
        check_end(end, config)
    return end is not None


def check_folder(folder: Path, resume: bool, may_have_learner: bool = False) -> None:
    """Check that a folder holds no run, or one if a run is to be resumed; see :func:`check_start`."""
    name, files = name_of(folder), folder / COORDINATOR
    if holds_run(folder):
        if not resume:
            raise ValueError(
                f"{name} contains a run: --resume continues it, a finished one with a larger limit such as "
                "main.max_env_step, or choose another folder"
            )
        return
    has_result, has_learned = (folder / "result.json").exists(), (folder / "learner").exists()
    if not resume and (has_result or (has_learned and not may_have_learner)):
        raise ValueError(f"{name} contains a finished run: choose another folder")
    if has_result:
        raise ValueError(
            f"{name} contains a finished run without its data, which main.keep_data=false deletes, so it cannot be "
            "continued: choose another folder"
        )
    left = next((file for file in files.rglob("[!.]*") if file.is_file()), None)
    if left is not None:
        raise ValueError(
            f"{name} contains files of a run, such as {left.relative_to(folder)}, but not {COORDINATOR}/{DATABASE_FILE}"
            ", without which it cannot be resumed; nothing was changed: restore that file, or choose another folder"
        )
    if resume:
        raise ValueError(f"{name} contains no run to resume: start without --resume, or correct main.exp_name")
