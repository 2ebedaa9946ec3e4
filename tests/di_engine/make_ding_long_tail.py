"""Compute losses of six of DI-engine's policies on random numbers, and store them for ``test_same_long_tail``.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_long_tail.py tests/di_engine/ding_long_tail.safetensors

Names in the file: ``case/in/name`` and ``case/out/name``. Everything is in double precision.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

ROWS, DIMENSIONS, ACTIONS, CRITICS, STEPS, GAMMA = 7, 3, 4, 5, 6, 0.875
Values = dict[str, Tensor]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(2 * rng.standard_normal(shape))


def ends(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.random(shape) < 0.3).double()


def bdq(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import bdq_nstep_td_error, q_nstep_td_data

    given = {name: normal(rng, ROWS, DIMENSIONS, ACTIONS) for name in ("q", "next_q", "online_next_q")}
    given |= {"action": torch.from_numpy(rng.integers(0, ACTIONS, (ROWS, DIMENSIONS)))}
    given |= {"reward": normal(rng, ROWS), "done": ends(rng, ROWS)}
    chosen = given["online_next_q"].argmax(-1)
    parts = (given["q"], given["next_q"], given["action"], chosen, given["reward"].unsqueeze(0), given["done"], None)
    loss, error = bdq_nstep_td_error(q_nstep_td_data(*parts), GAMMA, nstep=1)
    return given, {"loss": loss, "error": error}


def sqn(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.policy import SQNPolicy

    given = {name: normal(rng, 2, ROWS, ACTIONS) for name in ("q", "next_q")}
    given |= {"action": torch.from_numpy(rng.integers(0, ACTIONS, ROWS)), "reward": normal(rng, ROWS)}
    given |= {"done": ends(rng, ROWS), "log_alpha": torch.tensor([-0.7])}
    numbers = {"_log_alpha": given["log_alpha"], "_gamma": GAMMA, "_target_entropy": 0.4}
    data = {"q_value": given["q"], "target_q_value": given["next_q"], "action": given["action"]}
    data |= {"done": given["done"], "reward": given["reward"]}
    policy: Any = SimpleNamespace(**numbers)
    loss, alpha_loss, entropy = SQNPolicy.q_1step_td_loss(policy, data)
    return given, {"loss": loss, "alpha_loss": alpha_loss, "entropy": entropy}


def edac(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.policy import EDACPolicy
    from easydict import EasyDict

    model = {"obs_shape": 3, "action_shape": 2, "ensemble_num": CRITICS, "critic_head_hidden_size": 8}
    config = EasyDict(EDACPolicy.default_config())
    config.model = EasyDict({**model, "actor_head_hidden_size": 8, "twin_critic": False})
    config.model.activation = torch.nn.Tanh()
    config.learn.eta, config.learn.discount_factor, config.learn.auto_alpha = 0.6, GAMMA, False
    policy: Any = EDACPolicy(config, enable_field=["learn"])
    given = {"obs": normal(rng, ROWS, 3), "action": torch.from_numpy(rng.uniform(-1, 1, (ROWS, 2)))}
    given |= {"reward": normal(rng, ROWS)}
    critics = dict(policy._model.critic.named_parameters())
    given |= {f"critic.{number}": one.detach().clone() for number, one in enumerate(critics.values())}
    gradients: Values = {}

    def note(closure: Any = None) -> None:
        gradients.update({f"gradient.{number}": one.grad.clone() for number, one in enumerate(critics.values())})

    policy._optimizer_q.step = note
    rows = [
        {"obs": obs, "next_obs": obs, "action": action, "reward": reward, "done": True}
        for obs, action, reward in zip(given["obs"], given["action"], given["reward"], strict=True)
    ]
    report = policy._forward_learn(rows)
    return given, {"critic_loss": report["critic_loss"], **gradients}


def acer(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import acer_policy_error, acer_trust_region_update, acer_value_error, compute_q_retraces

    given = {"logit": normal(rng, STEPS + 1, ROWS, ACTIONS), "average_logit": normal(rng, STEPS + 1, ROWS, ACTIONS)}
    given |= {"behaviour_logit": normal(rng, STEPS, ROWS, ACTIONS), "q": normal(rng, STEPS + 1, ROWS, ACTIONS)}
    given |= {"action": torch.from_numpy(rng.integers(0, ACTIONS, (STEPS, ROWS))), "reward": normal(rng, STEPS, ROWS)}
    given |= {"done": ends(rng, STEPS, ROWS)}
    log_p = given["logit"].log_softmax(-1).requires_grad_()
    average = given["average_logit"].log_softmax(-1)
    with torch.no_grad():
        ratio = torch.exp(log_p[:-1] - given["behaviour_logit"].log_softmax(-1))
        value = (given["q"] * log_p.exp()).sum(-1, keepdim=True)
        weights = 1 - given["done"]
        retrace = compute_q_retraces(given["q"], value, given["reward"], given["action"], weights, ratio, GAMMA)
    parts = (given["q"][:-1], retrace[:-1], value[:-1], log_p[:-1], given["action"], ratio)
    policy_loss, correction = acer_policy_error(*parts, c_clip_ratio=2.0)
    critic_loss = acer_value_error(given["q"][:-1], retrace[:-1], given["action"])
    (gradient,) = torch.autograd.grad(-(policy_loss + correction).sum(), log_p)
    (limited,) = acer_trust_region_update([gradient[:-1]], log_p[:-1], average[:-1], 0.1)
    found = {"retrace": retrace, "critic_loss": critic_loss, "objective": policy_loss + correction}
    return given, found | {"gradient": -gradient[:-1], "limited": -limited}  # of the loss, in DI-engine


class JointVAE(torch.nn.Module):
    """An auto-encoder with the interface of DI-engine's, whose layers get observations and actions side by side."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        super().__init__()
        hidden, latent = 8, 2 * action_size
        self.encode = torch.nn.ModuleList(
            [torch.nn.Linear(obs_size + action_size, hidden), torch.nn.Linear(hidden, 2 * latent)]
        )
        self.decode = torch.nn.ModuleList(
            [torch.nn.Linear(obs_size + latent, hidden), torch.nn.Linear(hidden, action_size)]
        )

    def decode_with_obs(self, z: Tensor, obs: Tensor) -> Values:
        first, last = self.decode
        return {"reconstruction_action": last(first(torch.cat([obs, z], -1)).relu()).tanh()}

    def forward(self, data: Values) -> Values:
        first, last = self.encode
        mu, log_sigma = last(first(torch.cat([data["obs"], data["action"]], -1)).relu()).chunk(2, -1)
        z = mu + log_sigma.exp() * torch.randn(mu.shape)
        found = self.decode_with_obs(z, data["obs"])["reconstruction_action"]
        return {"recons_action": found, "mu": mu, "log_var": 2 * log_sigma}


def rows_of(given: Values) -> list[Any]:
    """Return a minibatch as DI-engine's policies take it."""
    names = ("obs", "next_obs", "action", "reward", "done")
    return [dict(zip(names, row, strict=True)) for row in zip(*(given[name] for name in names), strict=True)]


def bcq(rng: np.random.Generator) -> tuple[Values, Values]:
    """Make two updates; the auto-encoder is ours, all else is DI-engine's, whose actor has one output.

    DI-engine takes the squared error of each value and the targets of all rows, because their shapes are (B,) and
    (B, 1); here the targets get the shape (B,).
    """
    import ding.policy.bcq as module
    from ding.policy import BCQPolicy
    from easydict import EasyDict

    data_class = module.v_1step_td_data
    module.v_1step_td_data = lambda v, next_v, *rest: data_class(v, next_v.squeeze(1), *rest)
    config = EasyDict(BCQPolicy.default_config())
    sizes = {"actor_head_hidden_size": [8], "critic_head_hidden_size": [8], "phi": 0.3}
    config.model = EasyDict({"obs_shape": 3, "action_shape": 1, **sizes, "vae_hidden_dims": [8, 8]})
    config.learn.discount_factor = GAMMA
    policy: Any = BCQPolicy(config, enable_field=["learn"])
    policy._model.vae = JointVAE(3, 1)
    policy._init_learn()
    given = {"obs": normal(rng, ROWS, 3), "next_obs": normal(rng, ROWS, 3), "reward": normal(rng, ROWS)}
    given |= {"action": torch.from_numpy(rng.uniform(-1, 1, (ROWS, 1))), "done": ends(rng, ROWS)}
    given |= {f"model.{name}": one.detach().clone() for name, one in policy._model.named_parameters()}
    drawn: list[Tensor] = []
    randn = torch.randn
    torch.randn = lambda *shape: drawn.append(randn(*shape)) or drawn[-1]  # type: ignore[assignment,func-returns-value]
    reports = [policy._forward_learn(rows_of(given)) for _ in range(2)]
    torch.randn = randn
    given |= {f"drawn.{number}": one for number, one in enumerate(drawn)}
    names = ("recons_loss", "kld_loss", "vae_loss", "critic_loss", "twin_critic_loss", "actor_loss")
    found = {f"{name}.{i}": torch.as_tensor(one[name]) for i, one in enumerate(reports) for name in names}
    return given, found | {f"model.{name}": one for name, one in policy._model.named_parameters()}


def pdqn(rng: np.random.Generator) -> tuple[Values, Values]:
    """Make eleven updates: the first of both parts, then 3 of the critic, 5 of the actor, and 2 of the critic."""
    from ding.policy import PDQNPolicy
    from easydict import EasyDict

    config = EasyDict(PDQNPolicy.default_config())
    shape = {"action_type_shape": ACTIONS, "action_args_shape": 2}
    config.model = EasyDict(
        {"obs_shape": 3, "action_shape": shape, "encoder_hidden_size_list": [8, 8], "dueling": False}
    )
    rates = {"learning_rate_dis": 1e-2, "learning_rate_cont": 1e-2}
    config.learn.update({**rates, "update_circle": 10, "target_theta": 0.1})
    config.discount_factor = GAMMA
    policy: Any = PDQNPolicy(config, enable_field=["learn"])
    given = {"obs": normal(rng, ROWS, 3), "next_obs": normal(rng, ROWS, 3), "reward": normal(rng, ROWS)}
    given |= {"args": torch.from_numpy(rng.uniform(-1, 1, (ROWS, 2))), "done": ends(rng, ROWS)}
    given |= {"type": torch.from_numpy(rng.integers(0, ACTIONS, ROWS))}
    given |= {f"model.{name}": one.detach().clone() for name, one in policy._model.named_parameters()}
    action = [{"action_type": k, "action_args": x} for k, x in zip(given["type"], given["args"], strict=True)]
    data: dict[str, Any] = {**given, "action": action, "reward": given["reward"].unsqueeze(1)}
    reports = [policy._forward_learn(rows_of(data)) for _ in range(11)]
    found = {name: torch.tensor([one[name] for one in reports]) for name in ("q_loss", "continuous_loss")}
    return given, found | {f"model.{name}": one for name, one in policy._model.named_parameters()}


CASES = {"bdq": bdq, "sqn": sqn, "edac": edac, "acer": acer, "bcq": bcq, "pdqn": pdqn}


def main(path: str) -> None:
    """Compute all cases and write them to a file."""
    torch.set_default_dtype(torch.float64)
    values: Values = {}
    for number, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(number)
        given, found = case(np.random.default_rng(number))
        for side, tensors in (("in", given), ("out", found)):
            values |= {f"{name}/{side}/{key}": one.detach().clone().contiguous() for key, one in tensors.items()}
    save_file(values, path, metadata={"DI-engine": "0.5.3"})
    print(f"{len(values)} tensors of {len(CASES)} cases in {path}")


if __name__ == "__main__":
    main(sys.argv[1])
