"""Algorithms of teams beside BenchMARL: env steps/s of MAPPO, updates/s of QMIX, and the returns of both.

    python -m benchmarks.teams ours mappo     # in an environment with this package, mpe2 and vmas
    python -m benchmarks.teams benchmarl mappo  # in an environment with BenchMARL, of which this file alone is needed
    python -m benchmarks.teams ours qmix --steps 60000 --seed 1  # learn for longer, and play 100 greedy episodes

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

BenchMARL 1.5.2 was run with torchrl 0.12.0 and tensordict 0.12.4, the newest ones with the collectors that it imports;
its names of the MPE games come from PettingZoo, which has moved them to ``mpe2``, so this file passes those on. EPyMARL
is not on PyPI; ``teams_epymarl.py`` runs a checkout of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import types
from typing import Any

import torch

ENVS = {"mappo": 64, "qmix": 64, "vmas": 1024}
FRAMES = {"mappo": 1600, "qmix": 640, "vmas": 16_384}
"""Env steps of a round."""
EPOCHS, MINIBATCHES, Q_UPDATES, Q_BATCH = 4, 4, 20, 256
WARM_UP, ROUNDS, N_TEST, MAX_CYCLES = 2, 10, 100, 25
STEP_SIZE, EPS_START, EPS_END, EPS_SHARE = 5e-4, 0.8, 0.01, 3
WIDTHS = [64, 64]
SCENARIO = {"max_steps": 100, "n_agents": 4, "random_package_pos_on_line": True, "package_mass": 5}


class Clock:
    """Measures rounds after the warm-up, and the time of the updates in them."""

    def __init__(self) -> None:
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

    def report(self, side: str, name: str) -> dict[str, Any]:
        """Return the speeds of the rounds after the warm-up."""
        frames, updates = FRAMES[name], Q_UPDATES if name == "qmix" else EPOCHS * MINIBATCHES
        count = self.rounds - WARM_UP
        wall, cpu = (end - start for end, start in zip(self.ended, self.began, strict=True))
        return {
            "side": side,
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


def ours(name: str, steps: int, seed: int, is_tested: bool) -> dict[str, Any]:
    """Return what this package does in a Trainer."""
    from lightning import Callback, Trainer, seed_everything

    from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
    from lightning_ding.policy import create_policy
    from lightning_ding.worker.buffer.sequence import SequenceReplayBuffer

    clock = Clock()

    class Notes(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            clock.start()

        def on_train_batch_end(self, *_: Any) -> None:
            clock.stop()
            clock.end_round()

    model, frames = {"encoder_hidden_size_list": WIDTHS}, FRAMES[name]
    env_kwargs = {"max_cycles": MAX_CYCLES, "team_reward": "mean"}
    spread = {"env_id": "pettingzoo:mpe2.simple_spread_v3", "env_kwargs": env_kwargs}
    of_vmas: dict[str, Any] = {"env_id": "vmas:balance", "env_kwargs": SCENARIO, "mode": "tensor"}
    arguments: dict[str, Any] = {**(of_vmas if name == "vmas" else spread), "num_envs": ENVS[name], "seed": seed}
    seed_everything(seed, verbose=False)
    arguments |= {"max_env_step": steps, "n_evaluator_episode": N_TEST}
    options: dict[str, Any] = {"model": model, "collect": {"n_sample": frames}}
    if name == "qmix":
        learn = {"update_per_collect": Q_UPDATES, "batch_size": Q_BATCH, "learning_rate": STEP_SIZE}
        eps = {"type": "linear", "start": EPS_START, "end": EPS_END, "decay": steps // EPS_SHARE}
        options |= {"type": "qmix", "random_collect_size": 0, "learn": learn, "other": {"eps": eps}}
        data: Any = ReplayDataModule(**arguments)
        draw = SequenceReplayBuffer.sample

        def sample(*given: Any, **named: Any) -> Any:
            clock.start()
            drawn = draw(*given, **named)
            clock.stop()
            return drawn

        SequenceReplayBuffer.sample = sample  # type: ignore[method-assign]
    else:
        learn = {"epoch_per_collect": EPOCHS, "batch_size": frames // MINIBATCHES, "learning_rate": STEP_SIZE}
        options |= {"type": "mappo", "learn": learn}
        data = RolloutDataModule(**arguments)
    policy = create_policy(options)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        quiet |= {"enable_model_summary": False, "default_root_dir": folder, "limit_val_batches": 0}
        trainer = Trainer(accelerator="cpu", callbacks=Notes(), max_epochs=-1, **quiet)
        trainer.fit(policy, data)
        report = clock.report("ours", name)
        if is_tested:
            trainer.limit_val_batches = 1.0
            (scores,) = trainer.validate(policy, data, verbose=False)
            report["return"] = round(float(scores["eval/return_mean"]), 3)
    return report


def benchmarl(name: str, steps: int, seed: int, is_tested: bool) -> dict[str, Any]:
    """Return what BenchMARL does in an experiment."""
    _pass_on_games()
    from benchmarl.algorithms import MappoConfig, QmixConfig
    from benchmarl.environments import PettingZooTask, VmasTask
    from benchmarl.experiment import Callback, Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig
    from torch import nn

    clock = Clock()

    class Notes(Callback):  # type: ignore[misc]
        def on_batch_collected(self, batch: Any) -> None:
            clock.start()

        def on_train_end(self, training_td: Any, group: str) -> None:
            clock.stop()
            clock.end_round()

    config = ExperimentConfig.get_from_yaml()
    frames, envs, continuous = FRAMES[name], ENVS[name], name == "vmas"
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            **{"sampling_device": "cpu", "train_device": "cpu", "buffer_device": "cpu", "save_folder": folder},
            **{"loggers": [], "create_json": False, "evaluation": False, "render": False},
            **{"prefer_continuous_actions": continuous, "max_n_frames": steps},
            **{"on_policy_n_envs_per_worker": envs, "off_policy_n_envs_per_worker": envs},
            **{"on_policy_collected_frames_per_batch": frames, "on_policy_n_minibatch_iters": EPOCHS},
            **{"on_policy_minibatch_size": frames // MINIBATCHES, "off_policy_collected_frames_per_batch": frames},
            **{"off_policy_n_optimizer_steps": Q_UPDATES, "off_policy_train_batch_size": Q_BATCH},
            **{"off_policy_memory_size": 100_000, "off_policy_init_random_frames": 0, "lr": STEP_SIZE},
            **{"exploration_eps_init": EPS_START, "exploration_eps_end": EPS_END},
            **{"exploration_anneal_frames": steps // EPS_SHARE},
        }
        for key, value in settings.items():
            setattr(config, key, value)
        network = MlpConfig(num_cells=WIDTHS, layer_class=nn.Linear, activation_class=nn.ReLU)
        task = (VmasTask.BALANCE if name == "vmas" else PettingZooTask.SIMPLE_SPREAD).get_from_yaml()
        task.config.update(SCENARIO if name == "vmas" else {"max_cycles": MAX_CYCLES})
        experiment = Experiment(
            task=task,
            algorithm_config=(QmixConfig if name == "qmix" else MappoConfig).get_from_yaml(),
            model_config=network,
            critic_model_config=network,
            seed=seed,
            config=config,
        )
        experiment.callbacks.append(Notes())  # later, because its constructor would pickle it
        experiment.run()
        report = clock.report("benchmarl", name)
        if is_tested:
            report["return"] = round(_returns_of(experiment), 3)
    return report


def _returns_of(experiment: Any) -> float:
    """Return the mean return of the agents in greedy episodes of BenchMARL's policy."""
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    task, env = experiment.task, experiment.task.get_env_fun(1, False, 1_000_000 + experiment.seed, "cpu")()
    (group,) = task.group_map(env)
    total = 0.0
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(N_TEST):
            played = env.rollout(MAX_CYCLES, experiment.policy, auto_cast_to_device=True, break_when_any_done=True)
            total += played["next", group, "reward"].sum().item() / played["next", group, "reward"].shape[-2]
    return total / N_TEST


def _pass_on_games() -> None:
    """Put MPE2's game where torchrl looks for PettingZoo's."""
    from mpe2 import simple_spread_v3

    package, games = types.ModuleType("pettingzoo.mpe"), types.ModuleType("pettingzoo.mpe.all_modules")
    games.mpe_environments = {"mpe/simple_spread_v3": simple_spread_v3}  # type: ignore[attr-defined]
    sys.modules |= {package.__name__: package, games.__name__: games}


def main() -> None:
    """Measure one side, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=["ours", "benchmarl"], help="the library to measure")
    parser.add_argument("algorithm", choices=list(ENVS), help="what to measure")
    parser.add_argument("--steps", type=int, help="env steps of simple_spread to learn from, with a test at the end")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name, frames = options.algorithm, FRAMES[options.algorithm]
    steps = (WARM_UP + ROUNDS) * frames if options.steps is None else options.steps // frames * frames
    measure = {"ours": ours, "benchmarl": benchmarl}[options.side]
    print(json.dumps({**measure(name, steps, options.seed, options.steps is not None), "seed": options.seed}))


if __name__ == "__main__":
    main()
