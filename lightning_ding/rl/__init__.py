"""The mathematics of reinforcement learning: pure functions on tensors, one file per idea."""

from lightning_ding.rl.actor_critic import (
    critic_error,
    critic_loss,
    pessimistic_target,
    smoothed_action,
    soft_actor_loss,
    soft_target,
    straight_through,
    temperature_loss,
)
from lightning_ding.rl.distributional import (
    categorical_projection,
    cross_entropy,
    mean_return,
    quantile_huber,
    quantile_target,
    share_beyond_support,
    take_action_distribution,
    weighted_mean,
)
from lightning_ding.rl.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    HybridDistribution,
    MultiCategorical,
    distribution_of,
)
from lightning_ding.rl.exploration import discrete_counts, epsilon_greedy, random_actions, random_legal_actions
from lightning_ding.rl.gae import gae
from lightning_ding.rl.noise import OrnsteinUhlenbeckNoise, gaussian_noise
from lightning_ding.rl.policy_gradient import policy_gradient_loss
from lightning_ding.rl.ppo import PPOPolicyLoss, approx_kl, ppo_policy_loss, ppo_value_loss, standardise
from lightning_ding.rl.returns import discounted_return, n_step_return
from lightning_ding.rl.running import RunningMeanStd, combine_moments, moments
from lightning_ding.rl.schedule import Schedule
from lightning_ding.rl.sequences import Sequences, time_major
from lightning_ding.rl.squashed_gaussian import squashed_gaussian_log_prob, squashed_gaussian_sample
from lightning_ding.rl.target import copy_parameters, polyak_update
from lightning_ding.rl.td import double_q_target, masked, q_target, take_action_value, td_error, td_loss

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "HybridDistribution",
    "MultiCategorical",
    "OrnsteinUhlenbeckNoise",
    "PPOPolicyLoss",
    "RunningMeanStd",
    "Schedule",
    "Sequences",
    "approx_kl",
    "categorical_projection",
    "combine_moments",
    "copy_parameters",
    "critic_error",
    "critic_loss",
    "cross_entropy",
    "discounted_return",
    "discrete_counts",
    "distribution_of",
    "double_q_target",
    "epsilon_greedy",
    "gae",
    "gaussian_noise",
    "masked",
    "mean_return",
    "moments",
    "n_step_return",
    "pessimistic_target",
    "policy_gradient_loss",
    "polyak_update",
    "ppo_policy_loss",
    "ppo_value_loss",
    "q_target",
    "quantile_huber",
    "quantile_target",
    "random_actions",
    "random_legal_actions",
    "share_beyond_support",
    "smoothed_action",
    "soft_actor_loss",
    "soft_target",
    "squashed_gaussian_log_prob",
    "squashed_gaussian_sample",
    "standardise",
    "straight_through",
    "take_action_distribution",
    "take_action_value",
    "td_error",
    "td_loss",
    "temperature_loss",
    "time_major",
    "weighted_mean",
]
