"""Trained policies that come with the package, by name.

    policy = load_policy("zoo:ppo_halfcheetah")

``lightning-ding zoo list`` shows them. Each is a safetensors file of the policy at the end of a run. ``index.json`` has
the command and the commit of each run, and the mean return of greedy episodes. ``python -m benchmarks.ship`` makes the
files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from lightning_ding.config import nearest, require

PREFIX = "zoo:"
FOLDER = Path(__file__).parent
INDEX = "index.json"


@dataclass(frozen=True)
class ZooPolicy:
    """A trained policy of the zoo."""

    name: str
    """The name of its experiment in ``benchmarks/proofs.py``."""
    policy: str
    """Name of the algorithm."""
    env_id: str
    """Env that it was trained in."""
    mean_return: float
    """Mean return of greedy episodes that training did not use."""
    episodes: int
    """Number of these episodes."""
    env_step: int
    """Env steps of the run."""
    seed: int
    """Seed of the run."""
    commit: str
    """Commit of this project that the run was made with."""
    command: str
    """Command that trains and writes it again."""
    sha256: str
    """Hash of the file."""

    @property
    def file(self) -> Path:
        """The safetensors file."""
        return FOLDER / f"{self.name}.safetensors"


def policies(folder: Path = FOLDER) -> dict[str, ZooPolicy]:
    """Return the policies of the zoo by name.

    Args:
        folder: Folder with ``index.json``.
    """
    entries = json.loads((folder / INDEX).read_text())
    return {name: ZooPolicy(name, **entry) for name, entry in entries.items()}


def find(name: str) -> ZooPolicy:
    """Return a policy of the zoo whose file is as it was written.

    Args:
        name: Its name, with or without ``zoo:``.

    Raises:
        ValueError: If there is no such policy, or its file has changed.
    """
    known = policies()
    short = name.removeprefix(PREFIX)
    require(short in known, "name", f"that of a policy in the zoo ({nearest(short, known)})", name)
    found = known[short]
    is_whole = found.file.is_file() and hashlib.sha256(found.file.read_bytes()).hexdigest() == found.sha256
    require(is_whole, "the file of the policy", f"as {INDEX} describes it: install the package again", str(found.file))
    return found


def path_of(path: str | Path) -> Path:
    """Return the file that ``zoo:NAME`` means; any other path as it is.

    Raises:
        ValueError: If the zoo has no such policy.
    """
    return find(path).file if isinstance(path, str) and path.startswith(PREFIX) else Path(path)
