"""Table of learning benchmarks: the return that each recipe must reach, and the number of env steps."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypedDict

from typing_extensions import NotRequired

from lightning_ding.config import deep_merge
from lightning_ding.entry.seed_statistics import end_of_run, mean_over_run

RECIPES = Path(__file__).parents[1] / "recipes"
NUM_ENVS = 8  # of a recipe without this constant


class Run(TypedDict):
    """Result of the run of one seed."""

    seed: int
    seconds: float  # of training, without evaluations
    best: float  # mean return of the best checkpoint over greedy episodes that were not used to choose it
    last: NotRequired[float]  # the same of the policy at the end, of runs whose policy was written to the zoo
    n_test: NotRequired[int]  # number of these episodes; 20 where it is missing
    curve: list[tuple[int, float, float]]  # env step, seconds of training, mean return of greedy episodes


def end_return(run: Mapping[str, Any]) -> float:
    """Return the result of a run: the mean return of the evaluations in the last tenth of its env steps.

    They evaluate the policy as it is then, so a policy that was good once and collapsed has a low result.

    Args:
        run: A ``Run``, or a mapping with its ``curve``.
    """
    steps, _, scores = zip(*run["curve"], strict=True)
    return end_of_run(steps, scores)


def mean_return(run: Mapping[str, Any]) -> float:
    """Return the area under a run's curve, divided by its env steps: the mean return over the whole run.

    Args:
        run: A ``Run``, or a mapping with its ``curve``.
    """
    steps, _, scores = zip(*run["curve"], strict=True)
    return mean_over_run(steps, scores)


@dataclass(frozen=True)
class Plan:
    """Length of a run, and its greedy episodes."""

    budget: int
    """Env steps."""
    eval_every: int
    """Env steps between two evaluations."""
    n_episode: int = 20
    """Episodes of an evaluation."""
    n_test: int = 100
    """Episodes that test the best checkpoint."""


def start_seeds(stage: Literal["eval", "test"], seed: int) -> int:
    """Return the seed of a peer's first env of an evaluation or of the test; env i has i more.

    No two runs have an episode in common, as no two runs of this project have.
    """
    return {"eval": 1_000_000, "test": 2_000_000}[stage] + 10_000 * seed


@dataclass(frozen=True)
class Proof:
    """One recipe on one env."""

    recipe: str
    """Name of a file in ``recipes``."""
    env_id: str
    budget: int
    """Env steps."""
    bar: float
    """Return that the policy must have at the end, see ``end_return``."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Overrides of the recipe's CONFIG on this env."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds, if none are asked for."""
    evaluations: int = 25
    """Points of the curve."""
    n_episode: int = 20
    """Episodes of an evaluation."""
    has_defaults: bool = False
    """Leave all options of the policy at their defaults, instead of taking the recipe's CONFIG."""
    demonstrations: str | None = None
    """Data set of ``benchmarks/offline.py`` that the algorithm learns from too, and the peer does not."""
    expert: str | None = None
    """Data set of ``benchmarks/offline.py`` that the reward model learns from."""
    without: tuple[str, ...] = ()
    """Sections of the recipe's CONFIG that are left out, to show what they achieve."""
    is_ceiling: bool = False
    """Require a return below ``bar`` instead: the task needs something that the algorithm does not have."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the env that replace those of the recipe."""
    data: dict[str, Any] = field(default_factory=dict)
    """Arguments of the datamodule that replace those of the recipe."""
    algorithm: str | None = None
    """Name of the algorithm in the tables of the peers; None means that of the recipe."""

    @property
    def peer_algorithm(self) -> str:
        """Name of the algorithm in the tables of the peers."""
        return self.algorithm or self.recipe

    @property
    def plan(self) -> Plan:
        """Length of a run and its evaluations."""
        return Plan(self.budget, max(1, self.budget // self.evaluations), self.n_episode)

    def config(self) -> dict[str, Any]:
        """Return the config of the policy: the recipe's with the overrides, that never stops before the budget."""
        if self.has_defaults:
            return dict(self.overrides)
        full_length: dict[str, Any] = {"eval": {"evaluator": {"stop_value": None}}}
        kept = {name: section for name, section in load(self.recipe).CONFIG.items() if name not in self.without}
        return deep_merge(deep_merge(kept, self.overrides), full_length)


PPO_PENDULUM = {
    "discount_factor": 0.9,
    "learn": {
        "epoch_per_collect": 15,
        "batch_size": 250,
        "learning_rate": 2e-3,
        "lr_scheduler": {"type": "linear"},
    },
    "collect": {"n_sample": 2000},
}
DQN_LANDER = {  # those of RL Baselines3 Zoo, but for the network's two streams, double Q-learning and three steps
    "compile": "auto",
    "model": {"encoder_hidden_size_list": [256, 256]},
    "learn": {"update_per_collect": 8, "batch_size": 128, "learning_rate": 6.3e-4, "target_update_freq": 250},
    "collect": {"n_sample": 8},
    "other": {"eps": {"end": 0.1, "decay": 12_000}, "replay_buffer": {"replay_buffer_size": 50_000}},
}
NO_HINDSIGHT = {"other": {"replay_buffer": {"type": "naive"}}}
FALLS = {
    "dynamics": {"terminated_fn": "lightning_ding.rl.dynamics.inverted_pendulum_terminated"},
    "learn": {"update_per_collect": 40},
}
DM_CONTROL = "lightning_ding.di_engine.env_makers.make_dm_control"
BIT_FLIP = "lightning_ding.envs.bit_flip.BitFlipEnv"
FETCH_REACH = "gymnasium_robotics:FetchReach-v4"
T_MAZE = "lightning_ding.envs.t_maze:TMaze-v0"
LSTM = {"model": {"core": {"type": "lstm", "num_heads": None, "memory_length": None}}}  # in place of a GTrXL
CORRIDOR = "lightning_ding.envs.corridor.CorridorEnv"
NO_VELOCITY = "lightning_ding.envs.partly_observed:CartPoleNoVelocity-v1"
CONTINUOUS_CAR = "MountainCarContinuous-v0"
CONTINUOUS_LANDER = "LunarLanderContinuous-v3"
NO_MEMORY = {  # the settings of recipes/recurrent_mappo_switch_riddle.py that MAPPO without memory has too
    "discount_factor": 1.0,
    "model": {"encoder_hidden_size_list": [64, 64]},
    "learn": {
        "epoch_per_collect": 8,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "entropy_weight": 0.05,
        "lr_scheduler": {"type": "linear"},
    },
    "collect": {"n_sample": 2048},
}
RIDDLE = "lightning_ding.envs.teams.SwitchRiddle"
TWO_STEP = "lightning_ding.envs.teams.games.TwoStepGame"
COVER = "lightning_ding.envs.teams.line.CoverGame"
SPREAD = "pettingzoo:mpe2.simple_spread_v3"
FORAGING = "lbforaging:Foraging-8x8-2p-2f-coop-v3"
LISTENER = "pettingzoo:mpe2.simple_speaker_listener_v4"
TAG = "pettingzoo:mpe2.simple_tag_v3"
MINATAR_ENV = "lightning_ding.envs.MinAtarEnv"
UNLOCK = "minigrid:MiniGrid-Unlock-v0"
KEY_CORRIDOR = "minigrid:MiniGrid-KeyCorridorS3R1-v0"
GROUPS = {"model": {"parameter_sharing": [0, 1]}}  # a network of the speaker, and one of the listener
RAW_ADVANTAGES = {"learn": {"adv_norm": False, "value_norm": False, "value_weight": 0.25}}  # with normalised rewards
SPARSE = {"learn": {"adv_norm": False, "value_norm": False}}  # standardised, a rollout without rewards is all noise
FIXED_NOISE = {"model": {"sigma_type": "fixed", "fixed_sigma_value": 0.2}}  # learned noise vanishes on a solved task
FAR_SIGHTED = {"discount_factor": 0.9999, "collect": {"n_sample": 8192}}  # half an episode of each env
WITHOUT_CONTACTS = {"include_cfrc_ext_in_observation": False}  # as the published results of Ant-v3, where they are 0
CHEETAH_RUN = {"domain_name": "cheetah", "task_name": "run"}
SWINGUP = {"domain_name": "cartpole", "task_name": "swingup"}
REACHER = {"domain_name": "reacher", "task_name": "easy"}


def half_per_action(number: int) -> dict[str, Any]:
    """Return SimBa's target entropy, minus half of the number of actions."""
    return {"learn": {"target_entropy": -number / 2}}


PREDATORS = {  # a network of the three predators, and one of the prey, each with rewards of its own
    "discount_factor": 0.9,  # episodes have 25 steps; with 0.99 the values diverge
    "model": {"encoder_hidden_size_list": [64, 64], "parameter_sharing": [0, 0, 0, 1]},
    "learn": {"epoch_per_collect": 10, "batch_size": 256, "learning_rate": 7e-4, "entropy_weight": 0.01},
    "collect": {"n_sample": 1600},
}
TEAM_GAMES = {  # of uniformly random actions, a sum of values cannot tell that 8 is to be had
    **{f"{name}_two_step": Proof(name, TWO_STEP, 10_000, 7) for name in ("iql_ma", "madqn", "vdn")},
    **{
        f"{name}_two_step": Proof(name, TWO_STEP, 10_000, 8)
        for name in ("coma", "happo", "ippo", "mappo", "mat", "qmix", "qtran", "recurrent_mappo", "wqmix")
    },
    **{f"{name}_cover": Proof(name, COVER, 3_500, -1.1) for name in ("maddpg", "masac")},
}
MINATAR = {  # half of what gymnax's PPO reaches in ten times as many env steps; it has no Seaquest
    f"ppo_minatar{'' if game == 'breakout' else '_' + game}": Proof(
        "ppo_minatar", MINATAR_ENV, 1_000_000, bar, algorithm="ppo", env_kwargs={"game": game}, seeds=(0, 1, 2)
    )
    for game, bar in (("breakout", 14), ("asterix", 7.5), ("freeway", 29), ("seaquest", 2), ("space_invaders", 65))
}
PROOFS = {
    **TEAM_GAMES,
    "ppo_cartpole": Proof("ppo", "CartPole-v1", 100_000, 475),
    "dqn_cartpole": Proof("dqn", "CartPole-v1", 50_000, 475),
    "qrdqn_cartpole": Proof("qrdqn", "CartPole-v1", 50_000, 475),
    "c51_cartpole": Proof("c51", "CartPole-v1", 100_000, 450),
    "rainbow_cartpole": Proof("rainbow", "CartPole-v1", 100_000, 450),
    "mdqn_cartpole": Proof("mdqn", "CartPole-v1", 100_000, 475),
    "sql_cartpole": Proof("sql", "CartPole-v1", 50_000, 450),
    "sqn_cartpole": Proof("sqn", "CartPole-v1", 50_000, 450),
    "bdq_pendulum": Proof("bdq", "Pendulum-v1", 20_000, -250),
    "sqil_cartpole": Proof("sqil", "CartPole-v1", 25_000, 475, demonstrations="cartpole_best"),
    "dqfd_cartpole": Proof("dqfd", "CartPole-v1", 25_000, 475, demonstrations="cartpole_best"),
    "iqn_cartpole": Proof("iqn", "CartPole-v1", 100_000, 475),
    "fqf_cartpole": Proof("fqf", "CartPole-v1", 100_000, 475),
    "discrete_sac_cartpole": Proof("discrete_sac", "CartPole-v1", 100_000, 450),
    "trpo_cartpole": Proof("trpo", "CartPole-v1", 100_000, 475),
    "ppg_cartpole": Proof("ppg", "CartPole-v1", 100_000, 475),
    "ppg_offpolicy_cartpole": Proof("ppg_offpolicy", "CartPole-v1", 100_000, 450),
    "ppo_offpolicy_cartpole": Proof("ppo_offpolicy", "CartPole-v1", 100_000, 450),
    "impala_cartpole": Proof("impala", "CartPole-v1", 100_000, 450),
    "acer_cartpole": Proof("acer", "CartPole-v1", 100_000, 450),
    "pqn_cartpole": Proof("pqn", "CartPole-v1", 100_000, 475),
    "a2c_cartpole": Proof("a2c", "CartPole-v1", 300_000, 450),
    "pg_cartpole": Proof("pg", "CartPole-v1", 300_000, 400),
    "r2d2_no_velocity": Proof("r2d2", NO_VELOCITY, 300_000, 400),
    "r2d3_cartpole": Proof("r2d3", "CartPole-v1", 25_000, 195, demonstrations="cartpole_best"),
    "ngu_corridor": Proof("ngu", CORRIDOR, 20_000, 0.9),
    "dreamerv3_cartpole": Proof("dreamerv3", "CartPole-v1", 20_000, 450),
    "dreamerv3_swingup": Proof("dreamerv3_swingup", DM_CONTROL, 50_000, 700, n_episode=10, algorithm="dreamerv3"),
    "recurrent_ppo_no_velocity": Proof("recurrent_ppo", NO_VELOCITY, 300_000, 400),
    "dqn_no_velocity": Proof("dqn", NO_VELOCITY, 300_000, 150, is_ceiling=True),
    "ppo_no_velocity": Proof("ppo", NO_VELOCITY, 300_000, 150, is_ceiling=True),
    "gtrxl_t_maze": Proof("recurrent_ppo_t_maze", T_MAZE, 200_000, 0.95, algorithm="recurrent_ppo"),
    "lstm_t_maze": Proof("recurrent_ppo_t_maze", T_MAZE, 200_000, 0.95, LSTM, algorithm="recurrent_ppo"),
    "ppo_t_maze": Proof("ppo", T_MAZE, 200_000, 0.5, is_ceiling=True),
    "recurrent_mappo_switch_riddle": Proof(
        "recurrent_mappo_switch_riddle", RIDDLE, 100_000, 0.67, seeds=(0, 1, 2), n_episode=200
    ),
    "iql_ma_switch_riddle": Proof("iql_ma_switch_riddle", RIDDLE, 500_000, 0.67, algorithm="iql_ma", n_episode=200),
    "mappo_switch_riddle": Proof(
        "mappo", RIDDLE, 100_000, 0.25, NO_MEMORY, seeds=(0, 1, 2), n_episode=200, is_ceiling=True
    ),
    "ippo_foraging": Proof("ippo_foraging", FORAGING, 1_000_000, 0.9, algorithm="ippo", n_episode=100, seeds=(0, 1, 2)),
    "mappo_speaker_listener": Proof(
        "mappo_simple_spread", LISTENER, 30_000, -20, GROUPS, algorithm="mappo", seeds=(0, 1, 2), n_episode=100
    ),
    "mappo_simple_tag": Proof("mappo", TAG, 30_000, 4, PREDATORS, seeds=(0, 1, 2), n_episode=100),
    "mappo_simple_spread": Proof("mappo_simple_spread", SPREAD, 100_000, -20, algorithm="mappo", seeds=(0, 1, 2)),
    "dqn_acrobot": Proof("dqn_acrobot", "Acrobot-v1", 100_000, -100, algorithm="dqn"),
    "sac_pendulum": Proof("sac", "Pendulum-v1", 20_000, -200),
    "td3_pendulum": Proof("td3", "Pendulum-v1", 20_000, -200),
    "ddpg_pendulum": Proof("ddpg", "Pendulum-v1", 20_000, -200),
    "pdqn_pendulum": Proof("pdqn", "Pendulum-v1", 20_000, -200),
    "d4pg_pendulum": Proof("d4pg", "Pendulum-v1", 15_000, -200),
    "crossq_pendulum": Proof("crossq", "Pendulum-v1", 8_000, -200),
    "xqc_pendulum": Proof("xqc", "Pendulum-v1", 8_000, -200),
    "bro_pendulum": Proof("bro", "Pendulum-v1", 6_000, -200),
    "td7_pendulum": Proof("td7", "Pendulum-v1", 8_000, -200),
    "redq_pendulum": Proof("redq", "Pendulum-v1", 8_000, -200),
    "rlpd_pendulum": Proof("rlpd", "Pendulum-v1", 4_000, -200, demonstrations="pendulum"),
    "mbpo_pendulum": Proof("mbpo", "Pendulum-v1", 4_000, -200),
    "mbpo_inverted_pendulum": Proof("mbpo", "InvertedPendulum-v5", 3_000, 950, FALLS, seeds=(0, 1, 2)),
    "sac_inverted_pendulum": Proof("sac", "InvertedPendulum-v5", 15_000, 950, seeds=(0, 1, 2)),
    "tdmpc2_pendulum": Proof("tdmpc2", "Pendulum-v1", 8_000, -200, seeds=(0, 1, 2), evaluations=5),
    "tqc_pendulum": Proof("tqc", "Pendulum-v1", 15_000, -200),
    "ppo_pendulum": Proof("ppo", "Pendulum-v1", 200_000, -250, PPO_PENDULUM),
    "ppo_lunarlander": Proof("ppo_lunarlander", "LunarLander-v3", 1_000_000, 242, algorithm="ppo"),
    "rnd_mountaincar": Proof("rnd", "MountainCar-v0", 150_000, -150),
    "icm_mountaincar": Proof("icm", "MountainCar-v0", 150_000, -150),
    "dqn_mountaincar": Proof("rnd", "MountainCar-v0", 150_000, -150, without=("reward_model",), is_ceiling=True),
    "gail_cartpole": Proof("gail", "CartPole-v1", 200_000, 450, expert="cartpole_expert"),
    "guided_cost_cartpole": Proof("guided_cost", "CartPole-v1", 200_000, 450, expert="cartpole_expert"),
    "pdeil_cartpole": Proof("pdeil", "CartPole-v1", 200_000, 450, expert="cartpole_expert"),
    "pwil_cartpole": Proof("pwil", "CartPole-v1", 200_000, 450, expert="cartpole_expert"),
    "red_cartpole": Proof("red", "CartPole-v1", 200_000, 450, expert="cartpole_expert"),
    "trex_cartpole": Proof("trex", "CartPole-v1", 50_000, 450, expert="cartpole_random"),
    "drex_cartpole": Proof("drex", "CartPole-v1", 200_000, 450, expert="cartpole_noisy"),
    "her_bitflip": Proof("her", BIT_FLIP, 100_000, 0.9),
    "tqc_fetch_reach": Proof("tqc_fetch_reach", FETCH_REACH, 20_000, -1.7, algorithm="tqc", evaluations=10),
    "dqn_bitflip": Proof("her", BIT_FLIP, 100_000, 0.1, NO_HINDSIGHT, is_ceiling=True),
    "dqn_defaults_cartpole": Proof("dqn", "CartPole-v1", 100_000, 475, has_defaults=True),
    "dqn_defaults_acrobot": Proof("dqn", "Acrobot-v1", 100_000, -100, has_defaults=True),
    "a2c_defaults_cartpole": Proof("a2c", "CartPole-v1", 300_000, 475, has_defaults=True),
    "a2c_defaults_acrobot": Proof("a2c", "Acrobot-v1", 300_000, -100, has_defaults=True),
    "dqn_lunarlander": Proof("dqn", "LunarLander-v3", 100_000, 154, DQN_LANDER),
    "sac_lunarlander_continuous": Proof("sac_lunarlander_continuous", CONTINUOUS_LANDER, 200_000, 200, algorithm="sac"),
    "tqc_lunarlander_continuous": Proof("tqc_lunarlander_continuous", CONTINUOUS_LANDER, 200_000, 200, algorithm="tqc"),
    "sac_mountaincar_continuous": Proof("sac_mountaincar_continuous", CONTINUOUS_CAR, 50_000, 90, algorithm="sac"),
    "sac_bipedalwalker": Proof("sac_bipedalwalker", "BipedalWalker-v3", 500_000, 250, algorithm="sac"),
    "ppo_halfcheetah": Proof("ppo_mujoco", "HalfCheetah-v5", 1_000_000, 5000, algorithm="ppo"),
    "ppo_hopper": Proof("ppo_mujoco", "Hopper-v5", 1_000_000, 2400, algorithm="ppo"),
    "ppo_walker2d": Proof(
        "ppo_mujoco", "Walker2d-v5", 1_000_000, 3400, RAW_ADVANTAGES, algorithm="ppo", data={"norm_reward": True}
    ),
    "ppo_ant": Proof(
        "ppo_mujoco",
        "Ant-v5",
        1_000_000,
        3000,
        RAW_ADVANTAGES,
        algorithm="ppo",
        data={"norm_reward": True},
        env_kwargs=WITHOUT_CONTACTS,
    ),
    "ppo_double_pendulum": Proof(
        "ppo_mujoco", "InvertedDoublePendulum-v5", 1_000_000, 9000, FIXED_NOISE, algorithm="ppo"
    ),
    "ppo_reacher": Proof("ppo_mujoco", "Reacher-v5", 1_000_000, -5, algorithm="ppo"),
    "ppo_swimmer": Proof("ppo_mujoco", "Swimmer-v5", 1_000_000, 281, FAR_SIGHTED, algorithm="ppo"),
    "sac_hopper": Proof("sac_mujoco", "Hopper-v5", 100_000, 1103, algorithm="sac"),
    "sac_halfcheetah": Proof("sac_mujoco", "HalfCheetah-v5", 100_000, 5456, algorithm="sac"),
    "sac_walker2d": Proof("sac_mujoco", "Walker2d-v5", 100_000, 690, algorithm="sac"),
    "td3_halfcheetah": Proof("td3_mujoco", "HalfCheetah-v5", 100_000, 2500, algorithm="td3"),
    "td3_hopper": Proof("td3_mujoco", "Hopper-v5", 100_000, 1000, algorithm="td3"),
    "td3_walker2d": Proof("td3_mujoco", "Walker2d-v5", 100_000, 600, algorithm="td3"),
    "tqc_halfcheetah": Proof("tqc_mujoco", "HalfCheetah-v5", 100_000, 5456, algorithm="tqc"),
    "tqc_hopper": Proof("tqc_mujoco", "Hopper-v5", 100_000, 1103, algorithm="tqc"),
    "tqc_walker2d": Proof("tqc_mujoco", "Walker2d-v5", 100_000, 690, algorithm="tqc"),
    "crossq_halfcheetah": Proof("crossq_mujoco", "HalfCheetah-v5", 100_000, 6156, algorithm="crossq"),
    "crossq_hopper": Proof("crossq_mujoco", "Hopper-v5", 100_000, 1103, algorithm="crossq"),
    "crossq_walker2d": Proof("crossq_mujoco", "Walker2d-v5", 100_000, 690, algorithm="crossq"),
    "xqc_hopper": Proof("xqc_hopper", "Hopper-v5", 50_000, 2000, algorithm="xqc"),
    "sac_simba": Proof("sac_simba", DM_CONTROL, 25_000, 800, n_episode=10, algorithm="sac"),
    "sac_simba_cheetah": Proof(
        "sac_simba", DM_CONTROL, 50_000, 516, n_episode=10, algorithm="sac", env_kwargs=CHEETAH_RUN
    ),
    "sac_simba_swingup": Proof(
        "sac_simba", DM_CONTROL, 25_000, 808, half_per_action(1), n_episode=10, algorithm="sac", env_kwargs=SWINGUP
    ),
    "sac_simba_reacher": Proof(
        "sac_simba", DM_CONTROL, 50_000, 754, half_per_action(2), n_episode=10, algorithm="sac", env_kwargs=REACHER
    ),
    "tdmpc2_walker": Proof("tdmpc2_walker", DM_CONTROL, 100_000, 900, n_episode=10, algorithm="tdmpc2"),
    "ppo_minigrid": Proof("ppo_minigrid", "minigrid:MiniGrid-DoorKey-5x5-v0", 100_000, 0.96, algorithm="ppo"),
    "ppo_minigrid_key_corridor": Proof(
        "ppo_minigrid", KEY_CORRIDOR, 500_000, 0.95, SPARSE, algorithm="ppo", data={"norm_reward": True}
    ),
    "ppo_minigrid_unlock": Proof(
        "ppo_minigrid", UNLOCK, 100_000, 0.95, SPARSE, algorithm="ppo", data={"norm_reward": True}
    ),
    **MINATAR,
    "dqn_minatar": Proof("dqn_minatar", MINATAR_ENV, 300_000, 10, algorithm="dqn"),
    "dqn_pong": Proof("dqn_pong", "lightning_ding.envs.make_atari", 1_000_000, 10, algorithm="dqn"),
    "dqn_tictactoe": Proof("dqn_tictactoe", "pettingzoo:tictactoe_v3", 150_000, 0.8, n_episode=200),
    "dqn_connect_four": Proof("dqn_connect_four", "pettingzoo:connect_four_v3", 150_000, 0.8, n_episode=200),
}


def load(recipe: str) -> ModuleType:
    """Return the module of a recipe; recipes are no package."""
    spec = importlib.util.spec_from_file_location(recipe, RECIPES / f"{recipe}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def env_kwargs(proof: Proof) -> dict[str, Any]:
    """Return the arguments that a proof makes its envs with."""
    return {**getattr(load(proof.recipe), "ENV_KWARGS", {}), **proof.env_kwargs}


def classes(module: ModuleType) -> tuple[Any, Any]:
    """Return the policy and the datamodule class that a recipe imports.

    Raises:
        ValueError: If the recipe does not import exactly one policy and one datamodule.
    """
    from lightning_ding.datamodules import RunDataModule
    from lightning_ding.policy import Policy

    found = []
    for kind in (Policy, RunDataModule):
        named = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, kind)]
        if len(named) != 1:
            raise ValueError(f"recipe must import one {kind.__name__}, got {[one.__name__ for one in named]}")
        found.append(named[0])
    return found[0], found[1]
