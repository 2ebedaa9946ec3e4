"""Policies with reward models in configs in which each of them trains within a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lightning import Trainer

from lightning_ding.config import deep_merge
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.policy import Policy
from tests.algorithms.table import make_datamodule, make_policy

Config = dict[str, Any]
SMALL: Config = {"hidden_size_list": [8], "update_per_collect": 3, "batch_size": 8}
PARTS: Config = {"num_trajs": 5, "num_snippets": 20, "min_snippet_length": 2, "max_snippet_length": 6}
FROM_DATA = ("gail", "guided_cost", "red", "pdeil", "pwil", "trex", "drex")
CASES: dict[str, tuple[str, Config]] = {  # an algorithm and a reward model
    "dqn_rnd": ("dqn", {"type": "rnd", "clear_buffer_per_iters": 3}),
    "dqn_icm": ("dqn", {"type": "icm"}),
    "dqn_gail": ("dqn", {"type": "gail"}),
    "rainbow_rnd": ("rainbow", {"type": "rnd", "intrinsic_reward_norm": "minmax"}),
    "sac_icm": ("sac", {"type": "icm"}),
    "sac_gail": ("sac", {"type": "gail"}),
    "ppo_rnd": ("ppo", {"type": "rnd"}),
    "ppo_gail": ("ppo", {"type": "gail", "clear_buffer_per_iters": 2}),
    "a2c_icm": ("a2c", {"type": "icm"}),
    "dqn_trex": ("dqn", {"type": "trex", **PARTS}),
    "ppo_drex": ("ppo", {"type": "drex", **PARTS, "num_trajs_per_bin": 2}),
    "ppo_guided_cost": ("ppo", {"type": "guided_cost", "clear_buffer_per_iters": 2}),
    "dqn_red": ("dqn", {"type": "red"}),
    "sac_red": ("sac", {"type": "red"}),
    "dqn_pdeil": ("dqn", {"type": "pdeil", "recent": 20}),
    "sac_pdeil": ("sac", {"type": "pdeil"}),
    "dqn_pwil": ("dqn", {"type": "pwil", "horizon": 20}),
    "ppo_pwil": ("ppo", {"type": "pwil", "horizon": 20}),
}
SINGLE: dict[str, Config] = {"rainbow": {"nstep": 1}}
QUIET: Config = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def write_expert(folder: Path, is_continuous: bool) -> str:
    """Write a data set of four episodes in the shapes of CartPole, or of Pendulum, and return its path."""
    rng, size = np.random.default_rng(0), 40
    file = folder / f"expert_{is_continuous}.npz"
    action: Any = rng.uniform(-2, 2, (size, 1)).astype(np.float32) if is_continuous else rng.integers(2, size=size)
    space: Any = {"action_low": np.array([-2], np.float32), "action_high": np.array([2], np.float32)}
    space = space if is_continuous else {"action_n": np.asarray(2), "action_start": np.asarray(0)}
    obs = rng.standard_normal((size + 1, 3 if is_continuous else 4)).astype(np.float32)
    last = np.arange(size) == size - 1
    ends = {"terminated": last, "truncated": (np.arange(size) % 10 == 9) & ~last}
    reward = np.array([2.0, 1.0, 4.0, 3.0])[np.arange(size) // 10]
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": action, "reward": reward}
    np.savez(file, **columns, **ends, **space)
    return str(file)


def make(case: str, folder: Path, **changes: Any) -> tuple[Policy[Any], RunDataModule]:
    """Return a policy with a reward model, and its datamodule."""
    name, section = CASES[case]
    data = {"data_path": write_expert(folder, name == "sac")} if section["type"] in FROM_DATA else {}
    small = {} if section["type"] == "pwil" else SMALL  # which learns nothing
    config = deep_merge({"reward_model": {**small, **section, **data}, **SINGLE.get(name, {})}, changes)
    return make_policy(name, **config), make_datamodule(name, rounds_per_epoch=4)


def fit(policy: Any, datamodule: Any, folder: Path, epochs: int, **flags: Any) -> None:
    """Train for some epochs of four rounds, without evaluations."""
    ckpt_path = flags.pop("ckpt_path", None)
    options = {"enable_checkpointing": False, "limit_val_batches": 0, "default_root_dir": folder, **QUIET, **flags}
    Trainer(max_epochs=epochs, **options).fit(policy, datamodule, ckpt_path=ckpt_path, weights_only=True)
