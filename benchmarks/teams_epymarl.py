"""EPyMARL on the games of ``benchmarks.teams``: env steps/s, updates/s, CPU time and the return at the end.

    git clone https://github.com/uoe-agents/epymarl
    python benchmarks/teams_epymarl.py epymarl mappo --steps 12800 --envs 64 --units 64 --no-test  # the speed
    python benchmarks/teams_epymarl.py epymarl qmix --steps 30000 --seed 1  # its own settings
    python benchmarks/teams_epymarl.py epymarl mappo_ns --task simple_tag --steps 48000  # predators and prey

Needs torch, mpe2, pettingzoo, pyyaml, scipy and sacred with ``setuptools<80``; this file alone of the repository. The
config is EPyMARL's own one of the algorithm: networks of 128 units (MAPPO, with a GRU, ten envs in processes of their
own) or 64 (QMIX, one env); ``mappo_ns`` gives each agent networks of its own, of 64 units without a GRU. ``--units``
takes feed-forward networks of that width for all. Three of its imports do not exist any more or are not on PyPI, so
this file passes them on: ``collections.Mapping``, ``smaclite``, and the MPE games, which have moved from PettingZoo to
``mpe2``. Episodes have 25 steps, and the reward is the mean over the agents, as in ``benchmarks.teams``; in
``simple_tag``, each agent has its own, and the discount factor is 0.9. It learns from whole episodes: QMIX makes an
update of 32 episodes after each one, and MAPPO four passes over those of all envs.

``wall_s`` is the wall clock of training, with the start of the env processes; ``cpu_s`` and ``cpu_s_of_envs`` are the
CPU seconds of training in the main process and in those of the envs. The speeds leave out the first rounds, which are
a warm-up: ``cpu_s_per_1000_steps`` counts all processes, and ``learn_updates_per_cpu_s`` the updates alone, with the
drawing of their minibatches.
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
WARM_UP = {"mappo": 2, "mappo_ns": 2, "qmix": 40}
"""Rounds that are not counted; QMIX makes no update in the first 31."""
GAME = "mpe2-of-epymarl-v0"
TASKS = {"simple_spread": "v3", "simple_speaker_listener": "v4", "simple_tag": "v3"}
SIDES = {"predators": [0, 1, 2], "prey": [3]}
"""Agents of the sides of ``simple_tag``."""


class Game(gym.Env[Any, Any]):
    """A game of MPE in EPyMARL's form: tuples of observations, actions and rewards; EPyMARL ends episodes."""

    def __init__(self, task: str, **options: Any) -> None:
        made = import_module(f"mpe2.{task}_{TASKS[task]}")
        self.game = made.parallel_env(max_cycles=MAX_CYCLES + 1, **options)
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


def prepare(folder: Path, task: str) -> None:
    """Make EPyMARL's modules importable, and change to their folder, from which it reads.

    The game is imported here, so that the processes of the envs, which are forked, do not have to.
    """
    import_module(f"mpe2.{task}_{TASKS[task]}")
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    sys.modules["smaclite"] = types.ModuleType("smaclite")
    os.chdir(folder / "src")
    sys.path.insert(0, os.getcwd())
    make: Any = Game
    gym.register(GAME, entry_point=make, disable_env_checker=True)


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return EPyMARL's config of an algorithm, for the steps and the envs of the options."""
    import yaml

    config: dict[str, Any] = {}
    for name in ("default", "envs/gymma", f"algs/{options.algorithm}"):
        config |= yaml.safe_load(Path(f"config/{name}.yaml").read_text())
    every = ("test_interval", "log_interval", "runner_log_interval", "learner_log_interval")
    config |= {"use_cuda": False, "t_max": options.steps, "test_nepisode": N_TEST, **dict.fromkeys(every, NEVER)}
    config |= {"seed": options.seed, "common_reward": True, "reward_scalarisation": "mean"}
    config["env_args"] |= {"key": GAME, "time_limit": MAX_CYCLES, "seed": options.seed, "task": options.task}
    if options.task == "simple_tag":
        config |= {"common_reward": False, "gamma": 0.9}
    if options.envs is not None:
        config |= dict.fromkeys(("batch_size_run", "buffer_size", "batch_size"), options.envs)
    if options.units is not None:
        config |= {"hidden_dim": options.units, "use_rnn": False}
    if options.algorithm == "qmix":
        config["epsilon_anneal_time"] = options.steps // 3
    return config


class Clock:
    """Measures rounds, the time of the updates in them, and the CPU time of the processes of the envs."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, ...]] = []
        """At the start of each round and at the end: wall clock, CPU seconds, those of envs, steps, updates, and the
        wall clock and the CPU seconds of the updates."""
        self.updates = 0
        self.learning = self.learning_cpu = 0.0

    def mark(self, runner: Any) -> None:
        """Note that a round begins, or that training ends."""
        ticks = 0
        for process in getattr(runner, "ps", []):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
        now = (time.perf_counter(), time.process_time(), ticks / os.sysconf("SC_CLK_TCK"), runner.t_env)
        self.marks.append((*now, self.updates, self.learning, self.learning_cpu))

    def times(self, method: Any, updates: int) -> Any:
        """Return a method that is timed as a part of learning, and counts as some updates."""

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter(), time.process_time()
            result = method(*given, **named)
            self.learning += time.perf_counter() - began[0]
            self.learning_cpu += time.process_time() - began[1]
            self.updates += updates
            return result

        return timed

    def report(self, warm_up: int) -> dict[str, float]:
        """Return the speeds of the rounds after the warm-up."""
        first = self.marks[min(warm_up, len(self.marks) - 2)]
        wall, cpu, of_envs, steps, updates, learning, learning_cpu = (
            end - start for end, start in zip(self.marks[-1], first, strict=True)
        )
        return {
            "env_steps_per_s": round(steps / wall, 1),
            "updates_per_s": round(updates / wall, 2),
            "learn_updates_per_s": round(updates / learning, 2),
            "learn_updates_per_cpu_s": round(updates / learning_cpu, 2),
            "cpu_s_per_1000_steps": round(1000 * (cpu + of_envs) / steps, 3),
        }


def runner_of(base: Any, clock: Clock, kept: list[Any]) -> Any:
    """Return a class of runners that plays no test before the end of training, and is timed."""

    class Runner(base):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.tests: list[Any] = []
            self.is_over = False
            kept.append(self)

        def run(self, test_mode: bool = False) -> Any:
            if not self.is_over and not test_mode:
                clock.mark(self)
            return super().run(test_mode) if self.is_over or not test_mode else None

        def close_env(self) -> None:
            if self.is_over:
                super().close_env()

        def _log(self, returns: list[Any], stats: dict[str, Any], prefix: str) -> None:
            self.tests += returns if prefix == "test_" else []
            returns.clear()
            stats.clear()

    return Runner


def measure(config: dict[str, Any], algorithm: str, is_tested: bool) -> dict[str, Any]:
    """Train, play greedy episodes at the end, and return what was measured."""
    run, runners, learners = import_module("run"), import_module("runners"), import_module("learners")  # of EPyMARL

    kept: list[Any] = []
    clock = Clock()
    runners.REGISTRY[config["runner"]] = runner_of(runners.REGISTRY[config["runner"]], clock, kept)
    learner = learners.REGISTRY[config["learner"]]
    learner.train = _unbound(clock, learner.train, config.get("epochs", 1))
    run.ReplayBuffer.sample = _unbound(clock, run.ReplayBuffer.sample, 0)
    args = SimpleNamespace(**run.args_sanity_check(config, Log.console_logger), device="cpu", unique_token="")
    began = (time.perf_counter(), time.process_time())
    run.run_sequential(args, Log())
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    (runner,) = kept
    clock.mark(runner)
    runner.is_over = True
    found = {"envs": runner.batch_size, "env_steps": runner.t_env, **clock.report(WARM_UP[algorithm])}
    found |= {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "cpu_s_of_envs": round(clock.marks[-1][2], 1)}
    if is_tested:
        found |= returns_of(runner, config)
    runner.close_env()
    return found


def _unbound(clock: Clock, method: Any, updates: int) -> Any:
    """Return a timed function that is bound as a method."""
    timed = clock.times(method, updates)
    return lambda self, *given, **named: timed(self, *given, **named)


def returns_of(runner: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return what greedy episodes give: the return of the team, or in ``simple_tag`` those of both sides."""
    choose = runner.mac.select_actions
    if config["env_args"]["task"] != "simple_tag":
        played = _play(runner)
        return {"return": round(sum(map(float, played)) / len(played), 3)}
    returns: dict[str, dict[str, float]] = {}
    for sides in ([], ["prey"], ["predators"], ["predators", "prey"]):

        def act(*given: Any, random: list[str] = sides, **named: Any) -> Any:
            actions = choose(*given, **named)
            for side in random:
                actions[:, SIDES[side]] = torch.randint(5, actions[:, SIDES[side]].shape)
            return actions

        runner.mac.select_actions = act
        of_agents = torch.as_tensor([list(map(float, one)) for one in _play(runner)])  # (episodes, agents)
        names = ", ".join(f"{'random' if side in sides else 'learned'} {side}" for side in SIDES)
        returns[names] = {side: round(of_agents[:, agents].mean().item(), 2) for side, agents in SIDES.items()}
    return {"returns": returns}


def _play(runner: Any) -> list[Any]:
    """Return the returns of about ``N_TEST`` greedy episodes, a whole number of rounds."""
    runner.tests = []
    while len(runner.tests) < N_TEST // runner.batch_size * runner.batch_size:
        runner.run(test_mode=True)
    return list(runner.tests)


def main() -> None:
    """Measure EPyMARL, and print the result as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of EPyMARL")
    parser.add_argument("algorithm", choices=list(WARM_UP), help="what to measure")
    parser.add_argument("--task", choices=list(TASKS), default="simple_spread", help="the game")
    parser.add_argument("--steps", type=int, default=6400, help="env steps of training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--envs", type=int, help="envs, each in a process; by default those of EPyMARL's config")
    parser.add_argument("--units", type=int, help="width of feed-forward networks; by default those of the config")
    parser.add_argument("--no-test", action="store_true", help="play no episodes at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    prepare(options.folder.resolve(), options.task)
    found = measure(config_of(options), options.algorithm, not options.no_test)
    labels = {"side": "epymarl", "algorithm": options.algorithm, "task": options.task}
    print(json.dumps({**labels, **found, "seed": options.seed}))


if __name__ == "__main__":
    main()
