"""Files of data sets: ``.npz``, files of our replay buffers, and Minari's data sets.

An ``.npz`` file has the entries of :class:`Dataset`, nested ones with names such as ``obs/camera``, and may have the
action space: ``action_low`` and ``action_high`` of a Box, or ``action_n`` and ``action_start`` of a Discrete space.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from gymnasium import spaces
from safetensors import SafetensorError, safe_open

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.dataset import NAMES, Dataset
from lightning_ding.worker import create_buffer

DatasetLike = str | Path | Mapping[str, Any] | Dataset
MINARI_ID = re.compile(r"(minari:)?(?P<id>([\w.-]+/)*[\w.-]+-v\d+)")
SPACE_ENTRIES = ("action_low", "action_high", "action_n", "action_start")
KINDS_OF_BUFFERS = {"NaiveReplayBuffer": "naive", "AdvancedReplayBuffer": "advanced", "HERReplayBuffer": "her"}
KINDS = "the path of an .npz file or of a replay buffer's .safetensors file, or the id of a Minari data set (name-v0)"


def load_dataset(source: DatasetLike) -> Dataset:
    """Return a data set from a file, from Minari, or from arrays.

    Args:
        source: Path of an ``.npz`` file, or of a ``.safetensors`` file that a replay buffer saved; id of a Minari data
            set on this machine, such as ``mujoco/hopper/medium-v0``; a mapping of arrays, see :class:`Dataset`; or a
            :class:`Dataset`.

    Raises:
        ValueError: If there is no such file or data set, or its data are not valid.
        ImportError: If the extra ``minari`` is needed and not installed.
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Mapping):
        return Dataset(source)
    require(isinstance(source, (str, os.PathLike)), "dataset", f"{KINDS}, or arrays", source)
    try:
        found = _read(Path(source))
    except ValueError as error:
        if str(source) in str(error):
            raise
        raise ValueError(f"{error} (in {source})") from error
    found.source = str(source)
    return found


def _read(path: Path) -> Dataset:
    """Return a data set from a file or from Minari."""
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".safetensors":
        return _read_buffer(path)
    found = MINARI_ID.fullmatch(str(path))
    require(found is not None, "dataset", KINDS, str(path))
    return _read_minari(found["id"])  # type: ignore[index]


def save_dataset(episodes: Sequence[Mapping[str, Any]], target: str, env: Any, algorithm: str) -> None:
    """Write whole episodes to an ``.npz`` file or as a Minari data set.

    Args:
        episodes: Nested arrays with leading axis T: ``obs``, ``action`` in the env's units, ``reward``, ``next_obs``,
            ``terminated`` and ``truncated``.
        target: Path that ends in ``.npz``, or id of a new Minari data set.
        env: Env that was played, with ``observation_space``, ``action_space`` and ``spec``.
        algorithm: Name of the policy that played, for Minari.

    Raises:
        ValueError: If the target is neither, or there is such a data set already.
        ImportError: If the extra ``minari`` is needed and not installed.
    """
    check_target(target)
    if target.endswith(".npz"):
        _write_npz(episodes, Path(target), env.action_space)
    else:
        _write_minari(episodes, MINARI_ID.fullmatch(target)["id"], env, algorithm)  # type: ignore[index]


def check_target(target: str) -> None:
    """Check that a data set can be written under a name; see :func:`save_dataset`."""
    if target.endswith(".npz"):
        require(not Path(target).exists(), "out", "a path that does not exist yet", target)
        return
    found = MINARI_ID.fullmatch(target)
    require(found is not None, "out", "a path that ends in .npz, or the id of a Minari data set (name-v0)", target)
    known = import_minari().list_local_datasets()
    require(found["id"] not in known, "out", "the id of no data set on this machine", target)  # type: ignore[index]


def import_minari() -> Any:
    """Return the module ``minari``.

    Raises:
        ImportError: If the extra is not installed.
    """
    try:
        import minari
    except ImportError as error:
        raise ImportError("Minari's data sets need the extra: pip install 'lightning_ding[minari]'") from error
    return minari


def _read_npz(path: Path) -> Dataset:
    require(path.is_file(), "dataset", "the path of a file", str(path))
    require(is_zipfile(path), "dataset", "an .npz file", f"{path}, which is no zip file")
    try:
        with np.load(path, allow_pickle=False) as file:
            flat = {name: file[name] for name in file.files}
    except (BadZipFile, ValueError) as error:  # the second for an array of objects, which would need pickle
        raise ValueError(f"dataset must be an .npz file, got {path}: {error}") from error
    known = {name: flat.pop(name) for name in SPACE_ENTRIES if name in flat}
    action_space: spaces.Space[Any] | None = None
    if "action_low" in known:
        action_space = spaces.Box(known["action_low"], known["action_high"], dtype=known["action_low"].dtype.type)
    elif "action_n" in known:
        action_space = spaces.Discrete(int(known["action_n"]), start=int(known["action_start"]))
    return Dataset(nested.unflatten(flat), action_space=action_space)


def _write_npz(episodes: Sequence[Mapping[str, Any]], path: Path, action_space: spaces.Space[Any]) -> None:
    flat = nested.flatten(nested.concatenate_arrays([_entries(episode) for episode in episodes]))
    if isinstance(action_space, spaces.Box):
        flat |= {"action_low": action_space.low, "action_high": action_space.high}
    elif isinstance(action_space, spaces.Discrete):
        flat |= {"action_n": np.asarray(action_space.n), "action_start": np.asarray(action_space.start)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **flat)


def _entries(episode: Mapping[str, Any]) -> dict[str, Any]:
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    return {name: nested.to_array(episode[name]) for name in names}


def _read_buffer(path: Path) -> Dataset:
    """Return the transitions of a buffer that ``save_data`` wrote, at its own capacity."""
    try:
        with safe_open(str(path), framework="np") as file:
            header = file.metadata() or {}
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"dataset must be a file that a replay buffer saved, got {path}: {error}") from error
    require("counters" in header, "dataset", "a file that a replay buffer saved", str(path))
    counters = json.loads(header["counters"])
    kind = KINDS_OF_BUFFERS.get(counters.get("buffer"))
    allowed = "a file of a buffer of transitions (naive, advanced or her)"
    require(kind is not None, "dataset", allowed, f"{path} of a {counters.get('buffer')}")
    sizes = {"replay_buffer_size": counters["capacity"], "frame_stack": counters["frame_stack"]}
    buffer: Any = create_buffer({"type": kind, **sizes})
    buffer.load_data(path)
    columns = nested.to_array(buffer.transitions())
    return Dataset({name: value for name, value in columns.items() if name in NAMES}, starts_at_zero=True)  # type: ignore[union-attr]


def _read_minari(name: str) -> Dataset:
    minari = import_minari()
    known = minari.list_local_datasets()
    hint = f"the id of one of {sorted(known)}; others come with: minari download {name}"
    require(name in known, "dataset", hint, name)
    described = known[name]
    spaces_of_file = {"observation_space", "action_space"}
    allowed = "a Minari data set that holds its spaces; without them Minari makes the env that the data set names"
    require(spaces_of_file <= described.keys(), "dataset", allowed, name)
    data = minari.load_dataset(name)
    parts = [_of_minari(episode) for episode in data.iterate_episodes()]
    return Dataset(nested.concatenate_arrays(parts), data.observation_space, data.action_space)


def _of_minari(episode: Any) -> dict[str, Any]:
    """Return the columns of one of Minari's episodes, which has one observation more than steps."""
    seen, steps = nested.as_dicts(episode.observations), len(episode.rewards)
    return {
        "obs": nested.to_array(nested.index(seen, slice(0, steps))),
        "next_obs": nested.to_array(nested.index(seen, slice(1, steps + 1))),
        "action": nested.to_array(nested.as_dicts(episode.actions)),
        "reward": np.asarray(episode.rewards),
        "terminated": np.asarray(episode.terminations),
        "truncated": np.asarray(episode.truncations),
        "episode_id": np.full(steps, episode.id),
    }


def _write_minari(episodes: Sequence[Mapping[str, Any]], name: str, env: Any, algorithm: str) -> None:
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            id=number,
            observations=nested.concatenate_arrays(
                [episode["obs"], nested.index(episode["next_obs"], slice(-1, None))]
            ),
            actions=episode["action"],
            rewards=list(episode["reward"]),
            terminations=list(episode["terminated"]),
            truncations=list(episode["truncated"]),
        )
        for number, episode in enumerate(episodes)
    ]
    spaces_of_env = {"observation_space": env.observation_space, "action_space": env.action_space}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari")  # there is no author and no link
        import_minari().create_dataset_from_buffers(
            name, buffers, env=env.spec, algorithm_name=algorithm, requirements=[], **spaces_of_env
        )
