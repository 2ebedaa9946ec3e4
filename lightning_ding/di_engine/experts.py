"""Demonstrations that the expert of a DI-engine config plays, for ``serial_pipeline_sqil``, ``_dqfd`` and ``_gail``.

DI-engine pickles them; here they are a data set in an ``.npz`` file in the folder of the expert's run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lightning_ding.callbacks import InitialWeights
from lightning_ding.config import require
from lightning_ding.datamodules import save_dataset
from lightning_ding.di_engine.configs import Missing
from lightning_ding.di_engine.data_sets import EXPERT_FILE
from lightning_ding.di_engine.run import Run
from lightning_ding.di_engine.serial import make_policy
from lightning_ding.entry.collect import greedy_mode, play_episodes
from lightning_ding.envs import Pausable, make_vector_env


def play_expert(run: Run, path: Any, steps: int, seed: int, model: nn.Module | None = None) -> str:
    """Play whole episodes with an expert in its training envs, write them, and return the path of the file.

    Args:
        run: Translated run of the expert.
        path: Checkpoint of the expert, ``*.ckpt`` of this package or ``*.pth.tar`` of DI-engine.
        steps: Number of env steps to reach, >= 1.
        seed: Seed of the envs, >= 0.
        model: A network to use instead of the one that the expert's config describes.

    Raises:
        Missing: If there is no such checkpoint.
        ValueError: If ``steps`` is too small, or the checkpoint does not fit the expert.
    """
    require(isinstance(steps, int) and steps >= 1, "the number of the expert's steps", "an int >= 1", steps)
    run.check_needs()
    if not Path(str(path)).is_file():
        raise Missing(f"the expert's network must be a checkpoint, but there is no file {str(path)!r}", "checkpoint")
    policy: Any = make_policy(run, model)
    data = run.data
    env = make_vector_env(
        data["env_id"],
        num_envs=data["num_envs"],
        mode="sync",
        seed=np.random.SeedSequence([seed, 0]),
        wrappers=[*data.get("wrappers", ()), *data.get("train_wrappers", ()), Pausable],
        env_kwargs=data.get("env_kwargs"),
        import_names=data.get("import_names", ()),
    )
    try:
        policy.build(env.single_observation_space, env.single_action_space)
        policy.seed(np.random.SeedSequence([seed, 1]))
        InitialWeights(str(path)).load(policy)
        episodes = _play(policy, env, steps)
        file = Path(run.exp_name) / EXPERT_FILE
        file.unlink(missing_ok=True)  # of an earlier run
        save_dataset(episodes, str(file), _Played(env), type(policy).__name__)
    finally:
        env.close()
    return str(file)


class _Played:
    """One of several envs, as a writer of data sets reads it."""

    def __init__(self, env: Any) -> None:
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.spec = None


def _play(policy: Any, env: Any, steps: int) -> list[dict[str, Any]]:
    """Return whole episodes of the eval mode, as many as needed for a number of steps."""
    mode, episodes, played = greedy_mode(policy), list[dict[str, Any]](), 0
    while played < steps:
        found = play_episodes(mode, env, env.num_envs)
        episodes += found
        played += sum(len(one["reward"]) for one in found)
    return episodes
