"""EPyMARL on the ``simple_spread`` of ``benchmarks.teams``: env steps/s, CPU time and the return at the end.

    git clone https://github.com/uoe-agents/epymarl
    python benchmarks/teams_epymarl.py epymarl mappo --steps 6400 --envs 64  # the speed with 64 envs
    python benchmarks/teams_epymarl.py epymarl qmix --steps 30000 --seed 1  # its own settings

Needs torch, mpe2, pettingzoo, pyyaml, scipy and sacred with ``setuptools<80``; this file alone of the repository. The
config is EPyMARL's own one of the algorithm: networks of 128 units (MAPPO, with a GRU, ten envs in processes of their
own) or 64 (QMIX, one env). Three of its imports do not exist any more or are not on PyPI, so this file passes them on:
``collections.Mapping``, ``smaclite``, and the MPE games, which have moved from PettingZoo to ``mpe2``. Episodes have 25
steps, and the reward is the mean over the agents, as in ``benchmarks.teams``. It learns from whole episodes: QMIX makes
an update of 32 episodes after each one, and MAPPO four passes over those of all envs.

The wall clock is that of training, which starts the processes of the envs. CPU seconds are those of training in the
main process, and of all env processes, which also play the 100 greedy episodes at the end.
"""

from __future__ import annotations

import argparse
import collections
import collections.abc
import json
import logging
import os
import sys
import time
import types
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import torch

N_TEST, MAX_CYCLES, NEVER = 100, 25, 10**9
GAME = "simple-spread-of-mpe2-v0"


class Spread(gym.Env[Any, Any]):
    """``simple_spread`` in EPyMARL's form: tuples of observations, actions and rewards; EPyMARL ends episodes."""

    def __init__(self, **options: Any) -> None:
        from mpe2 import simple_spread_v3

        self.game = simple_spread_v3.parallel_env(max_cycles=MAX_CYCLES + 1, **options)
        self.game.reset()
        self.names = list(self.game.agents)
        self.n_agents = len(self.names)
        spaces = gym.spaces.Tuple
        self.action_space: Any = spaces([self.game.action_space(name) for name in self.names])
        self.observation_space: Any = spaces([self.game.observation_space(name) for name in self.names])

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        obs, _ = self.game.reset(seed=seed)
        return tuple(obs[name] for name in self.names), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Let all agents act."""
        obs, rewards, *_ = self.game.step(dict(zip(self.names, action, strict=True)))
        return tuple(obs[name] for name in self.names), [rewards[name] for name in self.names], False, False, {}


class Log:
    """EPyMARL's logger, which logs nothing."""

    console_logger = logging.getLogger("epymarl")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def prepare(folder: Path) -> None:
    """Make EPyMARL's modules importable, and change to their folder, from which it reads."""
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    sys.modules["smaclite"] = types.ModuleType("smaclite")
    os.chdir(folder / "src")
    sys.path.insert(0, os.getcwd())
    gym.register(GAME, entry_point=Spread, disable_env_checker=True)


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return EPyMARL's config of an algorithm, for the steps and the envs of the options."""
    import yaml

    config: dict[str, Any] = {}
    for name in ("default", "envs/gymma", f"algs/{options.algorithm}"):
        config |= yaml.safe_load(Path(f"config/{name}.yaml").read_text())
    every = ("test_interval", "log_interval", "runner_log_interval", "learner_log_interval")
    config |= {"use_cuda": False, "t_max": options.steps, "test_nepisode": N_TEST, **dict.fromkeys(every, NEVER)}
    config |= {"seed": options.seed, "common_reward": True, "reward_scalarisation": "mean"}
    config["env_args"] |= {"key": GAME, "time_limit": MAX_CYCLES, "seed": options.seed}
    if options.envs is not None:
        config |= dict.fromkeys(("batch_size_run", "buffer_size", "batch_size"), options.envs)
    if options.algorithm == "qmix":
        config["epsilon_anneal_time"] = options.steps // 3
    return config


def measure(config: dict[str, Any]) -> dict[str, Any]:
    """Train, play greedy episodes at the end, and return what was measured."""
    run, runners = import_module("run"), import_module("runners")  # of EPyMARL

    kept: list[Any] = []
    base = runners.REGISTRY[config["runner"]]

    class Runner(base):  # type: ignore[misc,valid-type]
        """The runner of the config, which plays no test before the end."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.tests: list[Any] = []
            self.is_over = False
            kept.append(self)

        def run(self, test_mode: bool = False) -> Any:
            return super().run(test_mode) if self.is_over or not test_mode else None

        def close_env(self) -> None:
            if self.is_over:
                super().close_env()

        def _log(self, returns: list[Any], stats: dict[str, Any], prefix: str) -> None:
            self.tests += returns if prefix == "test_" else []
            returns.clear()
            stats.clear()

    runners.REGISTRY[config["runner"]] = Runner
    args = SimpleNamespace(**run.args_sanity_check(config, Log.console_logger), device="cpu", unique_token="")
    began = (time.perf_counter(), time.process_time())
    run.run_sequential(args, Log())
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    (runner,) = kept
    runner.is_over = True
    while len(runner.tests) < N_TEST // runner.batch_size * runner.batch_size:
        runner.run(test_mode=True)
    runner.close_env()
    for process in getattr(runner, "ps", []):
        process.join()
    seconds = {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "cpu_s_of_envs": round(sum(os.times()[2:4]), 1)}
    found = {"envs": runner.batch_size, "env_steps": runner.t_env, "env_steps_per_s": round(runner.t_env / wall, 1)}
    return {**found, **seconds, "return": round(sum(map(float, runner.tests)) / len(runner.tests), 3)}


def main() -> None:
    """Measure EPyMARL, and print the result as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of EPyMARL")
    parser.add_argument("algorithm", choices=["mappo", "qmix"], help="what to measure")
    parser.add_argument("--steps", type=int, default=6400, help="env steps of training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--envs", type=int, help="envs, each in a process; by default those of EPyMARL's config")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    prepare(options.folder.resolve())
    found = measure(config_of(options))
    print(json.dumps({"side": "epymarl", "algorithm": options.algorithm, **found, "seed": options.seed}))


if __name__ == "__main__":
    main()
