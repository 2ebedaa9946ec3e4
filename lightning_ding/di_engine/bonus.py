"""DI-engine's ``ding.bonus``: an agent for each of ten algorithms, as views of :class:`lightning_ding.Agent`.

The calls, their arguments and their results are DI-engine's. Where this differs:

* Every env of gymnasium is taken, not only those of ``supported_env_list``, which has DI-engine's names.
* Without ``cfg`` the policy has DI-engine's default config; DI-engine has tuned ones for some envs.
* Nothing is sent to W&B: ``TrainingReturn.wandb_url`` is empty. Metrics are in the folder ``exp_name/log``, checkpoints
  in ``exp_name/ckpt``.
* ``collect_data`` writes an ``.npz`` file of whole episodes, takes ``n_episode`` as well, and heeds ``n_sample``.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from easydict import EasyDict
from torch import nn

from lightning_ding.callbacks import InitialWeights
from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.configs import plain
from lightning_ding.di_engine.env_section import MUJOCO, current_id
from lightning_ding.di_engine.run import Run
from lightning_ding.di_engine.serial import make_policy, make_trainer
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry.agent import Agent
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import Policy

__all__ = [
    *("A2CAgent", "C51Agent", "DDPGAgent", "DQNAgent", "EvalReturn", "PGAgent", "PPOF", "PPOOffPolicyAgent"),
    *("SACAgent", "SQLAgent", "TD3Agent", "TrainingReturn", "algo_supported", "env_supported", "is_supported"),
    *("supported_algo", "supported_algo_list", "supported_env"),
]
logger = logging.getLogger(__name__)
LANDER, CONTINUOUS, WALKER, PENDULUM = "LunarLander-v2", "LunarLanderContinuous-v2", "BipedalWalker-v3", "Pendulum-v1"
ATARI = ("PongNoFrameskip-v4", "QbertNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4")
ROBOTS = ("HalfCheetah-v3", "Hopper-v3", "Walker2d-v3")
OF_ACTORS = (WALKER, "HalfCheetah-v3", "Hopper-v3", CONTINUOUS, PENDULUM, "Walker2d-v3")
TYPES = {"Acrobot": "acrobot", "BipedalWalker": "bipedalwalker", "CartPole": "cartpole", "MountainCar": "mountain_car"}
TYPES |= {"LunarLander": "lunarlander", "LunarLanderContinuous": "lunarlander", "Pendulum": "pendulum"}
TYPES |= dict.fromkeys([*MUJOCO.split(), "Walker2d"], "mujoco")
"""DI-engine's env types by the first part of the ids of their envs."""
VALUE_NORMS = {"baseline": True, "popart": "popart", "symlog": "symlog"}
PPOF_KEYS = {
    **{name: f"learn.{name}" for name in ("epoch_per_collect", "batch_size", "learning_rate", "value_weight")},
    **{name: f"learn.{name}" for name in ("entropy_weight", "clip_ratio", "adv_norm", "ppo_param_init")},
    **{"grad_norm": "learn.grad_clip_value", "discount_factor": "collect.discount_factor"},
    **{"gae_lambda": "collect.gae_lambda", "n_sample": "collect.n_sample", "unroll_len": "collect.unroll_len"},
}
"""Where the keys of PPOF's flat config are in that of PPO."""
PPOF_DEFAULTS = {
    **{"epoch_per_collect": 10, "batch_size": 64, "learning_rate": 3e-4, "value_weight": 0.5, "entropy_weight": 0.01},
    **{"clip_ratio": 0.2, "adv_norm": True, "value_norm": "baseline", "grad_norm": 0.5, "discount_factor": 0.99},
    **{"gae_lambda": 0.95, "n_sample": 128},
}


@dataclass
class TrainingReturn:
    """The result of ``train``."""

    wandb_url: str
    """Empty: nothing is sent to W&B."""


@dataclass
class EvalReturn:
    """The result of ``deploy`` and ``batch_evaluate``."""

    eval_value: np.float32
    """Mean return."""
    eval_value_std: np.float32
    """Standard deviation of the returns."""


class BonusAgent:
    """The agent of an algorithm, with DI-engine's arguments.

    Args:
        env_id: Id of the env; None means ``cfg.env.env_id``.
        env: A ``BaseEnv`` to train in instead, of which copies are made.
        seed: Seed of the run, >= 0.
        exp_name: Folder of the run; None means that of ``cfg``, or the id and the name of the algorithm.
        model: A network to use instead of the one that the config describes.
        cfg: DI-engine's config, with the sections ``env`` and ``policy``; None means DI-engine's defaults.
        policy_state_dict: Path of a checkpoint, ``*.ckpt`` or DI-engine's ``*.pth.tar``, or a state of ``learn_mode``,
            to start from.

    Raises:
        ValueError: If there is neither an env nor a config of one, they differ, or a key has no counterpart here.
    """

    algorithm: ClassVar[str]
    """DI-engine's name of the algorithm."""
    kind: ClassVar[str]
    """Registered name of the policy."""
    collects: ClassVar[dict[str, int]] = {}
    """Size of a collection without one in the config, as DI-engine's configs of these agents have it."""
    supported_env_list: ClassVar[list[str]]
    """Envs that DI-engine's agent takes; here every env of gymnasium is."""

    def __init__(
        self,
        env_id: str | None = None,
        env: Any = None,
        seed: int = 0,
        exp_name: str | None = None,
        model: nn.Module | None = None,
        cfg: Mapping[str, Any] | None = None,
        policy_state_dict: str | Path | Mapping[str, Any] | None = None,
    ) -> None:
        main = self._main_config({} if cfg is None else plain(cfg))
        given = main["env"].get("env_id")
        require((env_id or given) is not None, "env_id", "given, or env_id in the config of the env", None)
        require(None in (env_id, given) or env_id == given, "env_id", f"that of cfg ({given!r})", env_id)
        main["env"]["env_id"] = env_id or given
        main["exp_name"] = exp_name or main.get("exp_name") or f"{env_id or given}-{self.algorithm}"
        self.cfg, self.env, self.seed, self.exp_name = EasyDict(main), env, seed, str(main["exp_name"])
        self.checkpoint_save_dir = str(Path(self.exp_name) / "ckpt")
        self._network = None if model is None else copy.deepcopy(model)
        self._state, self._is_trained = policy_state_dict, False
        self.agent = self._make_agent(debug=True)
        """The agent of this package, with the policy, the datamodule and the Trainer."""

    @classmethod
    def _main_config(cls, cfg: dict[str, Any]) -> dict[str, Any]:
        """Return the config with the sections ``env`` and ``policy``."""
        known = {name: value for name, value in cfg.items() if name not in ("wandb_logger", "seed")}
        counts = {"collector_env_num": 8, "evaluator_env_num": 8, "n_evaluator_episode": 8}
        return deep_merge({"env": counts, "policy": {"collect": cls.collects}}, known)

    @property
    def policy(self) -> Policy[Any]:
        """The policy."""
        return self.agent.policy

    # ------------------------------------------------------------------ DI-engine's methods

    def train(
        self,
        step: int = int(1e7),
        collector_env_num: int | None = None,
        evaluator_env_num: int | None = None,
        n_iter_save_ckpt: int = 1000,
        context: str | None = None,
        debug: bool = False,
        wandb_sweep: bool = False,
    ) -> TrainingReturn:
        """Train, or continue, for a number of env steps.

        Args:
            step: Further env steps, >= 1.
            collector_env_num: Number of training envs; None means that of the config. It cannot change between calls.
            evaluator_env_num: Number of evaluation envs, in the same way.
            n_iter_save_ckpt: Updates between two checkpoints, >= 1.
            context: No effect: env processes are started in one way.
            debug: Step the envs in this process, and not in others.
            wandb_sweep: Only False.
        """
        require(not wandb_sweep, "wandb_sweep", "False: lightning-ding tune searches for hyper-parameters", wandb_sweep)
        if context is not None:
            logger.warning("context=%r has no effect", context)
        self._set_envs({"collector_env_num": collector_env_num, "evaluator_env_num": evaluator_env_num})
        if not self._is_trained:
            hook = {"learner": {"hook": {"save_ckpt_after_iter": n_iter_save_ckpt}}}
            self.cfg.policy = EasyDict(deep_merge(plain(self.cfg.policy), {"learn": hook}))
            self.agent = self._make_agent(debug, step)
        self._is_trained = True
        self.agent.train(env_steps=step)
        return TrainingReturn(wandb_url="")

    def deploy(
        self,
        enable_save_replay: bool = False,
        concatenate_all_replay: bool = False,
        replay_save_path: str | None = None,
        seed: int | Sequence[int] | None = None,
        debug: bool = False,
    ) -> EvalReturn:
        """Play an episode for each seed, and write videos of them if asked to.

        Args:
            enable_save_replay: Write a video of each episode, ``seed_<seed>.mp4`` (extra ``video``).
            concatenate_all_replay: Call the video ``deploy.mp4``; only with one seed.
            replay_save_path: Folder of the videos; None means ``exp_name/videos``.
            seed: Seed of the episode, or one for each; None means that of the agent.
            debug: No effect.
        """
        seeds = [self.seed] if seed is None else [seed] if isinstance(seed, int) else list(seed)
        joins = concatenate_all_replay and enable_save_replay
        require(len(seeds) == 1 or not joins, "concatenate_all_replay", "False with several seeds", seeds)
        folder, returns = Path(replay_save_path or Path(self.exp_name) / "videos"), []
        for one in seeds:
            video = folder / ("deploy.mp4" if joins else f"seed_{one}.mp4") if enable_save_replay else None
            returns.append(self.agent.deploy(video, seed=one, shown=False)[0][0])
        return _as_return(returns)

    def collect_data(
        self,
        env_num: int = 8,
        save_data_path: str | None = None,
        n_sample: int | None = None,
        n_episode: int | None = None,
        context: str | None = None,
        debug: bool = False,
    ) -> None:
        """Write whole episodes, with exploration, as an ``.npz`` file.

        Args:
            env_num: Number of envs, >= 1.
            save_data_path: Path of the file, without ``.npz`` or with it; None means ``exp_name/demo_data``.
            n_sample: Least number of transitions; None means that ``n_episode`` is given.
            n_episode: Number of episodes.
            context: No effect.
            debug: No effect.
        """
        is_one = (n_sample is None) != (n_episode is None)
        require(is_one, "n_sample", "given, or n_episode, and not both", (n_sample, n_episode))
        file = Path(save_data_path or Path(self.exp_name) / "demo_data")
        file = file if file.suffix == ".npz" else file.with_name(f"{file.name}.npz")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.agent.collect(file, n_episode or env_num, num_envs=env_num, n_sample=n_sample or 0, seed=self.seed)
        logger.info("the data are in %s", file)

    def batch_evaluate(
        self, env_num: int = 4, n_evaluator_episode: int = 4, context: str | None = None, debug: bool = False
    ) -> EvalReturn:
        """Return the mean return of episodes.

        Args:
            env_num: Number of envs, >= 1.
            n_evaluator_episode: Number of episodes, >= 1.
            context: No effect.
            debug: No effect.
        """
        return _as_return(self.agent.evaluate(n_evaluator_episode, num_envs=env_num, seed=self.seed)["returns"])

    @property
    def best(self) -> BonusAgent:
        """This agent, with the policy of the best evaluation; unlike :attr:`Agent.best` it replaces the current one."""
        if (Path(self.checkpoint_save_dir) / "best.ckpt").is_file() and self._is_trained:
            self.agent = self.agent.best
        return self

    # ------------------------------------------------------------------ the agent of this package

    def _set_envs(self, counts: Mapping[str, int | None]) -> None:
        for name, number in counts.items():
            if number is None:
                continue
            now = self.cfg.env.get(name)
            require(not self._is_trained or number == now, name, f"{now}, as in the call of train before", number)
            self.cfg.env[name] = number

    def _make_agent(self, debug: bool, step: int = int(1e7)) -> Agent:
        run = self._translate(debug)
        for line in run.warnings:
            logger.warning("%s", line)
        run.check_needs()
        policy = make_policy(run, copy.deepcopy(self._network))
        made = Agent.of(policy, run.datamodule_class, run.data, lambda: make_trainer(run), self._network)
        if self._state is not None:
            self._load(policy, run)
        return made

    def _translate(self, debug: bool) -> Run:
        main = plain(self.cfg)
        env_id = main["env"]["env_id"]
        name = env_id.partition("-")[0]
        kind = TYPES.get(name) or ("atari" if "NoFrameskip" in name else None)
        create = {"policy": {"type": self.kind}, "env": {"type": kind or "cartpole"}}
        if "n_episode" in self.collects:
            create["collector"] = {"type": "episode"}
        create["env_manager"] = {"type": "base" if debug or self.env is not None else "subprocess"}
        if self.env is not None:
            num_train, num_eval = (main["env"][f"{one}_env_num"] for one in ("collector", "evaluator"))
            setting = (_Clone(self.env), [main["env"]] * num_train, [main["env"]] * num_eval)
            return translate((main, create), self.seed, setting)
        if kind is not None:
            return translate((main, create), self.seed)
        given = current_id(env_id)
        require(given in gym.registry, "env_id", "an env of gymnasium, or an env is given", env_id)
        del main["env"]["env_id"]
        run = translate((main, create), self.seed)
        run.data["env_id"] = given
        return run

    def _load(self, policy: Policy[Any], run: Run) -> None:
        """Give a policy the weights of ``policy_state_dict``."""
        data = run.data
        env = make_vector_env(data["env_id"], 1, "sync", 0, data.get("wrappers", ()), data.get("env_kwargs"))
        policy.build(env.single_observation_space, env.single_action_space)
        env.close()
        if isinstance(self._state, Mapping):
            policy.learn_mode.load_state_dict(dict(self._state))
            policy.has_loaded_weights = True
        else:
            InitialWeights(str(self._state)).load(policy)


class _Clone:
    """Makes copies of a ``BaseEnv``."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __call__(self, cfg: Any) -> Any:
        return self.env.clone() if hasattr(self.env, "clone") else copy.deepcopy(self.env)


def _as_return(returns: Sequence[float]) -> EvalReturn:
    return EvalReturn(np.float32(np.mean(returns)), np.float32(np.std(returns)))


class A2CAgent(BonusAgent):
    """Advantage actor-critic."""

    algorithm, kind, supported_env_list = "A2C", "a2c", [WALKER, LANDER]
    collects: ClassVar[dict[str, int]] = {"n_sample": 64}


class C51Agent(BonusAgent):
    """Categorical DQN."""

    algorithm, kind, supported_env_list = "C51", "c51", [LANDER, *ATARI]


class DDPGAgent(BonusAgent):
    """Deep deterministic policy gradient."""

    algorithm, kind, supported_env_list = "DDPG", "ddpg", [*OF_ACTORS]
    collects: ClassVar[dict[str, int]] = {"n_sample": 48}


class DQNAgent(BonusAgent):
    """Deep Q-learning.

    Example:
        >>> agent = DQNAgent("CartPole-v1", exp_name="example")
        >>> type(agent.policy).__name__, agent.agent.datamodule.num_envs
        ('DQNPolicy', 8)
    """

    algorithm, kind, supported_env_list = "DQN", "dqn", [LANDER, *ATARI]


class PGAgent(BonusAgent):
    """Policy gradient."""

    algorithm, kind, supported_env_list = "PG", "pg", [PENDULUM]
    collects: ClassVar[dict[str, int]] = {"n_episode": 20}


class PPOOffPolicyAgent(BonusAgent):
    """PPO that learns from replay."""

    algorithm, kind, supported_env_list = "PPOOffPolicy", "ppo_offpolicy", [LANDER, *ATARI]


class SACAgent(BonusAgent):
    """Soft actor-critic."""

    algorithm, kind, supported_env_list = "SAC", "sac", [*OF_ACTORS]


class SQLAgent(BonusAgent):
    """Soft Q-learning."""

    algorithm, kind, supported_env_list = "SQL", "sql", [LANDER]
    collects: ClassVar[dict[str, int]] = {"n_sample": 64}


class TD3Agent(BonusAgent):
    """Twin delayed DDPG."""

    algorithm, kind, supported_env_list = "TD3", "td3", [*OF_ACTORS]
    collects: ClassVar[dict[str, int]] = {"n_sample": 48}


class PPOF(BonusAgent):
    """PPO, whose config is flat: ``{"env_id": ..., "n_sample": 400, "value_norm": "popart"}``."""

    algorithm, kind, supported_env_list = "PPO", "ppo", [LANDER, CONTINUOUS]

    @classmethod
    def _main_config(cls, cfg: dict[str, Any]) -> dict[str, Any]:
        """Return PPOF's flat config as one of PPO, with 4 envs each as ``PPOF.train`` has."""
        cfg = {**PPOF_DEFAULTS, **cfg}
        env = {name: cfg.pop(name) for name in ("env_id", "act_scale") if name in cfg}
        counts = dict.fromkeys(("collector_env_num", "evaluator_env_num", "n_evaluator_episode"), 4)
        main: dict[str, Any] = {"env": {**counts, **env}}
        main |= {name: cfg.pop(name) for name in ("exp_name",) if name in cfg}
        norm = cfg.pop("value_norm")
        require(norm in VALUE_NORMS, "cfg.value_norm", f"one of {[*VALUE_NORMS]}", norm)
        policy: dict[str, Any] = {"model": cfg.pop("model", {}), "learn": {"value_norm": VALUE_NORMS[norm]}}
        policy |= {name: cfg.pop(name) for name in ("cuda", "action_space") if name in cfg}
        for name in [one for one in cfg if one in PPOF_KEYS]:
            section, _, key = PPOF_KEYS[name].partition(".")
            policy.setdefault(section, {})[key] = cfg.pop(name)
        without: dict[str, Any] = {"lr_scheduler": None, "weight_decay": 0, "deterministic_eval": True}
        left = {name: value for name, value in cfg.items() if name != "seed" and without.get(name, math.nan) != value}
        require(not left, "cfg", f"a config of PPOF, of which {[*PPOF_KEYS]} are known here", left)
        return {**main, "policy": policy}


supported_algo: dict[str, type[BonusAgent]] = {
    **{"A2C": A2CAgent, "C51": C51Agent, "DDPG": DDPGAgent, "DQN": DQNAgent, "PG": PGAgent, "PPOF": PPOF},
    **{"PPOOffPolicy": PPOOffPolicyAgent, "SAC": SACAgent, "SQL": SQLAgent, "TD3": TD3Agent},
}
supported_algo_list = list(supported_algo)


def env_supported(algo: str | None = None) -> list[str]:
    """Return the ids of the envs for which DI-engine has a config of an algorithm, or of any.

    Raises:
        ValueError: If there is no such algorithm.
    """
    by_name = {name.upper(): made for name, made in supported_algo.items()}
    if algo is None:
        return sorted({env for made in by_name.values() for env in made.supported_env_list})
    require(algo.upper() in by_name, "algo", f"one of {supported_algo_list}", algo)
    return list(by_name[algo.upper()].supported_env_list)


supported_env = env_supported()


def algo_supported(env_id: str | None = None) -> list[str]:
    """Return the names of the algorithms for which DI-engine has a config of an env, or all of them.

    Raises:
        ValueError: If there is none.
    """
    found = [name for name in supported_algo if env_id is None or is_supported(env_id, name)]
    require(bool(found), "env_id", f"one of {supported_env}", env_id)
    return found


def is_supported(env_id: str | None = None, algo: str | None = None) -> bool:
    """Return whether DI-engine has a config of an env, an algorithm, or a pair of them.

    Raises:
        ValueError: If neither is given.
    """
    require((env_id or algo) is not None, "env_id", "given, or algo", None)
    if algo is not None and algo.upper() not in {name.upper() for name in supported_algo}:
        return False
    return env_id is None or env_id.upper() in {one.upper() for one in env_supported(algo)}
