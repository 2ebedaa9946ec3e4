"""Speed of DQN on workload W4, stacks of frames: this project through ``Trainer.fit``, a bare loop, Stable-Baselines3.

    python -m benchmarks.pixels      # writes docs/results/pixels_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Env, network, batch
size, target and the number of stored transitions are the same; no contestant uses double Q-learning, which Stable-
Baselines3 does not have. The bare loop stores whole stacks, as Stable-Baselines3 does; with ``optimize_memory_usage``
the latter stores the next observation only once. It clips the gradient by its norm, which cannot be turned off. Its
default Adam is not fused; one contestant has a fused one. The seconds of the compiled contestant exclude compilation,
whose seconds the JSON file lists separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import bare_pixels, contest
from benchmarks.compare import Result
from benchmarks.frames_env import makers
from benchmarks.workload import W4, PixelWorkload


def our_config(w: PixelWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy."""
    learn = {"update_per_collect": w.updates_per_round, "batch_size": w.batch_size, "learning_rate": w.learning_rate}
    return {
        "compile": compile,
        "discount_factor": w.gamma,
        "nstep": 1,
        "random_collect_size": w.warm_up,
        "model": {"dueling": False},
        "learn": {**learn, "target_update_freq": w.target_update_freq, "double_q": False},
        "collect": {"n_sample": w.num_envs},
        "other": {
            "eps": {"type": "linear", "start": w.eps_start, "end": w.eps_end, "decay": w.eps_decay},
            "replay_buffer": {"replay_buffer_size": w.buffer_size, "frame_stack": 4},
        },
    }


def make_ours(w: PixelWorkload, compile: bool = False) -> tuple[Any, Any]:
    """Return the policy and the datamodule of this project."""
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import DQNPolicy

    seed_everything(0)
    env = {"class_path": "benchmarks.frames_env.PreparedFrames"}
    policy = DQNPolicy(our_config(w, compile))
    return policy, ReplayDataModule(env, num_envs=w.num_envs, max_env_step=w.env_steps, seed=0)


def run_ours(w: PixelWorkload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    return contest.fit(*make_ours(w, compile))


def run_sb3(w: PixelWorkload, fused: bool = False, optimize_memory_usage: bool = False) -> Result:
    """Train with Stable-Baselines3."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import DummyVecEnv

    model = DQN(
        "CnnPolicy",
        DummyVecEnv(makers(w.num_envs)),
        learning_rate=w.learning_rate,
        buffer_size=w.buffer_size,
        learning_starts=w.warm_up,
        batch_size=w.batch_size,
        gamma=w.gamma,
        train_freq=1,
        gradient_steps=w.updates_per_round,
        target_update_interval=w.target_update_freq * w.num_envs // w.updates_per_round,
        exploration_fraction=w.eps_decay / w.env_steps,
        exploration_initial_eps=w.eps_start,
        exploration_final_eps=w.eps_end,
        optimize_memory_usage=optimize_memory_usage,
        replay_buffer_kwargs={"handle_timeout_termination": not optimize_memory_usage},  # it does not have both
        policy_kwargs={"optimizer_kwargs": {"fused": True}} if fused else {},
        device="cpu",
        seed=0,
    )
    start = time.perf_counter()
    model.learn(w.env_steps)
    return {"seconds": time.perf_counter() - start, "env_steps": model.num_timesteps, "updates": model._n_updates}


CONTESTANTS: dict[str, Callable[[PixelWorkload], Result]] = {
    "bare loop": bare_pixels.run,
    "bare loop, channels last": partial(bare_pixels.run, channels_last=True),
    "ours": run_ours,
    "ours, compiled": partial(run_ours, compile=True),
    "SB3": run_sb3,
    "SB3, fused Adam": partial(run_sb3, fused=True),
    "SB3, optimize_memory_usage": partial(run_sb3, optimize_memory_usage=True),
}


if __name__ == "__main__":
    contest.main("pixels", __doc__, CONTESTANTS, W4)
