"""Trains every algorithm three times: uninterrupted, killed after its first epoch, and resumed from its checkpoint.

Runs with other modes of envs, named ALGORITHM-MODE, are killed twice.

For test_exact_resume.py: python -m tests.algorithms.exact_resume_script FOLDER RANKS [NAME...]. Every run has separate
processes, forked from this one, which has imported all modules but trained nothing. Each rank of a run that ends writes
what it ended with to FOLDER/NAME/RUN_R.pt.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from lightning_ding.callbacks import MetricsLogger, RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.envs import env_state
from tests.algorithms.table import ALGORITHMS, TEAMS, VARIANTS, make_datamodule, make_policy, plain, state_of

ROUNDS, EPOCHS, KILLED = 4, 3, 1  # rounds of an epoch; an evaluation every second epoch, so none before the kill
SHORT = {"eval": {"evaluator": {"max_episode_steps": 30}}}
KILLED_IN = {"killed": KILLED, "killed again": EPOCHS - 1}
"""Epochs at whose start runs are killed, counted from 0."""
PRIORITISED = {"priority": True, "priority_IS_weight": True, "other": {"replay_buffer": {"type": "advanced"}}}
CASES: dict[str, dict[str, Any]] = {  # what is special: arguments of the datamodule and changes of the config
    "dqn": {
        "norm_obs": True,
        "norm_reward": True,
        "num_envs": 3,
        "policy": {"collect": {"n_sample": 7}},
    },  # 2 transitions wait at the kill
    "c51": {"env": "MountainCar-v0", "policy": {"nstep": 3}},
    "qrdqn": {"env": "Acrobot-v1", "num_envs": 3, "policy": PRIORITISED},
    "rainbow": {},  # prioritised, noisy
    "mdqn": {"norm_obs": True},
    "sql": {"num_envs": 3},  # samples its actions
    "iqn": {"policy": PRIORITISED},  # random levels in each update
    "fqf": {"num_envs": 3},  # two optimizers
    "ddpg": {"norm_obs": True},  # noise that drifts
    "td3": {},
    "pdqn": {"env": "tests.toys.bandits.HybridTargetEnv"},
    "sac": {"num_envs": 3},
    "discrete_sac": {"norm_obs": True},
    "discrete_cql": {},
    "bc": {},
    "td3_bc": {},
    "iql": {},
    "bcq": {},
    "awac": {},
    "cql": {"policy": {"learn": {"with_lagrange": True}}},
    "tqc": {"num_envs": 3, "policy": {"model": {"use_sde": True}, "collect": {"sde_sample_freq": 7}}},
    "mbpo": {"norm_obs": True},  # a model, and a buffer of its transitions
    "tdmpc2": {"num_envs": 3, "norm_obs": True},  # plans of unfinished episodes
    "xqc": {"num_envs": 3, "norm_reward": True},  # resets before and after the kill
    "bro": {"num_envs": 3},  # two actors, learned weights, a reset
    "td7": {"norm_obs": True},  # prioritised; copies of encoders and a range of values
    "ppo": {"norm_obs": True, "norm_reward": True},
    "ppo_offpolicy": {"norm_obs": True, "norm_reward": True},
    "ppg_offpolicy": {"norm_obs": True},
    "impala": {"num_envs": 3, "norm_reward": True},  # transitions wait at the kill
    "a2c": {"norm_reward": True, "num_envs": 3, "env": "Pendulum-v1", "policy": {"model": {"use_sde": True}}},
    "pqn": {"norm_obs": True, "norm_reward": True, "num_envs": 3},
    "pg": {"num_envs": 3},  # whole episodes
}
MODES: dict[str, dict[str, Any]] = {
    "dqn-async": {"mode": "async"},
    "dqn-native": {"mode": "native", "num_envs": 3},
    "r2d2-gtrxl": {"mode": "async", "num_envs": 3},
    "recurrent_ppo-gtrxl": {"mode": "native", "num_envs": 3},
}
"""Runs whose envs are not in this process, or not separate."""


class Series(DummyLogger):
    """Keeps all logged metrics except speeds."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        kept = {name: float(value) for name, value in metrics.items() if "per_second" not in name}
        self.written.append((step, {name: value for name, value in kept.items() if "seconds" not in name}))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class End(Callback):
    """Kills the process at the start of an epoch, or notes what the run ended with."""

    def __init__(self, killed_in: int | None) -> None:
        self.killed_in = killed_in

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == self.killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.report = state_of(pl_module, datamodule)
        self.report["collector"] = datamodule.collector.state_dict()
        if datamodule.mode == "sync":
            self.report["envs"] = _seeded(env_state(datamodule._collector_env))
        self.report["memory"] = pl_module.collect_memory()
        self.report["returns"] = plain(pl_module.normaliser.episode_state())


def _seeded(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of envs without the generators of spaces, which are neither seeded nor used."""
    core = state["core"]["attributes"]
    vector = {name: core[name] for name in core if not name.startswith("single_") and name != "observation_space"}
    layers = [layer["attributes"] for env in state["envs"] for layer in env]
    spaces = ("action_space", "observation_space")
    envs = [{name: layer[name] for name in layer if name not in spaces} for layer in layers]
    return {"vector": vector, "envs": envs, "wrappers": [wrapper.get("asked") for wrapper in state["wrappers"]]}


def fit(run: str, name: str, folder: Path, ranks: int) -> None:
    """Make one run of an algorithm on this rank."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(999 if run in ("killed again", "resumed") else 0)
    algorithm = name if name in VARIANTS else name.partition("-")[0]
    case = dict(MODES.get(name, CASES.get(name, {})))
    policy = make_policy(algorithm, **deep_merge(SHORT, case.pop("policy", {})))
    datamodule = make_datamodule(algorithm, rounds_per_epoch=ROUNDS, **case)
    where, series, end = folder / name / "killed", Series(), End(KILLED_IN.get(run))
    callbacks = [MetricsLogger(log_every_n_rounds=3), end]
    every = 1 if run == "killed again" else KILLED
    callbacks += [RunCheckpoint(where, every_n_epochs=every)] if run in KILLED_IN else []  # saving must change nothing
    flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "check_val_every_n_epoch": 2}
    flags |= {"strategy": "ddp", "devices": ranks} if ranks > 1 else {}
    flags |= {"enable_checkpointing": run in KILLED_IN, "default_root_dir": where, "logger": series}
    trainer = Trainer(accelerator="cpu", max_epochs=EPOCHS, callbacks=callbacks, **flags)
    file = str(where / "last.ckpt") if run in ("killed again", "resumed") else None
    trainer.fit(policy, datamodule, ckpt_path=file, weights_only=True)
    report = {**end.report, "series": series.written, "epochs": trainer.current_epoch}
    torch.save(report, folder / name / f"{run}_{trainer.global_rank}.pt")


def fork(rank: int, port: int, kind: str, name: str, folder: Path, ranks: int) -> int:
    """Run in a separate process, and return the process id."""
    process = os.fork()
    if process:
        return process
    if ranks > 1:
        os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE=str(ranks))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        fit(kind, name, folder, ranks)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(kind: str, name: str, folder: Path, ranks: int) -> None:
    """Make one run of an algorithm on all ranks.

    Raises:
        RuntimeError: If it did not end as it should.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [fork(rank, port, kind, name, folder, ranks) for rank in range(ranks)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    wanted = -signal.SIGKILL if kind in KILLED_IN else 0
    if codes[0] != wanted or (kind not in KILLED_IN and any(codes)):
        raise RuntimeError(f"{name}, {kind}: exit codes {codes}")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    gc.freeze()  # forks copy the memory that a collection touches
    place, number = Path(sys.argv[1]), int(sys.argv[2])
    for algorithm in sys.argv[3:] or [*ALGORITHMS, *TEAMS]:
        (place / algorithm).mkdir()
        again = ["killed again"] if algorithm in MODES else []
        for way in ("straight", "killed", *again, "resumed"):
            run(way, algorithm, place, number)
