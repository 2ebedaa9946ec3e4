"""Write files with an older version that this version has to load: runs, exports, a search, a coordinator's folder.

    git worktree add --detach /tmp/older 1f2321f
    PYTHONPATH=/tmp/older python tests/older/make.py tests/older

Run it with the sources of the older version, as above; for the coordinator, whose state has been a database since, with
those of 537db16 and ``coordinator`` as one more argument. Each run is trained to the half by ``lightning-ding fit``,
packed with the ``config.yaml`` that the command wrote, and then continued. ``<run>_end.safetensors`` has the weights
and the state of the optimizers at its end, and ``expected.json`` what the policies and the coordinator answer.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml
from lightning import seed_everything
from safetensors.torch import save_file

from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.entry.cli import main
from lightning_ding.policy.load import load_policy

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": "runs"}
EVALUATION = {"eval_freq": 4, "n_episode": 1, "max_episode_steps": 20}
REPLAY = {
    "random_collect_size": 16,
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "collect": {"n_sample": 8},
    "other": {"replay_buffer": {"replay_buffer_size": 64}},
}
CRITIC = {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
ENVS = {"num_envs": 2, "evaluator_env_num": 1, "max_env_step": 64}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # config of the policy, arguments of the datamodule
    "dqn": (
        {**REPLAY, "nstep": 2, "model": {"encoder_hidden_size_list": [8]}},
        {**ENVS, "env_id": "CartPole-v1", "norm_obs": True},
    ),
    "ppo": (
        {
            "model": {"encoder_hidden_size_list": [8]},
            "learn": {"epoch_per_collect": 2, "batch_size": 8},
            "collect": {"n_sample": 16},
        },
        {**ENVS, "env_id": "CartPole-v1"},
    ),
    "sac": ({**REPLAY, "model": CRITIC}, {**ENVS, "env_id": "Pendulum-v1"}),
    "iql": (
        {"learn": {"batch_size": 8}, "model": CRITIC},
        {"dataset": "data.npz", "env_id": "Pendulum-v1", "max_train_iter": 16, "norm_obs": True},
    ),
}
LIMITS = {"max_env_step": 128, "max_train_iter": 32}  # of the continued run
OBSERVATIONS = {4: [[0.1, -0.2, 0.05, 0.3], [-0.4, 0.3, 0.1, -0.6]], 3: [[0.6, 0.8, -1.5], [-1.0, 0.0, 3.0]]}
SEARCH = {"trials": 2, "candidates": 1, "candidate_seeds": 1, "pruner": "none"}
SPACES = {"learn.learning_rate": "log(1e-4,1e-2)"}


def machine() -> list[str]:
    """Return what decides about the last bit of a result: the version of torch, and the instructions of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return [torch.__version__, torch.backends.cpu.get_cpu_capability(), *(names[:1] or [platform.processor()])]


def write_config(name: str) -> Path:
    """Write the config of a run for ``lightning-ding fit``, and its data set if it has one."""
    cfg, data = RUNS[name]
    if "dataset" in data:
        rng, steps = np.random.default_rng(0), 80
        arrays = {name: rng.normal(size=(steps, 3)).astype(np.float32) for name in ("obs", "next_obs")}
        arrays["action"] = rng.uniform(-2, 2, size=(steps, 1)).astype(np.float32)
        ends = {"terminated": np.arange(1, steps + 1) % 8 == 0, "truncated": np.zeros(steps, bool)}
        np.savez_compressed(data["dataset"], reward=np.ones(steps, np.float32), **arrays, **ends)  # type: ignore[arg-type]
    run = {"policy": name, "seed_everything": 1, "trainer": QUIET, "data": data}
    run["model"] = {"cfg": {**cfg, "eval": {"evaluator": EVALUATION}}}
    Path("run.yaml").write_text(yaml.safe_dump(run))
    return Path("run.yaml")


def continued(config: Path, name: str) -> dict[str, torch.Tensor]:
    """Continue the run in ``runs`` to its end with ``lightning-ding fit``, and return weights and optimizer states."""
    limit = next(limit for limit in LIMITS if limit in RUNS[name][1])
    main(["fit", "--config", str(config), f"--data.{limit}", str(LIMITS[limit]), "--ckpt_path", "last"])
    saved = torch.load(str(last_checkpoint("runs")), weights_only=True)
    found = dict(saved["state_dict"])
    for number, optimizer in enumerate(saved["optimizer_states"]):
        for at, state in optimizer["state"].items():
            found |= {f"optimizer {number}/{at}/{key}": value for key, value in state.items()}
    return {name: torch.as_tensor(value).clone() for name, value in found.items()}


def actions(file: str | Path) -> list[Any]:
    """Return the actions of a saved policy for two observations."""
    policy = load_policy(file)
    size = policy.env_spaces[0].shape[0]  # type: ignore[index]
    return np.asarray(policy.predict(np.array(OBSERVATIONS[size], np.float32))).tolist()  # type: ignore[no-any-return]


def write_run(name: str, out: Path) -> Any:
    """Write ``<run>.tar.xz`` and ``<run>_end.safetensors``; return the actions of the run's policy."""
    main(["fit", "--config", str(write_config(name))])
    file = last_checkpoint("runs")
    expected = actions(str(file))
    load_policy(str(file)).export(f"{name}.safetensors", "safetensors")
    Path("run.yaml").unlink()
    shutil.move("runs/lightning_logs/version_0/config.yaml", "config.yaml")
    shutil.make_archive(str(out / name), "xztar")
    save_file(continued(Path("config.yaml"), name), out / f"{name}_end.safetensors")
    return expected


def write_search(out: Path) -> Any:
    """Write ``tune.tar.xz``, the folder of a search of two trials; return the returns of the trials."""
    from lightning_ding.tune.study import Study

    study = Study(yaml.safe_load(write_config("dqn").read_text()), "study", {**SEARCH, "spaces": SPACES})
    study.run()
    shutil.make_archive(str(out / "tune"), "xztar")
    return [trial.value for trial in study.study.trials]


def write_coordinator(out: Path) -> Any:
    """Write ``coordinator.tar.xz``, the folder of a run whose coordinator was killed; return what it had."""
    from lightning_ding.config import resolve, to_dict
    from lightning_ding.distributed.config import ParallelConfig
    from lightning_ding.distributed.file_store import FileStore
    from tests.distributed.coordinator.coordinating import Run, Worker, config, transitions

    cfg = config(Path("run"))
    Path("config.json").write_text(json.dumps(to_dict(resolve(ParallelConfig, cfg))))
    run = Run(cfg, FileStore(Path("run/data")))
    learner, collector = Worker(run, "learner"), Worker(run, "collector")
    learner.take()
    collector.take()
    learner.publish(0)
    for number in range(3):
        collector.send(transitions(first=4 * number))
    shutil.make_archive(str(out / "coordinator"), "xztar")
    return {"env_step": run.coordinator.run.env_step(), "rows": run.rows()}


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    torch.set_num_threads(1)
    wanted = sys.argv[2:] or [*RUNS, "tune"]
    found: dict[str, Any] = json.loads((target / "expected.json").read_text())
    if "coordinator" not in wanted:
        found["machine"] = machine()
    for kind in wanted:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            seed_everything(0)
            writers = {"tune": write_search, "coordinator": write_coordinator}
            found[kind] = writers[kind](target) if kind in writers else write_run(kind, target)
            os.chdir(target)
    (target / "expected.json").write_text(json.dumps(found) + "\n")
