"""Evaluates on each of several ranks, for test_evaluators_on_two_ranks.py: python SCRIPT FOLDER RANK WORLD_SIZE.

Each rank writes what it measured to FOLDER/rank_R.json, and what it writes as rank zero below FOLDER.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import MeanAbsoluteError, MetricCollection, PearsonCorrCoef

from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker import IMetric, InteractionSerialEvaluator, MetricSerialEvaluator

N_EPISODE = 5


class SeedEnv(gym.Env[Any, Any]):
    """Its reward is a number drawn from the seed of the reset; so is the length of its episodes, 1 to 5."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.reward = int(self.np_random.integers(1, 6)), float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), self.reward, self.left == 0, False, {}

    drawn = 0

    def render(self) -> Any:
        type(self).drawn += 1
        return np.zeros((1, 1, 3), np.uint8)


class Errors(IMetric):
    """Mean error and mean squared error; keys in an order that is not the alphabet's."""

    def eval(self, inputs: Any, label: Any) -> dict[str, float]:
        error = (inputs - label).double()
        return {"squared": (error**2).mean().item(), "absolute": error.abs().mean().item()}

    def gt(self, metric1: Mapping[str, float], metric2: Mapping[str, float] | None) -> bool:
        return metric2 is None or metric1["squared"] <= metric2["squared"]


class Writer:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.count = {"scalar": 0, "video": 0, "figure": 0}

    def add_scalar(self, *_: Any) -> None:
        self.count["scalar"] += 1

    def add_video(self, *_: Any, **__: Any) -> None:
        self.count["video"] += 1

    def add_figure(self, *_: Any, **__: Any) -> None:
        self.count["figure"] += 1


def policy_of(function: Any) -> EvalMode:
    def nothing(*_: Any) -> Any:
        return None

    return EvalMode(function, nothing, nothing, nothing, nothing, nothing)


def act(obs: Any) -> dict[str, Any]:
    return {"action": torch.zeros(len(obs), dtype=torch.int64)}


def error_of(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def interaction(folder: Path) -> dict[str, Any]:
    """Return what the interaction evaluator says, and what was written and saved by this rank."""
    env = SyncVectorEnv([SeedEnv] * 2, autoreset_mode=AutoresetMode.DISABLED)
    writer, saved = Writer(), []  # type: tuple[Writer, list[str]]
    cfg = {"n_episode": N_EPISODE, "stop_value": 0.0, "figure_path": str(folder / "figures")}
    evaluator = InteractionSerialEvaluator(cfg, env, policy_of(act), writer)
    run, ran = evaluator.run, []  # type: tuple[Any, list[int]]
    evaluator.run = lambda episodes, *rest: ran.extend(episodes) or run(episodes, *rest)  # type: ignore[func-returns-value,method-assign]
    result = evaluator.eval(saved.append, train_iter=3, envstep=40, force_render=True)
    return {
        "result": result,
        "ran": ran,
        "has_drawn": SeedEnv.drawn > 0,
        "saved": saved,
        "written": dict(writer.count),
        "state": evaluator.state_dict(),
        "too_few": error_of(lambda: evaluator.eval(n_episode=1)),
    }


def metric() -> dict[str, Any]:
    """Return what the metric evaluator says of 11 examples in batches of 2, so that one rank has one more of them."""
    x = torch.arange(11.0)
    data = TensorDataset(x, x**2 / 7)
    make = functools.partial(MetricSerialEvaluator, {"stop_value": 1e9}, policy=policy_of(lambda inputs: inputs + 1))
    metrics: dict[str, Any] = {
        "IMetric": Errors(),
        "torchmetrics": MeanAbsoluteError(),
        "collection": MetricCollection([MeanAbsoluteError(), PearsonCorrCoef()]),
    }
    results = {name: make(env=(DataLoader(data, 2), one)).eval(train_iter=1) for name, one in metrics.items()}
    even = TensorDataset(x[:10], x[:10] ** 2 / 7)
    sampler: Any = DistributedSampler(even) if dist.is_initialized() else None
    results["sampler"] = make(env=(DataLoader(even, 2, sampler=sampler), Errors())).eval(train_iter=1)
    return {
        "result": results,
        "too_few": error_of(make(env=(DataLoader(data, 11), Errors())).run),
        "shuffled": error_of(make(env=(DataLoader(data, 2, shuffle=True), Errors())).run),
    }


def report(folder: Path) -> dict[str, Any]:
    """Return what this rank measures."""
    return {"interaction": interaction(folder), "metric": metric()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    target, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = f"file://{target / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world_size, rank=rank)
    (target / f"rank_{rank}.json").write_text(json.dumps(report(target)))
    dist.destroy_process_group()
