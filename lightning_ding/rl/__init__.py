"""The mathematics of reinforcement learning: pure functions on tensors, one file per idea."""

from lightning_ding.rl.exploration import Schedule, epsilon_greedy, random_actions
from lightning_ding.rl.returns import n_step_return
from lightning_ding.rl.target import copy_parameters, polyak_update
from lightning_ding.rl.td import double_q_target, masked, q_target, take_action_value, td_error, td_loss

__all__ = [
    "Schedule",
    "copy_parameters",
    "double_q_target",
    "epsilon_greedy",
    "masked",
    "n_step_return",
    "polyak_update",
    "q_target",
    "random_actions",
    "take_action_value",
    "td_error",
    "td_loss",
]
