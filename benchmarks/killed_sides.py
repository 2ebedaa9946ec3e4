"""DQN on CartPole-v1 in each library, resumed from its newest checkpoint as the library's documentation says.

SheepRL has no DQN and no replay buffer for discrete actions without a world model: it trains SAC on Pendulum-v1.

Used by ``benchmarks.killed``, with the interpreter that has the library: a side imports nothing of the others. The
first start in a folder begins a run, and each later one resumes it. A side saves checkpoints with everything that its
documentation describes for resuming. Files in the folder that do not depend on the side:

* ``steps`` and ``updates``: one byte for each env step and for each step of an optimizer, over all starts
* ``starts.jsonl``: what each start began with: env steps, transitions in the buffer, updates of Adam
* ``weights.npy`` and ``result.json``: the final weights of the Q-network, and its return in 20 greedy episodes
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import pickle
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.killed_job import (
    BATCH,
    ENV,
    GAMMA,
    HIDDEN,
    RATE,
    TARGET_EVERY,
    TRAIN_EVERY,
    WARM_UP,
    Job,
    Noted,
    Trained,
    append,
    counted,
    greedy_returns,
    newest_first,
)

ACTOR_OF_SHEEPRL = ("_actor.model._model.0", "_actor.model._model.2", "_actor.fc_mean")


def lightning_ding(job: Job) -> Trained:
    """Train with this project: docs/checkpoints.md and docs/guides/resume.md."""
    from lightning import Callback, Trainer, seed_everything

    from lightning_ding.checkpoints import last_checkpoint
    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import DQNPolicy

    class Note(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.updates = pl_module.progress.train_iter
            step = pl_module.progress.env_step
            job.note(step, trainer.datamodule.buffer.count(), trainer.optimizers[0])

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            for _update in range(self.updates, pl_module.progress.train_iter):
                append("updates")
            self.updates = pl_module.progress.train_iter

    config = {
        "nstep": 1,
        "discount_factor": GAMMA,
        "random_collect_size": WARM_UP,
        "model": {"encoder_hidden_size_list": HIDDEN, "dueling": False},
        "learn": {
            "update_per_collect": 1,
            "batch_size": BATCH,
            "learning_rate": RATE,
            "target_update_freq": TARGET_EVERY,
            "double_q": False,
        },
        "collect": {"n_sample": TRAIN_EVERY},
        "other": {
            "eps": {"type": "linear", "start": 1.0, "end": 0.05, "decay": job.budget // 2},
            "replay_buffer": {"replay_buffer_size": job.budget},
        },
    }
    seed_everything(job.seed, verbose=False)
    policy = DQNPolicy(config)
    limits: dict[str, Any] = {"max_env_step": job.budget, "eval_every": job.every, "n_evaluator_episode": 1}
    data = ReplayDataModule(counted, eval_env_id=ENV, seed=job.seed, **limits)
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", default_root_dir=job.folder, callbacks=[Note()], **flags)
    trainer.fit(policy, data, ckpt_path=last_checkpoint(job.folder))
    return Trained(policy.model.parameters(), lambda obs: policy.model(obs)["logit"])


def stable_baselines3(job: Job) -> Trained:
    """Train with Stable-Baselines3: its pages Callbacks (CheckpointCallback) and Examples (saving and loading)."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import CheckpointCallback

    found = newest_first(job.folder.glob("model_*_steps.zip"), lambda path: int(path.stem.split("_")[1]))
    model, unreadable = None, 0
    for path in found:
        try:
            model = DQN.load(path, env=counted())
            model.load_replay_buffer(
                path.with_name(path.name.replace("model_", "model_replay_buffer_")).with_suffix(".pkl")
            )
            break
        except Exception:  # a kill while it was written; pickle and zip raise many types
            model, unreadable = None, unreadable + 1
    if model is None:
        model = DQN(
            "MlpPolicy",
            counted(),
            learning_rate=RATE,
            buffer_size=job.budget,
            learning_starts=WARM_UP,
            batch_size=BATCH,
            gamma=GAMMA,
            train_freq=TRAIN_EVERY,
            target_update_interval=TARGET_EVERY * TRAIN_EVERY,
            exploration_fraction=0.5,
            policy_kwargs={"net_arch": HIDDEN},
            seed=job.seed,
            device="cpu",
        )
    job.note(model.num_timesteps, model.replay_buffer.size(), model.policy.optimizer, unreadable)
    saving = CheckpointCallback(job.every, str(job.folder), "model", save_replay_buffer=True)
    model.learn(job.budget - model.num_timesteps, callback=saving, reset_num_timesteps=False)
    return Trained(model.q_net.parameters(), model.q_net)


def tianshou(job: Job) -> Trained:
    """Train with Tianshou: ``--resume`` of its example test/discrete/test_c51.py."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils import TensorboardLogger
    from tianshou.utils.net.common import Net
    from torch.utils.tensorboard import SummaryWriter

    envs = DummyVectorEnv([counted])
    envs.seed(job.seed)
    net, actions = Net(state_shape=(4,), action_shape=2, hidden_sizes=HIDDEN), gym.spaces.Discrete(2)
    policy = DiscreteQLearningPolicy(model=net, action_space=actions, eps_training=1.0)
    optimizer = AdamOptimizerFactory(lr=RATE)
    algorithm = DQN(policy=policy, optim=optimizer, gamma=GAMMA, target_update_freq=TARGET_EVERY)
    weights, data = job.folder / "checkpoint.pth", job.folder / "train_buffer.pkl"
    buffer, unreadable, resumed = VectorReplayBuffer(job.budget, 1), 0, False
    if weights.exists():
        try:
            state, kept = torch.load(weights), pickle.loads(data.read_bytes())
            algorithm.load_state_dict(state["algorithm"])
            buffer, resumed = kept, True
        except Exception:  # a kill while it was written
            unreadable = 1
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)

    def save(epoch: int, env_step: int, gradient_step: int) -> str:
        torch.save({"algorithm": algorithm.state_dict()}, weights)
        data.write_bytes(pickle.dumps(collector.buffer))
        return str(weights)

    logger = TensorboardLogger(SummaryWriter(str(job.folder / "log")), save_interval=1)
    step = logger.restore_data()[1] if resumed else 0
    reached = WARM_UP + step if resumed else 0
    job.note(reached, len(buffer), algorithm.optim._optim, unreadable)
    if not resumed:
        collector.reset()
        with torch.no_grad():
            collector.collect(n_step=WARM_UP, random=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=(job.budget - WARM_UP) // job.every,
            epoch_num_steps=job.every,
            collection_step_num_env_steps=TRAIN_EVERY,
            update_step_num_gradient_steps_per_sample=1 / TRAIN_EVERY,
            batch_size=BATCH,
            training_fn=lambda _, env_step: policy.set_eps_training(job.epsilon(WARM_UP + env_step)),
            save_checkpoint_fn=save,
            resume_from_log=resumed,
            logger=logger,
            show_progress=False,
            verbose=False,
        )
    )
    return Trained(net.parameters(), lambda obs: net(obs)[0])


def skrl_network(env: Any) -> Any:
    """Return a Q-network of skrl."""
    import skrl.models.torch as models

    class Q(models.DeterministicMixin, models.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
            models.Model.__init__(self, **spaces, device="cpu")
            models.DeterministicMixin.__init__(self)
            linear, relu = torch.nn.Linear, torch.nn.ReLU
            self.net = torch.nn.Sequential(linear(4, 64), relu(), linear(64, 64), relu(), linear(64, 2))

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.net(inputs["observations"]), {}

    return Q()


def skrl(job: Job) -> Trained:
    """Train with skrl: its page Saving, loading and logging. A checkpoint has the agent; its name is the env step."""
    from skrl.agents.torch.dqn import DQN, DQN_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils import set_seed

    set_seed(job.seed)
    env = wrap_env(counted())
    starts = {
        path: int(path.parts[-3].split("_")[1]) + int(path.stem.split("_")[1])
        for path in job.folder.glob("run_*/checkpoints/agent_*.pt")
    }
    networks = {"q_network": skrl_network(env), "target_q_network": skrl_network(env)}
    memory = RandomMemory(memory_size=job.budget, num_envs=1, device="cpu")
    reached, unreadable, experiment = 0, 0, {"directory": str(job.folder), "write_interval": 0}
    config = DQN_CFG(
        batch_size=BATCH,
        discount_factor=GAMMA,
        polyak=1.0,
        learning_rate=RATE,
        random_timesteps=WARM_UP,
        learning_starts=WARM_UP,
        update_interval=TRAIN_EVERY,
        target_update_interval=TARGET_EVERY,
        exploration_scheduler=lambda timestep, timesteps: job.epsilon(reached + timestep),
        experiment=experiment | {"checkpoint_interval": job.every},
    )
    agent = DQN(
        models=networks,
        memory=memory,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg=config,
    )
    for path in newest_first(starts, starts.__getitem__):
        try:
            agent.load(str(path))
            reached = starts[path]
            break
        except Exception:  # a kill while it was written
            unreadable += 1
    if reached:  # the memory is empty: the agent acts at once, and learns as soon as there is a minibatch
        config.random_timesteps, config.learning_starts = 0, BATCH
    agent.experiment_dir = str(job.folder / f"run_{reached}")
    job.note(reached, len(memory), agent.optimizer, unreadable)
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": job.budget - reached, "headless": True, "disable_progressbar": True}
    ).train()
    return Trained(networks["q_network"].parameters(), networks["q_network"].net)


def rllib(job: Job) -> Trained:
    """Train with RLlib: its page Checkpointing, and its option ``store_buffer_in_checkpoints``."""
    import ray
    from ray.rllib.algorithms import dqn
    from ray.tune.registry import register_env

    make: Any = dqn.DQNConfig

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    register_env("counted", counted)
    config = (
        make()
        .environment("counted")
        .env_runners(num_env_runners=0, rollout_fragment_length=TRAIN_EVERY)
        .reporting(min_sample_timesteps_per_iteration=job.every, min_time_s_per_iteration=0)
        .debugging(seed=job.seed, log_level="ERROR")
        .rl_module(model_config={"fcnet_hiddens": HIDDEN, "fcnet_activation": "relu"})
        .training(
            gamma=GAMMA,
            lr=RATE,
            train_batch_size=BATCH,
            target_network_update_freq=TARGET_EVERY * TRAIN_EVERY,
            num_steps_sampled_before_learning_starts=WARM_UP,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": job.budget},
            store_buffer_in_checkpoints=True,
            epsilon=[[0, 1.0], [job.budget // 2, 0.05]],
            double_q=False,
            dueling=False,
            n_step=1,
        )
    )
    unreadable = 0
    algorithm: Any = config.build_algo()
    for path in newest_first(job.folder.glob("checkpoint_*"), lambda path: int(path.name.split("_")[1])):
        try:
            algorithm.restore_from_path(str(path))
            break
        except Exception:  # a kill while it was written
            algorithm, unreadable = config.build_algo(), unreadable + 1

    def reached() -> int:
        return int(algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"), default=0))

    learner = algorithm.learner_group._learner
    module, ((_, optimizer),) = learner.module["default_policy"], learner.get_optimizers_for_module("default_policy")
    job.note(reached(), len(algorithm.local_replay_buffer), optimizer, unreadable)
    while reached() < job.budget:
        algorithm.train()
        algorithm.save_to_path(str(job.folder / f"checkpoint_{reached()}"))
    return Trained(module.parameters(), lambda obs: module.forward_inference({"obs": obs})["actions"])


def sheeprl_env(id: str, **_: Any) -> gym.Env:
    """Return SheepRL's training env, which notes the replay buffer and the optimizers that the process has."""
    from sheeprl.data.buffers import ReplayBuffer

    job = Job(Path(os.environ["KILLED_FOLDER"]), *json.loads(os.environ["KILLED_JOB"]))

    def note() -> None:
        buffers = [one for one in gc.get_objects() if isinstance(one, ReplayBuffer)]
        optimizers = [one for one in gc.get_objects() if isinstance(one, torch.optim.Adam)]
        filled = max((len(one) if one.full else one._pos for one in buffers), default=0)
        adam = max(optimizers, key=lambda one: len(one.state))
        step = int(os.environ["KILLED_STEP"])
        job.note(step, filled, adam, int(os.environ["KILLED_UNREADABLE"]))

    return Noted(counted(id=id), note)


def sheeprl(job: Job) -> Trained:
    """Train with SheepRL: ``checkpoint.resume_from`` and ``buffer.checkpoint`` of its howto Logs and checkpoints."""
    from sheeprl.cli import run

    def checkpoints() -> list[Path]:
        found = (job.folder / "logs").rglob("checkpoint/ckpt_*.ckpt")
        return newest_first(found, lambda path: int(path.stem.split("_")[1]))

    def readable(path: Path) -> bool:
        try:
            return bool(torch.load(path, weights_only=False))
        except Exception:  # a kill while it was written
            return False

    found = checkpoints()
    whole = [path for path in found if readable(path)]
    os.environ["KILLED_JOB"] = json.dumps(job[1:])
    os.environ["KILLED_UNREADABLE"] = str(found.index(whole[0]) if whole else len(found))
    os.environ["KILLED_STEP"] = whole[0].stem.split("_")[1] if whole else "0"
    sys.argv = ["sheeprl", "exp=sac", "env.id=Pendulum-v1", "env.wrapper._target_=benchmarks.killed_sides.sheeprl_env"]
    sys.argv += ["env.num_envs=1", "env.sync_env=True", "env.capture_video=False", "fabric.accelerator=cpu"]
    sys.argv += [f"algo.total_steps={job.budget}", f"algo.learning_starts={WARM_UP}", "algo.hidden_size=64"]
    sys.argv += [f"algo.replay_ratio={1 / TRAIN_EVERY}", f"algo.per_rank_batch_size={BATCH}", "algo.run_test=False"]
    sys.argv += [f"buffer.size={job.budget}", "buffer.checkpoint=True", f"checkpoint.every={job.every}"]
    sys.argv += ["metric.log_level=0", f"seed={job.seed}", f"log_root={job.folder / 'logs'}", "run_name=run"]
    sys.argv += [f"checkpoint.resume_from={whole[0]}"] if whole else []
    run()
    agent = torch.load(checkpoints()[0], weights_only=False)["agent"]
    layers = [(agent[f"{name}.weight"], agent[f"{name}.bias"]) for name in ACTOR_OF_SHEEPRL]

    def act(obs: torch.Tensor) -> torch.Tensor:
        for weight, bias in layers[:-1]:
            obs = torch.relu(torch.nn.functional.linear(obs, weight, bias))
        return 2.0 * torch.tanh(torch.nn.functional.linear(obs, *layers[-1]))

    return Trained([one for one in agent.values() if one.is_floating_point()], act, "Pendulum-v1")


SIDES: dict[str, Callable[[Job], Trained]] = {
    "lightning_ding": lightning_ding,
    "stable_baselines3": stable_baselines3,
    "tianshou": tianshou,
    "skrl": skrl,
    "rllib": rllib,
    "sheeprl": sheeprl,
}
PACKAGES = {"rllib": "ray"}
IMPORTS = {
    "lightning_ding": ["lightning", "lightning_ding.datamodules.replay", "lightning_ding.policy.dqn"],
    "stable_baselines3": ["stable_baselines3"],
    "tianshou": ["tianshou.algorithm", "tianshou.trainer", "torch.utils.tensorboard"],
    "skrl": ["skrl.agents.torch.dqn", "skrl.trainers.torch", "skrl.envs.wrappers.torch"],
    "rllib": ["ray.rllib.algorithms.dqn"],
    "sheeprl": ["sheeprl.cli", "sheeprl.algos.sac.sac"],
}
"""Modules of each library that take long to import."""


def load(side: str) -> None:
    """Import the library of a side, which its function then finds imported."""
    for name in ["torch._dynamo", *IMPORTS[side]]:  # the first is imported by the first optimizer
        importlib.import_module(name)


def train(side: str, job: Job, folder: Path) -> None:
    """Train in a folder, or resume, and write the result."""
    job = job._replace(folder=folder.resolve())
    os.environ["KILLED_FOLDER"] = str(job.folder)
    torch.set_num_threads(1)
    random.seed(job.seed)
    np.random.seed(job.seed)
    torch.manual_seed(job.seed)
    if side != "lightning_ding":  # which calls the kernel of Adam itself, and counts its updates
        register_optimizer_step_post_hook(lambda *_: append("updates"))
    trained = SIDES[side](job)
    weights = [one.detach().cpu().numpy().ravel() for one in trained.weights]
    np.save(job.folder / "weights.npy", np.concatenate(weights))
    returns = greedy_returns(trained.act, trained.env_id)
    result = {"version": version(PACKAGES.get(side, side)), "torch": torch.__version__, "env": trained.env_id}
    (job.folder / "result.json").write_text(json.dumps(result | {"returns": returns}))
