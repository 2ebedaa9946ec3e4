"""Middleware that learn from a data set, and DI-engine's data sets of ``ding.data``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset as TorchDataset

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules import load_dataset
from lightning_ding.di_engine.data_sets import check_there, data_of_d4rl, find_data_set
from lightning_ding.di_engine.policies.data import columns_of_rows

logger = logging.getLogger(__name__)
SAVED = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "env_id", "episode_id")


class OfflineDataset(TorchDataset[dict[str, Any]]):
    """A data set of transitions: ``dataset[row]`` is a dict.

    Args:
        source: Path or id of a data set, as for :func:`~lightning_ding.datamodules.load_dataset`.
    """

    def __init__(self, source: Any) -> None:
        self.source = load_dataset(source)
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        self.columns: dict[str, Any] = {
            name: nested.to_tensor(value) for name, value in self.source.columns.items() if name in names
        }
        self._for: Any = None
        self._fitted: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return cast("dict[str, Any]", nested.index(self.columns, index))

    def columns_for(self, policy: Any) -> dict[str, Any]:
        """Return all columns as a policy learns from them.

        Raises:
            ValueError: If the policy does not learn from single transitions of a data set.
        """
        if self._for is not policy:
            plain = not (policy.on_policy or policy.learns_from_sequences) and policy.demonstrations == "optional"
            allowed = "one that learns from single transitions of a data set (serial_pipeline_offline trains others)"
            require(plain, "policy", allowed, type(policy).__name__)
            more = policy.dataset_columns(self.source, self.source.columns["reward"])
            action = self.columns["action"]
            if not self.source.starts_at_zero:
                action = policy.action_start.from_env(action)
            self._fitted = {**self.columns, "action": action, **cast("Any", nested.to_tensor(dict(more)))}
            self._for = policy
        return self._fitted


class Drawn(dict[str, Any]):
    """Some rows of a data set, as columns.

    Args:
        dataset: The data set.
        rows: Their numbers, shape (B,).
    """

    def __init__(self, dataset: OfflineDataset, rows: Any) -> None:
        super().__init__(nested.index(dataset.columns, rows))
        self._dataset, self._rows = dataset, rows

    def for_policy(self, policy: Any) -> dict[str, Any]:
        """Return the columns that a policy needs, with the values that middleware has changed since they were read."""
        whole = nested.index(self._dataset.columns_for(policy), self._rows)
        before = nested.index(self._dataset.columns, self._rows)
        changed = {name: value for name, value in self.items() if name not in before or not _same(value, before[name])}
        return {**whole, **changed}


def _same(one: Any, other: Any) -> bool:
    pairs = zip(nested.leaves({"": one}), nested.leaves({"": other}), strict=True)
    return all(torch.equal(torch.as_tensor(left), torch.as_tensor(right)) for left, right in pairs)


def create_dataset(cfg: Any, **kwargs: Any) -> OfflineDataset:
    """Return the data set that ``policy.collect`` of a config names.

    ``data_path`` is an ``.npz``, ``.hdf5`` or ``.safetensors`` file, or the id of a Minari data set; with the
    ``data_type`` ``d4rl``, ``env.env_id`` names the data set if there is no path.

    Args:
        cfg: Config of the run.
        kwargs: Not read.

    Raises:
        ValueError: If no data set is named, it is not there, or its form is not read.
    """
    collect = cfg.policy.get("collect", {})
    path = collect.get("data_path")
    if str(collect.get("data_type", "")).startswith("d4rl") and not Path(str(path)).suffix:
        path = data_of_d4rl(str(cfg.env.get("env_id")))
    found = find_data_set("policy.collect.data_path", path, "collect_demo_data writes one")
    check_there(found)
    return OfflineDataset(found)


def offline_data_fetcher(
    cfg: Any, dataset: Any, collate_fn: Callable[[Any], Any] = lambda rows: rows
) -> Callable[[Any], None]:
    """Return a middleware that sets ``train_data`` to the next minibatch of passes over a shuffled data set.

    It counts passes as ``train_epoch`` and transitions as ``trained_env_step``. Transitions that are left at the end of
    a pass and are fewer than a minibatch are a smaller one.

    Args:
        cfg: Config of the run, for ``policy.learn.batch_size``.
        dataset: Result of :func:`create_dataset`, or a data set of torch, whose minibatches are lists.
        collate_fn: Function of such a list.
    """
    size = int(cfg.policy.learn.batch_size)
    batches: Any = iter(())

    def begin() -> Any:
        if isinstance(dataset, OfflineDataset):
            return (Drawn(dataset, rows) for rows in torch.randperm(len(dataset)).split(size))
        return iter(DataLoader(dataset, batch_size=size, shuffle=True, collate_fn=collate_fn))

    is_first = True

    def fetch(ctx: Any) -> None:
        nonlocal batches, is_first
        data = next(batches, None)
        if data is None:
            ctx.train_epoch += not is_first
            is_first, batches = False, begin()
            data = next(batches)
        ctx.train_data = data
        drawn = len(data["reward"]) if isinstance(data, Mapping) and "reward" in data else len(data)
        ctx.trained_env_step += drawn

    return fetch


def offline_data_saver(data_path: str, data_type: str = "hdf5") -> Callable[[Any], None]:
    """Return a middleware that writes ``trajectories`` as a data set.

    Args:
        data_path: Path of the file. HDF5 and pickled files are not written: another ending than ``.npz`` is replaced by
            it, with a warning.
        data_type: Not read.
    """

    def save(ctx: Any) -> None:
        offline_data_save_type(ctx.trajectories, data_path, data_type)
        ctx.trajectories = None

    return save


def offline_data_save_type(exp_data: Any, expert_data_path: str, data_type: str = "hdf5") -> None:
    """Write a list of transitions as an ``.npz`` data set; the arguments are those of :func:`offline_data_saver`."""
    path = Path(expert_data_path)
    if path.suffix != ".npz":
        logger.warning("%s is written as %s", path, path.with_suffix(".npz"))
        path = path.with_suffix(".npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = columns_of_rows([{name: row[name] for name in SAVED if name in row} for row in exp_data])
    flat: dict[str, Any] = {name: np.asarray(value) for name, value in nested.flatten(columns).items()}
    np.savez(path, **cast("Any", flat))
