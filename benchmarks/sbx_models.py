"""SBX, Stable-Baselines3 in JAX, as a contestant of the speed benchmarks: ``pip install sbx-rl``.

XLA gets the flags for one thread. A short run before the clock starts compiles everything, so the seconds exclude
compilation, which ``compile_seconds`` holds with the steps of that run.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.compare import Result
from benchmarks.workload import CrossQWorkload, DQNWorkload, PPOWorkload, REDQWorkload, SACWorkload, SimbaWorkload

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def run_dqn(w: DQNWorkload) -> Result:
    """Train DQN; SBX has no double Q-learning."""
    sbx = sbx_package()
    model = sbx.DQN(
        "MlpPolicy",
        _envs(w.env_id, w.num_envs),
        train_freq=1,
        gradient_steps=w.updates_per_round,
        target_update_interval=w.target_update_freq * w.num_envs // w.updates_per_round,
        exploration_fraction=w.eps_decay / w.env_steps,
        exploration_initial_eps=w.eps_start,
        exploration_final_eps=w.eps_end,
        learning_rate=w.learning_rate,
        **_replay(w),
    )
    return _timed(model, w.warm_up + 10 * w.num_envs, w.env_steps)


def run_sac(w: SACWorkload) -> Result:
    """Train SAC."""
    sbx = sbx_package()
    rates = {"learning_rate": w.actor_learning_rate, "qf_learning_rate": w.learning_rate}
    model = sbx.SAC("MlpPolicy", _envs(w.env_id, 1), tau=w.tau, **rates, **_replay(w))
    return _timed(model, w.warm_up + 10, w.env_steps)


def run_redq(w: REDQWorkload) -> Result:
    """Train SAC with many critics; SBX's targets take the smallest value of all of them."""
    sbx = sbx_package()
    replay = _replay(w)
    replay["policy_kwargs"] |= {"n_critics": w.critics}
    model = sbx.SAC(
        "MlpPolicy",
        _envs(w.env_id, 1),
        tau=w.tau,
        learning_rate=w.actor_learning_rate,
        qf_learning_rate=w.learning_rate,
        gradient_steps=w.updates_per_step,
        policy_delay=w.updates_per_step,
        **replay,
    )
    return _timed(model, w.warm_up + 2, w.env_steps)


def run_crossq(w: CrossQWorkload) -> Result:
    """Train CrossQ."""
    sbx = sbx_package()
    replay = _replay(w)
    replay["policy_kwargs"] = {"net_arch": {"pi": list(w.hidden), "qf": list(w.critic_hidden)}}
    rates = {"learning_rate": w.actor_learning_rate, "qf_learning_rate": w.learning_rate}
    delay = w.updates_per_actor_update
    model = sbx.CrossQ("MlpPolicy", _envs(w.env_id, 1), policy_delay=delay, **rates, **replay)
    return _timed(model, w.warm_up + 10, w.env_steps)


def run_simba(w: SimbaWorkload) -> Result:
    """Train SAC with the residual networks of SimBa, without normalised observations."""
    sbx = sbx_package()
    replay = _replay(w)
    arch = {"pi": list(w.hidden), "qf": list(w.critic_hidden)}
    replay["policy_kwargs"] = {"net_arch": arch, "optimizer_kwargs": {"weight_decay": w.weight_decay}}
    rates = {"learning_rate": w.actor_learning_rate, "qf_learning_rate": w.learning_rate}
    model = sbx.SAC("SimbaPolicy", _envs(w.env_id, 1), tau=w.tau, **rates, **replay)
    return _timed(model, w.warm_up + 10, w.env_steps)


def run_ppo(w: PPOWorkload) -> Result:
    """Train PPO."""
    sbx = sbx_package()
    model = sbx.PPO(
        "MlpPolicy",
        _envs(w.env_id, w.num_envs),
        learning_rate=lambda left: left * w.learning_rate,
        n_steps=w.num_steps,
        batch_size=w.batch_size,
        n_epochs=w.epochs,
        gamma=w.gamma,
        gae_lambda=w.gae_lambda,
        clip_range=w.clip_ratio,
        clip_range_vf=w.clip_ratio,
        ent_coef=w.entropy_weight,
        vf_coef=w.value_weight,
        max_grad_norm=w.grad_norm,
        policy_kwargs={"net_arch": list(w.hidden)},
        seed=0,
    )
    return _timed(model, w.rollout, w.env_steps)


def sbx_package() -> Any:
    """Return SBX, which computes with one thread."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}"
    import sbx

    return sbx


def _envs(env_id: str, num_envs: int) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env(env_id, num_envs, seed=0)


def _replay(w: DQNWorkload | SACWorkload) -> dict[str, Any]:
    sizes = {"buffer_size": w.buffer_size, "learning_starts": w.warm_up, "batch_size": w.batch_size}
    return {**sizes, "gamma": w.gamma, "policy_kwargs": {"net_arch": list(w.hidden)}, "seed": 0}


def _timed(model: Any, compiling_steps: int, env_steps: int) -> Result:
    start = time.perf_counter()
    model.learn(compiling_steps)
    compiled, updates, used = time.perf_counter(), model._n_updates, time.process_time()
    model.learn(env_steps)  # counts its steps from 0, so it begins with random actions again
    return {
        "seconds": time.perf_counter() - compiled,
        "compile_seconds": compiled - start,
        "env_steps": model.num_timesteps,
        "updates": model._n_updates - updates,
        "cpu_ms_per_update": 1000 * (time.process_time() - used) / (model._n_updates - updates),
    }
