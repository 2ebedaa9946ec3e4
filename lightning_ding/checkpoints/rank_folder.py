"""Where the ranks' own data of a checkpoint lie."""

from __future__ import annotations

from pathlib import Path

RUN_FILE = "run.ckpt"
"""Lightning's part of a checkpoint, in the checkpoint's folder."""


def find_rank_folder(checkpoint: Path, rank_folder: str) -> Path | None:
    """Return the folder that holds ``rank_0`` and so on of a checkpoint, or None if there is none.

    Args:
        checkpoint: ``last.ckpt`` beside the folder, or ``run.ckpt`` in it; the folder may have been renamed since.
        rank_folder: The folder's name when it was written, which stands in the checkpoint.
    """
    inside, beside = checkpoint.parent, checkpoint.parent / rank_folder
    candidates = [inside, beside] if checkpoint.name == RUN_FILE else [beside]
    return next((folder for folder in candidates if (folder / "rank_0").is_dir()), None)
