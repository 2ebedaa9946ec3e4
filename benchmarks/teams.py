"""Algorithms of teams beside BenchMARL: env steps/s of MAPPO, updates/s of QMIX, and the returns of both.

    python -m benchmarks.teams ours mappo     # in an environment with this package, mpe2 and vmas
    python -m benchmarks.teams benchmarl mappo  # in an environment with BenchMARL, of which this file alone is needed
    python -m benchmarks.teams ours qmix --steps 60000 --seed 1  # learn for longer, and play 100 greedy episodes
    python -m benchmarks.teams ours mappo --task simple_tag --steps 48000  # predators and prey, which both learn
    python -m benchmarks.teams ours mappo --minibatches 1  # four updates in a round, as in EPyMARL
    python -m benchmarks.teams ours qmix --batch 800  # minibatches of EPyMARL's 32 episodes

``mappo`` and ``qmix``: both sides have 64 envs of ``simple_spread_v3`` with three agents and 25 steps in one process.
``vmas``: MAPPO in a batch of 1,024 envs of VMAS's ``balance`` with continuous actions, here with ``mode="tensor"``. The
networks have two layers of 64 units that the agents share, and torch has one thread. MAPPO: rounds of 1,600 steps, and
of 16,384 in VMAS, four epochs with minibatches of a quarter. QMIX: rounds of 640 steps, each followed by 20 updates of
minibatches of 256 single steps. Neither side evaluates or logs. The first rounds are a warm-up and not counted. The
output is one line of JSON: env steps/s, updates/s, and CPU seconds for 1,000 env steps.

Both libraries collect and learn in turns, so updates/s is that of a run, collecting included; ``learn_updates_per_s``
counts the updates alone, with the time of drawing their minibatches, and ``learn_updates_per_cpu_s`` those in a second
of CPU time.

With ``--steps``, the output also has the wall clock and the CPU time of training, and the return of the policy at the
end: the mean over agents and 100 greedy episodes. Both sides have the step size 5e-4, and for QMIX the probability of
random actions falls from 0.8 to 0.01 in a third of the steps; other options are those that the libraries choose.

``--task`` chooses another game of MPE for MAPPO. In ``simple_speaker_listener``, each agent has networks of its own. In
``simple_tag``, three predators share theirs, the prey has its own, each learns from its own rewards, and the discount
factor is 0.9, because values diverged here with 0.99. The predators' rewards depend on the prey that they meet,
so four kinds of episodes are played at the end: those of the learned agents, those in which one side acts at random
instead, and those in which both do. Each has the mean return of a predator and that of the prey.

BenchMARL 1.5.2 was run with torchrl 0.12.0 and tensordict 0.12.4, the newest ones with the collectors that it imports;
its names of the MPE games come from PettingZoo, which has moved them to ``mpe2``, so this file passes those on.
BenchMARL gives all envs of PettingZoo the same seed, so that they play the same starts; here each has another one,
unless ``--one-seed`` is given. EPyMARL is not on PyPI; ``teams_epymarl.py`` runs a checkout of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

ENVS = {"mappo": 64, "qmix": 64, "vmas": 1024}
FRAMES = {"mappo": 1600, "qmix": 640, "vmas": 16_384}
"""Env steps of a round."""
EPOCHS, MINIBATCHES, Q_UPDATES, Q_BATCH = 4, 4, 20, 256
WARM_UP, ROUNDS, N_TEST, MAX_CYCLES = 2, 10, 100, 25
STEP_SIZE, EPS_START, EPS_END, EPS_SHARE = 5e-4, 0.8, 0.01, 3
WIDTHS = [64, 64]
TASKS = {"simple_spread": "v3", "simple_speaker_listener": "v4", "simple_tag": "v3"}
"""Games of MPE, and their versions."""
SHARING: dict[str, Any] = {"simple_spread": True, "simple_speaker_listener": [0, 1], "simple_tag": [0, 0, 0, 1]}
"""Number of the network of each agent; True for one network."""
DISCOUNTS = {"simple_spread": 0.99, "simple_speaker_listener": 0.99, "simple_tag": 0.9}
SIDES = {"predators": "adversary", "prey": "agent"}
"""The sides of ``simple_tag``, and the first part of the names of their agents."""
SCENARIO = {"max_steps": 100, "n_agents": 4, "random_package_pos_on_line": True, "package_mass": 5}


class Clock:
    """Measures rounds after the warm-up, and the time of the updates in them."""

    def __init__(self, run: argparse.Namespace) -> None:
        self.run = run
        self.rounds = 0
        self.learning = self.learning_cpu = 0.0
        self.began = self.ended = (0.0, 0.0)
        self.made = (time.perf_counter(), time.process_time())

    def start(self) -> None:
        """Note that learning begins."""
        self.learning -= time.perf_counter()
        self.learning_cpu -= time.process_time()

    def stop(self) -> None:
        """Note that learning ends, for this round or for a while."""
        self.learning += time.perf_counter()
        self.learning_cpu += time.process_time()

    def end_round(self) -> None:
        """Note the end of a round."""
        self.rounds += 1
        now = (time.perf_counter(), time.process_time())
        if self.rounds == WARM_UP:
            self.began, self.learning, self.learning_cpu = now, 0.0, 0.0
        self.ended = now

    def report(self) -> dict[str, Any]:
        """Return the speeds of the rounds after the warm-up."""
        name = self.run.algorithm
        frames, updates = FRAMES[name], Q_UPDATES if name == "qmix" else EPOCHS * self.run.minibatches
        count = self.rounds - WARM_UP
        wall, cpu = (end - start for end, start in zip(self.ended, self.began, strict=True))
        return {
            "side": self.run.side,
            "algorithm": name,
            "rounds": count,
            "env_steps_per_s": round(count * frames / wall, 1),
            "updates_per_s": round(count * updates / wall, 2),
            "learn_updates_per_s": round(count * updates / self.learning, 2),
            "learn_updates_per_cpu_s": round(count * updates / self.learning_cpu, 2),
            "cpu_s_per_1000_steps": round(1000 * cpu / (count * frames), 3),
            "cpu_share": round(cpu / wall, 2),
            **{"wall_s": round(self.ended[0] - self.made[0], 1), "cpu_s": round(self.ended[1] - self.made[1], 1)},
        }


def ours(run: argparse.Namespace) -> dict[str, Any]:
    """Return what this package does in a Trainer."""
    from lightning import Callback, Trainer, seed_everything

    from lightning_ding.policy import create_policy

    clock = Clock(run)

    class Notes(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            clock.start()

        def on_train_batch_end(self, *_: Any) -> None:
            clock.stop()
            clock.end_round()

    seed_everything(run.seed, verbose=False)
    data, options = _parts_of_ours(run, clock)
    policy = create_policy(options)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        quiet |= {"enable_model_summary": False, "default_root_dir": folder, "limit_val_batches": 0}
        trainer = Trainer(accelerator="cpu", callbacks=Notes(), max_epochs=-1, **quiet)
        trainer.fit(policy, data)
        report = clock.report()
        if run.is_tested and run.task == "simple_tag":
            report["returns"] = _pairs(lambda random: _tag_of_ours(policy, run.seed, random))
        elif run.is_tested:
            trainer.limit_val_batches = 1.0
            (scores,) = trainer.validate(policy, data, verbose=False)
            report["return"] = round(float(scores["eval/return_mean"]), 3)
    return report


def _parts_of_ours(run: argparse.Namespace, clock: Clock) -> tuple[Any, dict[str, Any]]:
    """Return the data module, and the config of the policy; the clock measures the drawing of minibatches."""
    from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
    from lightning_ding.worker.buffer.sequence import SequenceReplayBuffer

    name, frames, steps = run.algorithm, FRAMES[run.algorithm], run.steps
    env_kwargs = {"max_cycles": MAX_CYCLES, "team_reward": "mean", "global_state": "none"}
    game = {"env_id": f"pettingzoo:mpe2.{run.task}_{TASKS[run.task]}", "env_kwargs": env_kwargs}
    of_vmas: dict[str, Any] = {"env_id": "vmas:balance", "env_kwargs": SCENARIO, "mode": "tensor"}
    arguments: dict[str, Any] = {**(of_vmas if name == "vmas" else game), "num_envs": ENVS[name], "seed": run.seed}
    arguments |= {"max_env_step": steps, "n_evaluator_episode": N_TEST}
    model = {"encoder_hidden_size_list": WIDTHS, "parameter_sharing": SHARING[run.task]}
    options: dict[str, Any] = {"model": model, "collect": {"n_sample": frames}}
    options["discount_factor"] = DISCOUNTS[run.task]
    if name != "qmix":
        learn = {"epoch_per_collect": EPOCHS, "batch_size": frames // run.minibatches, "learning_rate": STEP_SIZE}
        return RolloutDataModule(**arguments), {**options, "type": "mappo", "learn": learn}
    learn = {"update_per_collect": Q_UPDATES, "batch_size": run.batch, "learning_rate": STEP_SIZE}
    eps = {"type": "linear", "start": EPS_START, "end": EPS_END, "decay": steps // EPS_SHARE}
    options |= {"type": "qmix", "random_collect_size": 0, "learn": learn, "other": {"eps": eps}}
    draw = SequenceReplayBuffer.sample

    def sample(*given: Any, **named: Any) -> Any:
        clock.start()
        drawn = draw(*given, **named)
        clock.stop()
        return drawn

    SequenceReplayBuffer.sample = sample  # type: ignore[method-assign]
    return ReplayDataModule(**arguments), options


def _pairs(play: Callable[[list[str]], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the returns of both sides of ``simple_tag`` in the four kinds of episodes.

    Args:
        play: Returns the mean return of an agent of each side, given the sides that act at random.
    """
    kinds: dict[str, list[str]] = {
        "learned predators, learned prey": [],
        "learned predators, random prey": ["prey"],
        "random predators, learned prey": ["predators"],
        "random predators, random prey": ["predators", "prey"],
    }
    return {kind: {side: round(one, 2) for side, one in play(sides).items()} for kind, sides in kinds.items()}


def _tag_of_ours(policy: Any, seed: int, random: list[str]) -> dict[str, float]:
    """Return the mean return of an agent of each side in greedy episodes, some sides acting at random."""
    from lightning_ding.envs.teams.parallel import ParallelTeam

    env = ParallelTeam("mpe2.simple_tag_v3", max_cycles=MAX_CYCLES)
    rng, total = np.random.default_rng(seed), np.zeros(len(env.agents))
    sides = np.array([agent.partition("_")[0] for agent in env.agents])
    is_random = np.isin(sides, [SIDES[side] for side in random])
    for episode in range(N_TEST):
        obs, _ = env.reset(seed=1_000_000 + N_TEST * seed + episode)
        is_over = False
        while not is_over:
            with torch.no_grad():
                chosen = policy.eval_mode.forward({key: torch.from_numpy(one)[None] for key, one in obs.items()})
            drawn = rng.integers(0, env.action_space.nvec)
            action = np.where(is_random, drawn, chosen["action"][0].numpy())
            obs, _, terminated, truncated, _ = env.step(action)
            total += obs["agent_reward"]
            is_over = terminated or truncated
    return {side: float(total[sides == name].mean()) / N_TEST for side, name in SIDES.items()}


def benchmarl(run: argparse.Namespace) -> dict[str, Any]:
    """Return what BenchMARL does in an experiment."""
    _pass_on_games()
    if not run.one_seed:
        _give_seeds()
    from benchmarl.algorithms import MappoConfig, QmixConfig
    from benchmarl.environments import PettingZooTask, VmasTask
    from benchmarl.experiment import Callback, Experiment
    from benchmarl.models.mlp import MlpConfig
    from torch import nn

    clock, name = Clock(run), run.algorithm

    class Notes(Callback):  # type: ignore[misc]
        def on_batch_collected(self, batch: Any) -> None:
            clock.start()

        def on_train_end(self, training_td: Any, group: str) -> None:
            if group == list(self.experiment.group_map)[-1]:
                clock.stop()
                clock.end_round()

    with tempfile.TemporaryDirectory() as folder:
        network = MlpConfig(num_cells=WIDTHS, layer_class=nn.Linear, activation_class=nn.ReLU)
        task = (VmasTask.BALANCE if name == "vmas" else PettingZooTask[run.task.upper()]).get_from_yaml()
        of_game = {"max_cycles": MAX_CYCLES, **({"num_good": 1} if run.task == "simple_tag" else {})}
        task.config.update(SCENARIO if name == "vmas" else of_game)
        experiment = Experiment(
            task=task,
            algorithm_config=(QmixConfig if name == "qmix" else MappoConfig).get_from_yaml(),
            model_config=network,
            critic_model_config=network,
            seed=run.seed,
            config=_config_of_benchmarl(run, folder),
        )
        experiment.callbacks.append(notes := Notes())  # later, because its constructor would pickle it
        notes.experiment = experiment
        experiment.run()
        report = clock.report()
        if run.is_tested and run.task == "simple_tag":
            report["returns"] = _pairs(lambda random: _returns_of(experiment, random))
        elif run.is_tested:
            returns = _returns_of(experiment, []).values()
            report["return"] = round(sum(returns) / len(returns), 3)
    return report


def _give_seeds() -> None:
    """Give each env that BenchMARL makes of PettingZoo another seed."""
    from benchmarl.environments.pettingzoo.common import PettingZooClass

    make, count = PettingZooClass.get_env_fun, itertools.count()

    def get_env_fun(self: Any, num_envs: int, continuous_actions: bool, seed: int, device: Any) -> Callable[[], Any]:
        return lambda: make(self, num_envs, continuous_actions, 1000 * seed + next(count), device)()

    PettingZooClass.get_env_fun = get_env_fun


def _config_of_benchmarl(run: argparse.Namespace, folder: str) -> Any:
    from benchmarl.experiment import ExperimentConfig

    config = ExperimentConfig.get_from_yaml()
    frames, envs, continuous = FRAMES[run.algorithm], ENVS[run.algorithm], run.algorithm == "vmas"
    settings: dict[str, Any] = {
        **{"sampling_device": "cpu", "train_device": "cpu", "buffer_device": "cpu", "save_folder": folder},
        **{"loggers": [], "create_json": False, "evaluation": False, "render": False},
        **{"prefer_continuous_actions": continuous, "max_n_frames": run.steps, "gamma": DISCOUNTS[run.task]},
        **{"on_policy_n_envs_per_worker": envs, "off_policy_n_envs_per_worker": envs},
        **{"on_policy_collected_frames_per_batch": frames, "on_policy_n_minibatch_iters": EPOCHS},
        **{"on_policy_minibatch_size": frames // run.minibatches, "off_policy_collected_frames_per_batch": frames},
        **{"off_policy_n_optimizer_steps": Q_UPDATES, "off_policy_train_batch_size": run.batch},
        **{"off_policy_memory_size": 100_000, "off_policy_init_random_frames": 0, "lr": STEP_SIZE},
        **{"exploration_eps_init": EPS_START, "exploration_eps_end": EPS_END},
        **{"exploration_anneal_frames": run.steps // EPS_SHARE},
    }
    for key, value in settings.items():
        setattr(config, key, value)
    return config


def _returns_of(experiment: Any, random: list[str]) -> dict[str, float]:
    """Return the mean return of an agent of each group in greedy episodes of BenchMARL's policy.

    Args:
        experiment: The experiment after training.
        random: Sides of ``simple_tag`` that act at random.
    """
    from tensordict.nn import TensorDictModuleBase
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    task, env = experiment.task, experiment.task.get_env_fun(1, False, 1_000_000 + experiment.seed, "cpu")()
    sides = {group: side for side, group in SIDES.items()}
    total = {sides.get(group, group): 0.0 for group in task.group_map(env)}

    class Mixed(TensorDictModuleBase):  # type: ignore[misc]
        in_keys, out_keys = experiment.policy.in_keys, experiment.policy.out_keys

        def forward(self, data: Any) -> Any:
            data = experiment.policy(data)
            for side in random:
                data[SIDES[side], "action"] = env.full_action_spec[SIDES[side], "action"].rand()
            return data

    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(N_TEST):
            played = env.rollout(MAX_CYCLES, Mixed(), auto_cast_to_device=True, break_when_any_done=True)
            for group in task.group_map(env):
                reward = played["next", group, "reward"]  # (T, agents, 1)
                total[sides.get(group, group)] += reward.sum().item() / reward.shape[-2]
    return {side: value / N_TEST for side, value in total.items()}


def _pass_on_games() -> None:
    """Put MPE2's games where torchrl looks for PettingZoo's."""
    package, games = types.ModuleType("pettingzoo.mpe"), types.ModuleType("pettingzoo.mpe.all_modules")
    names = [f"{task}_{version}" for task, version in TASKS.items()]
    games.mpe_environments = {  # type: ignore[attr-defined]
        f"mpe/{name}": import_module(f"mpe2.{name}") for name in names
    }
    sys.modules |= {package.__name__: package, games.__name__: games}


def main() -> None:
    """Measure one side, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=["ours", "benchmarl"], help="the library to measure")
    parser.add_argument("algorithm", choices=list(ENVS), help="what to measure")
    parser.add_argument("--task", choices=list(TASKS), default="simple_spread", help="the game, for mappo")
    parser.add_argument("--steps", type=int, help="env steps to learn from, with a test at the end")
    parser.add_argument("--batch", type=int, default=Q_BATCH, help="transitions of a minibatch of QMIX")
    parser.add_argument("--one-seed", action="store_true", help="leave the seed of all envs as BenchMARL has it")
    parser.add_argument("--minibatches", type=int, default=MINIBATCHES, help="minibatches of an epoch of MAPPO")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    run = parser.parse_args()
    if run.algorithm != "mappo" and run.task != "simple_spread":
        parser.error(f"--task {run.task} is for mappo, got {run.algorithm}")
    torch.set_num_threads(1)
    frames, run.is_tested = FRAMES[run.algorithm], run.steps is not None
    run.steps = run.steps // frames * frames if run.is_tested else (WARM_UP + ROUNDS) * frames
    found = {"ours": ours, "benchmarl": benchmarl}[run.side](run)
    print(json.dumps({**found, "task": "balance" if run.algorithm == "vmas" else run.task, "seed": run.seed}))


if __name__ == "__main__":
    main()
