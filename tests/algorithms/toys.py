"""How long each algorithm learns in each toy, and where it differs from its defaults; four seeds of what is fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from lightning import Callback

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.policy import Policy, create_policy
from tests.algorithms.table import ALGORITHMS, CONTINUOUS_ONLY, WITHOUT_COLLECTING, needs_demonstrations, with_actor
from tests.conftest import MakeTrainer

Config = dict[str, Any]
NAMES = (*ALGORITHMS, *WITHOUT_COLLECTING)
OFFLINE = ("bc", "dt", "td3_bc", "iql", "awac", "cql", "calql", "edac", "bcq", "discrete_cql")
"""Algorithms that learn from a data set of the toy; all others collect in it."""
CONTINUOUS = (*CONTINUOUS_ONLY, *with_actor(), "dt")
EVALUATION: Config = {"eval": {"evaluator": {"n_episode": 100, "eval_freq": 10**8}}}


@dataclass(frozen=True)
class Run:
    """What an algorithm gets in a toy.

    Args:
        amount: Env steps, or updates of an algorithm in ``OFFLINE``.
        changes: What differs from the default config.
        why: Why something differs.
        slow: Whether it takes more than 2 seconds.
    """

    amount: int
    changes: Config = field(default_factory=dict)
    why: str = ""
    slow: bool = False

    def with_discount(self, discount_factor: float) -> Run:
        """Return the same with another discount factor."""
        return replace(self, changes=deep_merge(self.changes, {"discount_factor": discount_factor}))


def train(
    make_trainer: MakeTrainer,
    name: str,
    env: Any,
    run: Run,
    seed: int,
    data: Any = None,
    num_envs: int = 8,
    callbacks: Sequence[Callback] = (),
    **env_kwargs: Any,
) -> tuple[Any, Any]:
    """Return the policy after learning, and its datamodule; ``data`` are the data set or the demonstrations."""
    torch.manual_seed(seed)
    policy: Policy[Any] = create_policy({"type": name, **deep_merge(EVALUATION, run.changes)})
    given: Config = {"env_kwargs": env_kwargs, "seed": seed}
    datamodule: Any
    if name in OFFLINE:
        datamodule = OfflineDataModule(data, env, **given, max_train_iter=run.amount)
    else:
        given |= {"demonstrations": data} if needs_demonstrations(name) else {}
        datamodule_class = RolloutDataModule if policy.on_policy else ReplayDataModule
        datamodule = datamodule_class(env, **given, num_envs=num_envs, max_env_step=run.amount)
    make_trainer(limit_val_batches=0, callbacks=list(callbacks)).fit(policy, datamodule)
    return policy, datamodule


def runs_of(toy: dict[str, Run | str]) -> list[Any]:
    """Return the name and the run of each algorithm of a toy, as parameters of a test."""
    pairs = [(name, run) for name, run in toy.items() if isinstance(run, Run)]
    return [pytest.param(*pair, id=pair[0], marks=pytest.mark.slow if pair[1].slow else ()) for pair in pairs]


def without(names: Sequence[str], why: str) -> dict[str, Run | str]:
    """Return algorithms that a toy leaves out, and why."""
    return dict.fromkeys(names, why)


OF_WORLDS = "its updates take 20 ms, so it learns a toy of its own, from fixed data, in tests/policy/test_dreamerv3.py"
SMALL_DREAMER: Config = {
    **{"learn_unroll_len": 4, "horizon": 2, "collect": {"n_sample": 16}},
    "model": {"deter": 32, "hidden": 16, "units": 32, "groups": 4, "classes": 4, "blocks": 2},
    "learn": {"learning_rate": 3e-3, "warmup": 20, "update_per_collect": 4},
}
SMALL_TDMPC2: Config = {
    "horizon": 1,
    "model": {"encoder": 32, "hidden": 32, "latent": 32},
    "plan": {"iterations": 3, "num_samples": 64, "num_elites": 16, "num_policy_samples": 8},
    "learn": {"update_per_collect": 8, "batch_size": 64, "learning_rate": 3e-3},
    "collect": {"n_sample": 8},
}
OF_PLANS = "plans of 512 candidates take half a second; episodes of 1 step fill a third of sequences of 3 steps"
FASTER_FQF: Config = {"learn": {"learning_rate": 1e-3}}
RECURRENT_Q = ("r2d2", "r2d3", "ngu")
SHORT_R2D2: Config = {
    **{"burnin_step": 1, "learn_unroll_len": 6, "nstep": 1},
    "learn": {"learning_rate": 1e-3, "update_per_collect": 4},
}
SHORT_DT: Config = {
    **{"context_len": 2, "rtg_scale": 1.0},
    "learn": {"learning_rate": 1e-3, "lr_scheduler": {"type": "constant", "points": None, "unit": "budget"}},
}
FAST_ACER: Config = {"learn": {"update_per_collect": 16}}
OF_ACER = "4 updates for 512 steps are made for millions of steps"
PHASES: Config = {"learn": {"epoch_per_collect": 5, "aux_freq": 2}}
OF_PHASES = "its phases of 32 rollouts, with one pass over each, are made for millions of steps"
SMALL_CROSSQ: Config = {"model": {"critic_head_hidden_size": 256}}
WIDE_SUPPORT: Config = {"v_min": -10.0, "v_max": 10.0}
SMALL_XQC: Config = {"model": {"critic_head_hidden_size": 64, "critic_head_layer_num": 1, "actor_head_hidden_size": 64}}
SMALL_BRO = deep_merge(SMALL_XQC, {"model": {"num_quantiles": 16}, "learn": {"update_per_collect": 1, "reset_at": []}})
OF_BLOCKS = "critics of 512 units with 100 quantiles, 10 updates a step and resets take minutes"
COPIED_SOON: Config = {
    "model": {"embedding_size": 32, "embedding_hidden_size": 32},
    "learn": {"target_update_freq": 50},
}
SLOW_ACTOR: Config = {
    "model": {"embedding_size": 32, "embedding_hidden_size": 32},
    "learn": {"learning_rate_critic": 1e-3, "learning_rate_embedding": 1e-3, "learning_rate_actor": 3e-5},
}
OF_FALLS = "while all values fall from 0, critics prefer one end of the range, from which a fast actor does not return"
OF_COPIES = "before the first copy the next value counts as 0, for 250 updates"
FEW_ACTIONS: Config = {"learn": {"num_actions": 2}}
FEW_ROLLOUTS: Config = {
    "dynamics": {
        **{"ensemble_num": 3, "elite_num": 2, "hidden_size_list": [32, 32], "batch_size": 32, "learning_rate": 0.003},
        **{"max_epochs_since_update": 20, "max_epochs": 100},
    },
    "rollout": {"batch_size": 2000, "random_action_share": 0.5},
}
OF_ENSEMBLES = "an ensemble of seven networks of four layers of 200 units takes minutes"
SMALL_VAE: Config = {"model": {"vae_hidden_size_list": [64, 64]}}
OF_VAE = "an auto-encoder of 750 units takes 30 ms an update"
OF_WIDE_CRITICS = "critics of 2,048 units take 0.3 seconds an update"
OF_MANY_ACTIONS = "ten actions of each of three kinds take 0.1 seconds an update"
OF_ATARI = "its step size of 5e-5 is made for 50 million steps"
OF_LONG_EPISODES = "its sequences of 104 steps would be padding, with 1 update for 64 steps"
OF_GYM = "its context of 20 steps would be padding, returns are divided by 1,000, and 10,000 updates warm it up"
NO_BOX = without(CONTINUOUS_ONLY, "its actions are continuous")
NO_VALUES = without(("pg", "bc", "dt"), "it learns no values") | without(
    ("dreamerv3", "tdmpc2"), "its values are of latent states"
)
NO_CHOICE = without([name for name in NAMES if name not in CONTINUOUS], "its actions are discrete")

CHOICE: dict[str, Run | str] = NO_BOX | {
    "dqn": Run(2000),
    "c51": Run(2000),
    "qrdqn": Run(2000),
    "rainbow": Run(1500),
    "mdqn": Run(2000),
    "sql": Run(2000),
    "sqil": Run(2000),
    "sqn": Run(2000),
    "bdq": Run(2000),
    "dqfd": Run(1500),
    "iqn": Run(1500),
    "fqf": Run(2000, FASTER_FQF, OF_ATARI, slow=True),
    **dict.fromkeys(RECURRENT_Q, Run(6000, SHORT_R2D2, OF_LONG_EPISODES, slow=True)),
    "dreamerv3": "it refuses action masks",
    "discrete_sac": Run(1600, slow=True),
    "ppo": Run(4096),
    "ppg": Run(4096, PHASES, OF_PHASES),
    "trpo": Run(8192),
    "recurrent_ppo": Run(4096, slow=True),
    "ppo_offpolicy": Run(6400),
    "ppg_offpolicy": Run(6400, slow=True),
    "impala": Run(30_720),
    "acer": Run(10_240, FAST_ACER, OF_ACER, slow=True),
    "a2c": Run(25_600),
    "pqn": Run(4096),
    "pg": Run(6400),
    "discrete_cql": Run(300),
    "bc": Run(100),
    "dt": Run(400, SHORT_DT, OF_GYM, slow=True),
}
TARGET: dict[str, Run | str] = NO_CHOICE | {
    "ddpg": Run(1600, slow=True),
    "td3": Run(1600, slow=True),
    "pdqn": Run(1600, slow=True),
    "d4pg": Run(1600, slow=True),
    "sac": Run(1600, slow=True),
    "tqc": Run(1600, slow=True),
    "redq": Run(1040, slow=True),
    "mbpo": Run(1040, FEW_ROLLOUTS, OF_ENSEMBLES, slow=True),
    "rlpd": Run(1040, slow=True),
    "tdmpc2": Run(1200, SMALL_TDMPC2, OF_PLANS, slow=True),
    "crossq": Run(3000, SMALL_CROSSQ, OF_WIDE_CRITICS, slow=True),
    "xqc": Run(1600, SMALL_XQC, OF_WIDE_CRITICS, slow=True),
    "bro": Run(1600, SMALL_BRO, OF_BLOCKS, slow=True),
    "td7": Run(1600, COPIED_SOON, OF_COPIES, slow=True),
    "td3_bc": Run(500, slow=True),
    "iql": Run(500, slow=True),
    "awac": Run(500, slow=True),
    "edac": Run(500, slow=True),
    "bcq": Run(500, SMALL_VAE, OF_VAE, slow=True),
    "cql": Run(200, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "calql": Run(200, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "ppo": Run(8192),
    "ppg": Run(8192, PHASES, OF_PHASES, slow=True),
    "trpo": Run(16_384, slow=True),
    "recurrent_ppo": Run(8192, slow=True),
    "ppo_offpolicy": Run(12_800),
    "ppg_offpolicy": Run(12_800, slow=True),
    "impala": Run(61_440, slow=True),
    "a2c": Run(51_200, slow=True),
    "pg": Run(12_800, slow=True),
    "bc": Run(200),
    "dt": Run(400, SHORT_DT, OF_GYM, slow=True),
}
SHARP: Config = {"learn": {"beta": 10.0}}
OF_BETA = "with its own beta it stays near random data, at 0.8"
PARTS: dict[str, Run | str] = {
    **{name: run for name, run in CHOICE.items() if isinstance(run, Run)},
    **{name: run for name, run in TARGET.items() if name in CONTINUOUS_ONLY},
    **without(("mbpo", "tdmpc2"), "its observations are a single vector"),
    "recurrent_ppo": Run(12_288, slow=True),
    "dreamerv3": Run(4000, SMALL_DREAMER, "its networks and its step size are made for long runs", slow=True),
    "iql": Run(500, SHARP, OF_BETA, slow=True),
    "awac": Run(500, SHARP, OF_BETA, slow=True),
    "cql": Run(400, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "calql": Run(400, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
}
SHORT_EPISODES: Config = {
    **{"burnin_step": 1, "learn_unroll_len": 12},
    "learn": {"learning_rate": 1e-3, "update_per_collect": 4, "target_theta": 0.01},
}
CUE: dict[str, Run | str] = {
    **without([name for name in NAMES if name not in (*RECURRENT_Q, "recurrent_ppo", "dreamerv3")], "it has no memory"),
    "dt": "its context of 20 steps shows the first observation, so nothing is remembered",
    **dict.fromkeys(
        RECURRENT_Q, Run(20_000, SHORT_EPISODES, f"{OF_LONG_EPISODES}, and a target that moves by 0.001", slow=True)
    ),
    "recurrent_ppo": Run(30_720, slow=True),
    "dreamerv3": OF_WORLDS,
}
HINDSIGHT: Config = {
    "nstep": 1,
    "priority": False,
    "priority_IS_weight": False,
    "other": {"replay_buffer": {"type": "her"}},
}
OF_HINDSIGHT = "the buffer draws single steps without priorities"
RARELY_COPIED = deep_merge(HINDSIGHT, {"learn": {"target_update_freq": 500}})
OF_GAPS = "values of actions differ by 1 %, which a head with a hidden layer tells apart for targets that stay longer"
GOALS: dict[str, Run | str] = {
    **without(["ppo", "ppg", "trpo", "recurrent_ppo", "a2c", "pqn", "pg"], "it has no replay buffer"),
    **without(
        ["ppo_offpolicy", "ppg_offpolicy", "impala", "acer", "r2d2", "ngu", "dreamerv3", "tdmpc2"],
        "it needs a buffer of sequences or of its own policy's steps",
    ),
    **without(["sqil", "dqfd", "r2d3", "rlpd"], "it needs demonstrations, which hindsight replay refuses"),
    "mbpo": "its model of the env does not know that goals are replaced",
    **without(OFFLINE, "it learns from a data set, which hindsight replay refuses"),
    **{
        name: Run(4000, HINDSIGHT, OF_HINDSIGHT, slow=True)
        for name in ("dqn", "c51", "qrdqn", "mdqn", "sql", "sqn", "bdq")
    },
    "rainbow": Run(
        4000,
        deep_merge(RARELY_COPIED, {"model": {"v_min": 0.0, "v_max": 1.0}}),
        f"{OF_HINDSIGHT}; {OF_GAPS}, and for atoms that are not 0.4 apart",
        slow=True,
    ),
    **{name: Run(2500, HINDSIGHT, OF_HINDSIGHT, slow=True) for name in ("ddpg", "td3", "pdqn", "d4pg", "sac", "tqc")},
    "iqn": Run(8000, RARELY_COPIED, f"{OF_HINDSIGHT}; {OF_GAPS}", slow=True),
    "fqf": Run(8000, deep_merge(FASTER_FQF, RARELY_COPIED), f"{OF_HINDSIGHT}; {OF_ATARI}; {OF_GAPS}", slow=True),
    "discrete_sac": Run(
        4000,
        deep_merge(HINDSIGHT, {"learn": {"auto_alpha": False, "alpha": 0.01}}),
        f"{OF_HINDSIGHT}; at 0.2 the entropy of going on for ever is worth more than the reward of 1 at the end",
        slow=True,
    ),
    "redq": Run(
        2500,
        deep_merge(HINDSIGHT, {"learn": {"update_per_collect": 1, "actor_update_freq": 1}}),
        f"{OF_HINDSIGHT}; 20 updates of 10 critics for each step take 0.3 seconds",
        slow=True,
    ),
    "crossq": Run(7000, deep_merge(SMALL_CROSSQ, HINDSIGHT), f"{OF_HINDSIGHT}; {OF_WIDE_CRITICS}", slow=True),
    "xqc": Run(7000, deep_merge(SMALL_XQC, HINDSIGHT), f"{OF_HINDSIGHT}; {OF_WIDE_CRITICS}", slow=True),
    "bro": Run(7000, deep_merge(SMALL_BRO, HINDSIGHT), f"{OF_HINDSIGHT}; {OF_BLOCKS}", slow=True),
    "td7": Run(2500, deep_merge(SLOW_ACTOR, HINDSIGHT), f"{OF_HINDSIGHT}; {OF_FALLS}", slow=True),
}
NEVER_OCCURS: dict[str, Run | str] = {
    **without([name for name in NAMES if name not in OFFLINE], "it collects, and explores what it does not know"),
    "bc": Run(100),
    "dt": Run(200, SHORT_DT, OF_GYM, slow=True),
    "td3_bc": Run(500, slow=True),
    "iql": Run(500, slow=True),
    "bcq": Run(500, SMALL_VAE, OF_VAE, slow=True),
    "edac": "its critics must disagree about other actions, and they are too alike after minutes: it stays at 0.7",
    "awac": Run(500, slow=True),
    "cql": Run(300, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "calql": Run(300, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "discrete_cql": Run(500),
}
TOYS = {"choice": CHOICE, "target": TARGET, "parts": PARTS, "cue": CUE, "goals": GOALS, "never_occurs": NEVER_OCCURS}

OWN_UNITS: Config = {"learn": {"value_norm": False}}
OF_UNITS = "its memory shows the step, so the value at a time limit is extrapolated, and faster in units of the returns"
BY_DEFAULT: dict[str, Run | str] = NO_VALUES | {
    "dqn": Run(1500),
    "c51": Run(1500),
    "qrdqn": Run(1500),
    "rainbow": Run(1000),
    "mdqn": Run(1500),
    "sql": Run(1500),
    "sqil": Run(1500),
    "sqn": Run(1500),
    "bdq": Run(1500),
    "dqfd": Run(1000),
    "iqn": Run(1000),
    "fqf": Run(2000, FASTER_FQF, OF_ATARI, slow=True),
    **dict.fromkeys(RECURRENT_Q, Run(16_000, slow=True)),
    "discrete_sac": Run(1400, slow=True),
    "discrete_cql": Run(500),
    "ddpg": Run(1300),
    "td3": Run(1300, slow=True),
    "pdqn": Run(1300),
    "d4pg": Run(1200),
    "sac": Run(1300, slow=True),
    "tqc": Run(1150, slow=True),
    "redq": Run(1020, slow=True),
    "mbpo": Run(1020, FEW_ROLLOUTS, OF_ENSEMBLES, slow=True),
    "rlpd": Run(1020, slow=True),
    "crossq": Run(1300, SMALL_CROSSQ, OF_WIDE_CRITICS, slow=True),
    "xqc": Run(1300, SMALL_XQC, OF_WIDE_CRITICS, slow=True),
    "bro": Run(1300, SMALL_BRO, OF_BLOCKS, slow=True),
    "td7": Run(1300, COPIED_SOON, OF_COPIES, slow=True),
    "td3_bc": Run(300, slow=True),
    "iql": Run(300, slow=True),
    "awac": Run(300, slow=True),
    "edac": Run(300, slow=True),
    "bcq": Run(300, SMALL_VAE, OF_VAE, slow=True),
    "cql": Run(200, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "calql": Run(200, FEW_ACTIONS, OF_MANY_ACTIONS, slow=True),
    "ppo": Run(8192),
    "ppg": Run(8192, PHASES, OF_PHASES),
    "trpo": Run(8192),
    "recurrent_ppo": Run(8192, OWN_UNITS, OF_UNITS, slow=True),
    "ppo_offpolicy": Run(8192),
    "ppg_offpolicy": Run(8192, slow=True),
    "impala": Run(8192),
    "acer": Run(8192),
    "a2c": Run(25_600),
    "pqn": Run(8192),
}
"""The discount factor is each algorithm's, 0.99 or more, so values are on their way to -100 when the budget ends."""
COPIED: Config = {"learn": {"target_update_freq": 10}}
FIXED_SQN: Config = {"learn": {"target_theta": None, "auto_alpha": False, "alpha": 0.1}}
OF_STEPS: Config = {"learn": {"target_update_freq": 25}}  # returns of several steps
FOLLOWED: Config = {"learn": {"target_theta": 0.05}}
NO_ENTROPY = deep_merge(FOLLOWED, {"learn": {"auto_alpha": False, "alpha": 0.0}})
OF_TARGETS = "with its target network's rate, values would need ten times as many updates"
OF_ENTROPY = f"{OF_TARGETS}, and have no closed form with a temperature"
EXACT: dict[str, Run | str] = NO_VALUES | {
    "dqn": Run(4000, OF_STEPS, OF_TARGETS),
    "c51": Run(2000, COPIED, OF_TARGETS),
    "qrdqn": Run(2000, COPIED, OF_TARGETS),
    "rainbow": Run(2000, COPIED, OF_TARGETS),
    "mdqn": Run(4000, COPIED, OF_TARGETS),
    "sql": Run(4000, COPIED, OF_TARGETS),
    "sqil": Run(4000, COPIED, OF_TARGETS),
    "sqn": Run(4000, deep_merge(COPIED, FIXED_SQN), f"{OF_TARGETS}, and the temperature would change"),
    "bdq": Run(4000, COPIED, OF_TARGETS),
    "dqfd": Run(4000, OF_STEPS, OF_TARGETS),
    "iqn": Run(2000, COPIED, OF_TARGETS),
    "fqf": Run(2000, deep_merge(FASTER_FQF, COPIED), f"{OF_ATARI}; {OF_TARGETS}"),
    **dict.fromkeys(
        RECURRENT_Q,
        Run(
            16_000,
            deep_merge(SHORT_R2D2, {"learn": {"target_theta": None, "target_update_freq": 10}}),
            f"{OF_LONG_EPISODES}; {OF_TARGETS}",
        ),
    ),
    "discrete_sac": Run(2000, NO_ENTROPY, OF_ENTROPY),
    "discrete_cql": Run(1000, deep_merge(COPIED, {"learn": {"min_q_weight": 0.0}}), f"{OF_TARGETS}; it is pessimistic"),
    "ddpg": Run(2000, FOLLOWED, OF_TARGETS),
    "td3": Run(2000, FOLLOWED, OF_TARGETS),
    "pdqn": Run(2000, FOLLOWED, OF_TARGETS),
    "d4pg": Run(2000, FOLLOWED, OF_TARGETS),
    "sac": Run(2000, NO_ENTROPY, OF_ENTROPY),
    "tqc": Run(2000, NO_ENTROPY, OF_ENTROPY),
    "redq": Run(1050, NO_ENTROPY, OF_ENTROPY),
    "mbpo": Run(1050, deep_merge(NO_ENTROPY, FEW_ROLLOUTS), f"{OF_ENTROPY}; {OF_ENSEMBLES}", slow=True),
    "rlpd": Run(1050, NO_ENTROPY, OF_ENTROPY),
    "crossq": Run(
        2000,
        deep_merge(SMALL_CROSSQ, {"learn": {"auto_alpha": False, "alpha": 0.0}}),
        f"{OF_WIDE_CRITICS}; with a temperature, values have no closed form",
    ),
    "xqc": Run(
        3000,
        deep_merge(NO_ENTROPY, deep_merge(SMALL_XQC, {"model": WIDE_SUPPORT})),
        f"{OF_WIDE_CRITICS}; {OF_ENTROPY}; its support is for scaled rewards",
        slow=True,
    ),
    "bro": Run(2000, deep_merge(NO_ENTROPY, SMALL_BRO), f"{OF_BLOCKS}; {OF_ENTROPY}", slow=True),
    "td7": Run(
        3000, COPIED_SOON, f"{OF_COPIES}; each copy is one backup, and 20 of them leave 0.9^20 of a value", slow=True
    ),
    "td3_bc": Run(1000, FOLLOWED, OF_TARGETS),
    "iql": Run(1000, FOLLOWED, OF_TARGETS),
    "awac": Run(1000, FOLLOWED, OF_TARGETS),
    "edac": Run(1000, NO_ENTROPY, OF_ENTROPY),
    "bcq": Run(1000, deep_merge(FOLLOWED, SMALL_VAE), f"{OF_TARGETS}; {OF_VAE}"),
    "cql": Run(
        1000,
        deep_merge(NO_ENTROPY, {"learn": {"num_actions": 1, "min_q_weight": 0.0}}),
        f"{OF_ENTROPY}; it is pessimistic",
    ),
    "calql": Run(
        1000,
        deep_merge(NO_ENTROPY, {"learn": {"num_actions": 1, "min_q_weight": 0.0}}),
        f"{OF_ENTROPY}; it is pessimistic",
    ),
    "ppo": Run(8192),
    "ppg": Run(8192, PHASES, OF_PHASES),
    "trpo": Run(8192),
    "recurrent_ppo": Run(8192, OWN_UNITS, OF_UNITS),
    "ppo_offpolicy": Run(12_800),
    "ppg_offpolicy": Run(12_800, slow=True),
    "impala": Run(61_440),
    "acer": Run(40_960, FAST_ACER, OF_ACER),
    "a2c": Run(51_200),
    "pqn": Run(8192),
}
VALUES = {"by_default": BY_DEFAULT, "exact": EXACT}
