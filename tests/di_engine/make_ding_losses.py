"""Compute losses of DI-engine on random numbers, and store them for ``test_same_losses``.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_losses.py tests/di_engine/ding_losses.safetensors

Names in the file: ``case/in/name`` and ``case/out/name``. Everything is in double precision.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

ROWS, ACTIONS, NSTEP, GAMMA = 7, 3, 2, 0.875
PREDICTED, TARGETS = 5, 4
Values = dict[str, Tensor]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(2 * rng.standard_normal(shape))


def transitions(rng: np.random.Generator, nstep: int = 1) -> Values:
    """Return the actions, rewards (nstep, B), ends and weights of a batch."""
    return {
        "action": torch.from_numpy(rng.integers(0, ACTIONS, ROWS)),
        "reward": normal(rng, nstep, ROWS),
        "done": torch.from_numpy(rng.random(ROWS) < 0.4).double(),
        "weight": torch.from_numpy(rng.uniform(0.2, 1, ROWS)),
        "value_gamma": torch.from_numpy(GAMMA ** rng.integers(1, nstep + 1, ROWS)),
    }


def mdqn(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import m_q_1step_td_data, m_q_1step_td_error

    given = transitions(rng) | {name: normal(rng, ROWS, ACTIONS) for name in ("q", "target_q", "next_q")}
    parts = (given[name] for name in ("q", "target_q", "next_q", "action"))
    data = m_q_1step_td_data(*parts, given["reward"][0], given["done"], given["weight"])
    loss, error, _, _ = m_q_1step_td_error(data, GAMMA, 0.3, 0.7)
    return given, {"loss": loss, "error": error}


def sql(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import q_nstep_sql_td_error, q_nstep_td_data

    given = transitions(rng, NSTEP) | {name: normal(rng, ROWS, ACTIONS) for name in ("q", "next_q")}
    parts = (given[name] for name in ("q", "next_q", "action", "action", "reward", "done", "weight"))
    gamma = given["value_gamma"]
    loss, error, _ = q_nstep_sql_td_error(q_nstep_td_data(*parts), GAMMA, 0.3, nstep=NSTEP, value_gamma=gamma)
    return given, {"loss": loss, "error": error}


def iqn(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import iqn_nstep_td_data, iqn_nstep_td_error

    given = transitions(rng, NSTEP)
    given |= {"q": normal(rng, PREDICTED, ROWS, ACTIONS), "next_q": normal(rng, TARGETS, ROWS, ACTIONS)}
    given |= {"next_action": torch.from_numpy(rng.integers(0, ACTIONS, ROWS))}
    given |= {"tau": torch.from_numpy(rng.random((PREDICTED * ROWS, 1)))}
    names = ("q", "next_q", "action", "next_action", "reward", "done", "tau", "weight")
    data = iqn_nstep_td_data(*(given[name] for name in names))
    gamma = given["value_gamma"]
    loss, error = iqn_nstep_td_error(data, GAMMA, nstep=NSTEP, kappa=0.7, value_gamma=gamma)
    return given, {"loss": loss, "error": error}


def fqf(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import fqf_calculate_fraction_loss, fqf_nstep_td_data, fqf_nstep_td_error

    given = transitions(rng, NSTEP)
    values = torch.sort(normal(rng, ROWS, 2 * PREDICTED - 1, ACTIONS), dim=1).values  # they increase with the level
    given |= {"q": values[:, ::2].contiguous(), "q_ends": values[:, 1::2].contiguous()}
    given |= {"next_q": normal(rng, ROWS, TARGETS, ACTIONS)}
    given |= {"next_action": torch.from_numpy(rng.integers(0, ACTIONS, ROWS))}
    size = torch.from_numpy(rng.uniform(0.1, 1, (ROWS, PREDICTED)))
    ends = torch.cat([torch.zeros(ROWS, 1), (size / size.sum(1, keepdim=True)).cumsum(1)], 1)
    given |= {"ends": ends, "tau": (ends[:, :-1] + ends[:, 1:]) / 2}
    names = ("q", "next_q", "action", "next_action", "reward", "done", "tau", "weight")
    data = fqf_nstep_td_data(*(given[name] for name in names))
    loss, error = fqf_nstep_td_error(data, GAMMA, nstep=NSTEP, kappa=1.0, value_gamma=given["value_gamma"])
    levels = ends.clone().requires_grad_()
    fraction = fqf_calculate_fraction_loss(given["q_ends"], given["q"].requires_grad_(), levels, given["action"])
    fraction.backward()
    return given, {"loss": loss, "error": error, "fraction_loss": fraction, "fraction_gradient": levels.grad}


class Tables(nn.Module):
    """An actor and two critics that look up the row of an observation."""

    def __init__(self, logit: Tensor, q: Tensor) -> None:
        super().__init__()
        self.actor, self.critic = nn.ParameterList([logit]), nn.ParameterList(list(q))

    def forward(self, obs: Tensor, mode: str) -> dict[str, Any]:
        row = obs.long().reshape(-1)
        return {"logit": self.actor[0][row]} if mode == "compute_actor" else {"q_value": [q[row] for q in self.critic]}


def discrete_sac(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.policy import DiscreteSACPolicy
    from easydict import EasyDict

    given = transitions(rng) | {"logit": normal(rng, 2 * ROWS, ACTIONS), "q": normal(rng, 2, 2 * ROWS, ACTIONS)}
    given |= {"target_q": normal(rng, 2, 2 * ROWS, ACTIONS)}
    config = EasyDict(DiscreteSACPolicy.default_config())
    config.priority = config.priority_IS_weight = True
    config.learn.discount_factor, config.learn.target_entropy = GAMMA, 0.6
    network = Tables(given["logit"].clone(), given["q"].clone())
    policy: Any = DiscreteSACPolicy(config, model=network, enable_field=["learn"])
    for critic, table in zip(policy._target_model._model.critic, given["target_q"], strict=True):
        critic.data.copy_(table)
    parts = {"critic_gradient": list(network.critic), "actor_gradient": list(network.actor)}
    parts |= {"alpha_gradient": [policy._log_alpha]}
    optimizers = (policy._optimizer_q, policy._optimizer_policy, policy._alpha_optim)
    gradients: Values = {}

    def note(name: str) -> None:
        gradients[name] = torch.stack([one.grad.clone() for one in parts[name]])

    rows = []
    for row in range(ROWS):
        one: dict[str, Any] = {"obs": torch.tensor([float(row)]), "next_obs": torch.tensor([float(row + ROWS)])}
        one |= {"action": given["action"][row], "reward": given["reward"][:, row], "done": bool(given["done"][row])}
        rows.append(one | {"logit": given["logit"][row], "IS": given["weight"][row]})
    with ExitStack() as stack:  # a step notes the gradients and changes nothing
        for name, optimizer in zip(parts, optimizers, strict=True):
            stack.enter_context(mock.patch.object(optimizer, "step", partial(note, name)))
        report = policy._forward_learn(rows)
    losses = {name: torch.tensor(report[name]) for name in ("policy_loss", "total_loss")}
    return given, losses | gradients


def dqfd(rng: np.random.Generator) -> tuple[Values, Values]:
    from ding.rl_utils import dqfd_nstep_td_data, dqfd_nstep_td_error

    names = ("q", "next_q", "next_q_1")
    given = transitions(rng, NSTEP) | {name: normal(rng, ROWS, ACTIONS) for name in names}
    given |= {name: torch.from_numpy(rng.integers(0, ACTIONS, ROWS)) for name in ("next_action", "next_action_1")}
    given |= {name: torch.from_numpy(rng.random(ROWS) < 0.5).double() for name in ("done_1", "is_expert")}
    order = ("q", "next_q", "action", "next_action", "reward", "done", "done_1", "weight", "next_q_1")
    parts = [given[name] for name in (*order, "next_action_1", "is_expert")]
    options = {"lambda_n_step_td": 0.6, "lambda_supervised_loss": 1.5, "margin_function": 0.8, "nstep": NSTEP}
    data = dqfd_nstep_td_data(*parts)
    loss, *_ = dqfd_nstep_td_error(data, GAMMA, **options, value_gamma=given["value_gamma"])
    return given | {"reward_1": given["reward"][0]}, {"loss": loss}


CASES = {"mdqn": mdqn, "sql": sql, "iqn": iqn, "fqf": fqf, "discrete_sac": discrete_sac, "dqfd": dqfd}


def main(path: str) -> None:
    """Compute all cases and write them to a file."""
    torch.set_default_dtype(torch.float64)
    values: Values = {}
    for number, (name, case) in enumerate(CASES.items()):
        given, found = case(np.random.default_rng(number))
        for side in (SimpleNamespace(name="in", values=given), SimpleNamespace(name="out", values=found)):
            for key, value in side.values.items():
                values[f"{name}/{side.name}/{key}"] = value.detach().clone().contiguous()
    save_file(values, path, metadata={"DI-engine": "0.5.3"})
    print(f"{len(values)} tensors of {len(CASES)} cases in {path}")


if __name__ == "__main__":
    main(sys.argv[1])
