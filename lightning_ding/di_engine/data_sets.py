"""The data sets of DI-engine's configs: files, and the names of D4RL's data sets.

DI-engine gets D4RL's data from the package ``d4rl``, by the name of an env. Here the same HDF5 file is read, if it is
in D4RL's folder, or one of Minari's data sets of the same task.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ding.config import require
from lightning_ding.di_engine.configs import Missing

FILES = (".npz", ".safetensors", ".hdf5", ".h5")
DATA_SET = re.compile(r"\.npz$|\.safetensors$|\.hdf5$|\.h5$|-v\d+$")
EXPERT_FILE = "expert_data.npz"
"""Name of the demonstrations of an expert in their folder."""
PICKLED = re.compile(r"\.(pkl|pickle|pt|pth|tar)$")
TRANSITIONS = (
    "np.savez('{npz}', **{{k: np.stack([np.asarray(t[k]) for t in d]) "
    "for k in ('obs', 'action', 'reward', 'next_obs', 'done')}})"
)
TRAJECTORIES = (
    "np.savez('{npz}', timeouts=np.concatenate([[0] * (len(t['rewards']) - 1) + [1] for t in d]), "
    "**{{k: np.concatenate([t[k] for t in d]) for k in d[0]}})"
)
"""Code that turns a list of DI-engine's transitions, or of D4RL's trajectories, into a file that is read here."""


def find_data_set(name: str, path: Any, hint: str, saves: str = TRANSITIONS) -> str:
    """Return the path of a data set of a known form, or the id of one of Minari's.

    Args:
        name: Name of the key, for the errors.
        path: Path of a file or of a folder with ``expert_data.npz``, or id of a Minari data set. In place of a pickled
            file, an ``.npz`` file of the same name next to it is used.
        hint: Advice for the error if there is no such file.
        saves: Code that converts a pickled file: ``TRANSITIONS`` or ``TRAJECTORIES``.

    Raises:
        ValueError: If ``path`` has another ending and is no id of Minari.
        Missing: If no data set is named, or it is a pickled file.
    """
    text = str(path or "")
    if PICKLED.search(text):
        npz = PICKLED.sub(".npz", text)
        if Path(npz).is_file():
            return npz
        raise Missing(
            f"{name} = {text!r} is a pickled file, which is not read, because reading it runs code. Convert it in your "
            f"own environment: {pickle_command(text, saves)}",
            "data set",
        )
    if text and not Path(text).suffix and DATA_SET.search(text) is None:  # DI-engine's folder of an expert's data
        text = str(Path(text) / EXPERT_FILE)
    allowed = f"an .npz, .hdf5 or .safetensors file, or the id of a Minari data set; {hint}"
    if not text:
        raise Missing(f"{name} must be {allowed}, got {path!r}", "data set")
    require(DATA_SET.search(text) is not None, name, allowed, path)
    return text


def check_there(path: str) -> None:
    """Check that a data set is on this machine.

    Args:
        path: Path of a file, or id of a Minari data set.

    Raises:
        Missing: If it is not.
    """
    if Path(path).suffix in FILES:
        if not Path(path).is_file():
            raise Missing(f"dataset must be the path of a file, got {path!r}, which does not exist", "data set")
    elif not _is_local(path.removeprefix("minari:")):
        raise Missing(f"the data set {path} is not on this machine: minari download {path}", "data set")


def is_of_ding(path: Any) -> bool:
    """Return whether a data set is a file in DI-engine's form, whose actions are those of its env.

    Args:
        path: Path of a file, or anything else, which is not.
    """
    file = Path(str(path or ""))
    if not file.is_file() or file.suffix not in (".npz", ".hdf5", ".h5"):
        return False
    if file.suffix == ".npz":
        with np.load(file) as found:
            names = set(found)
    else:
        import h5py

        with h5py.File(file, "r") as found:
            names = set(found)
    return "done" in names


def pickle_command(path: str, saves: str = TRANSITIONS) -> str:
    """Return the command that converts a pickled file to an ``.npz`` file next to it."""
    command = f"import pickle, numpy as np; d = pickle.load(open('{path}', 'rb')); "
    return f'python -c "{command}{saves.format(npz=PICKLED.sub(".npz", path))}"'


# ---------------------------------------------------------------------------------------------------- D4RL

ROBOTS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}
"""The envs of D4RL's data of MuJoCo's robots, whose observations are those of v2."""
HANDS = {"pen": "AdroitHandPen-v1", "door": "AdroitHandDoor-v1", "hammer": "AdroitHandHammer-v1"}
HANDS |= {"relocate": "AdroitHandRelocate-v1"}
"""The envs of D4RL's data of hands, in the package ``gymnasium_robotics``."""
D4RL_NAME = re.compile(r"(?P<task>[a-z0-9]+)-(?P<data>[a-z-]+)-v(?P<version>\d)")
D4RL_ENV = "a name of D4RL: halfcheetah, hopper or walker2d with -medium, -expert, -medium-expert, -medium-replay or "
D4RL_ENV += "-random, or pen, door, hammer or relocate with -human, -cloned or -expert, such as 'hopper-medium-v2'"
MINARI: dict[str, str] = {
    **{f"{robot}-{data}": f"mujoco/{robot}/{data}-v0" for robot in ROBOTS for data in ("medium", "expert")},
    **{f"{hand}-{data}": f"D4RL/{hand}/{data}-v2" for hand in HANDS for data in ("human", "cloned", "expert")},
}
"""The ids of Minari's data sets, by D4RL's names without their version."""


def env_of_d4rl(name: str) -> str:
    """Return the id of the gymnasium env in which a policy that learned from D4RL's data is evaluated.

    Raises:
        ValueError: If ``name`` is not the name of such data.

    Example:
        >>> env_of_d4rl("halfcheetah-medium-replay-v2")
        'HalfCheetah-v5'
    """
    found = D4RL_NAME.fullmatch(str(name))
    task = found["task"] if found else ""
    require(task in ROBOTS or task in HANDS, "env.env_id", f"{D4RL_ENV}; other envs of D4RL are not available", name)
    return ROBOTS.get(task) or f"gymnasium_robotics:{HANDS[task]}"


def file_of_d4rl(name: str) -> str:
    """Return the name of D4RL's file of a data set.

    Example:
        >>> file_of_d4rl("halfcheetah-medium-replay-v2"), file_of_d4rl("hopper-medium-replay-v0")
        ('halfcheetah_medium_replay-v2.hdf5', 'hopper_mixed.hdf5')
    """
    found = D4RL_NAME.fullmatch(name)
    task, data, version = found.groups() if found else (name, "", "")
    if task in HANDS:
        return {"human": f"{task}-v{version}_demos_clipped.hdf5"}.get(data, f"{name}.hdf5")
    if version == "0":
        return f"{task}_{'mixed' if data == 'medium-replay' else data.replace('-', '_')}.hdf5"
    return f"{task}_{data.replace('-', '_')}-v{version}.hdf5"


def data_of_d4rl(name: str) -> str:
    """Return the path of D4RL's file on this machine, or the id of Minari's data set of the same task.

    Args:
        name: D4RL's name, such as ``"hopper-medium-v2"``.

    Raises:
        Missing: If there is neither.
    """
    folder = Path(os.environ.get("D4RL_DATASET_DIR", "~/.d4rl/datasets")).expanduser()
    file = folder / file_of_d4rl(name)
    if file.is_file():
        return str(file)
    found = MINARI.get(name.rpartition("-v")[0])
    if found is not None and _is_local(found):
        return found
    ways = [f"download it with `minari download {found}`"] if found else []
    ways += [f"put D4RL's file {file.name} into {folder}", "name a file in policy.collect.data_path"]
    raise Missing(f"the data set {name} is not on this machine: {', or '.join(ways)}", "data set")


def _is_local(name: str) -> bool:
    """Return whether one of Minari's data sets is on this machine."""
    try:
        import minari
    except ImportError:
        return False
    return name in minari.list_local_datasets()
