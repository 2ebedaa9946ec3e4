"""The mathematics of reinforcement learning: pure functions on tensors, one file per idea."""

from lightning_ding.rl.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    HybridDistribution,
    MultiCategorical,
    distribution_of,
)
from lightning_ding.rl.exploration import Schedule, epsilon_greedy, random_actions
from lightning_ding.rl.gae import gae
from lightning_ding.rl.ppo import PPOPolicyLoss, approx_kl, ppo_policy_loss, ppo_value_loss, standardise
from lightning_ding.rl.returns import discounted_return, n_step_return
from lightning_ding.rl.running import RunningMeanStd, combine_moments, moments
from lightning_ding.rl.sequences import Sequences, time_major
from lightning_ding.rl.target import copy_parameters, polyak_update
from lightning_ding.rl.td import double_q_target, masked, q_target, take_action_value, td_error, td_loss

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "HybridDistribution",
    "MultiCategorical",
    "PPOPolicyLoss",
    "RunningMeanStd",
    "Schedule",
    "Sequences",
    "approx_kl",
    "combine_moments",
    "copy_parameters",
    "discounted_return",
    "distribution_of",
    "double_q_target",
    "epsilon_greedy",
    "gae",
    "masked",
    "moments",
    "n_step_return",
    "polyak_update",
    "ppo_policy_loss",
    "ppo_value_loss",
    "q_target",
    "random_actions",
    "standardise",
    "take_action_value",
    "td_error",
    "td_loss",
    "time_major",
]
