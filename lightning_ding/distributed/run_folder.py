"""What the folder of a distributed run holds, before one is started in it."""

from __future__ import annotations

from pathlib import Path


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run that can be gone on with."""
    return (folder / "coordinator" / "state.json").exists()


def check_folder(folder: Path, resume: bool) -> None:
    """See that a run can be started, or gone on with, in a folder; call it before anything in there is deleted.

    Args:
        folder: ``main.exp_name`` of the run.
        resume: A run is to be gone on with.

    Raises:
        ValueError: If the folder holds a run and ``resume`` is false, or none that is not over and ``resume`` is true.
    """
    name = f"main.exp_name={str(folder)!r}"
    if holds_run(folder):
        if not resume:
            raise ValueError(f"{name} holds a run: --resume goes on with it, or name another folder")
    elif (folder / "result.json").exists() or (not resume and (folder / "learner").exists()):
        raise ValueError(f"{name} holds a run that is over: name another folder")
    elif resume:
        raise ValueError(f"{name} holds no run to go on with")
