"""Compute with DI-engine what ``test_rl_errors`` compares with, and store it.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_errors.py tests/di_engine/ding_errors.safetensors

``inputs`` makes the arguments from a fixed seed; the file has the results, by the names of the functions. Everything is
in double precision.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

B, N, M, T, A, STEPS = 6, 4, 5, 4, 2, 3
GAMMA = 0.875


def inputs() -> dict[str, Any]:
    """Return the tensors from which all arguments are made."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def choose(*shape: int) -> Tensor:
        return torch.randint(0, N, shape, generator=generator)

    made: dict[str, Any] = {name: draw(B, N) for name in ("q", "next_q", "next_q_one", "logit", "logit_old")}
    made |= {name: draw(B) for name in ("v", "v_old", "adv", "return")}
    made |= {"small_q": 0.02 * draw(B, N), "expert": torch.tensor([1.0, 0, 1, 0, 0, 1], dtype=torch.float64)}
    made |= {name: choose(B) for name in ("action", "next_action")}
    made |= {"reward": draw(STEPS, B), "weight": draw(B).exp(), "value_gamma": draw(B).sigmoid()}
    made["done"] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    made |= {name: draw(B, 3, N) for name in ("branches", "next_branches")}
    made |= {name: choose(B, 3) for name in ("branch_action", "next_branch_action")}
    made |= {name: draw(B, N, M).softmax(-1) for name in ("dist", "next_dist")}
    made |= {name: draw(B, N, M) for name in ("quantiles", "next_quantiles")}
    made |= {"samples": draw(M, B, N), "next_samples": draw(M + 2, B, N), "levels": draw(M, B, 1).sigmoid()}
    made |= {"factor": draw(B, 1).exp(), "values": draw(T + 1, B), "rewards": draw(T, B), "weights": draw(T, B).exp()}
    for name in ("new", "old"):
        made[f"logits_{name}"] = draw(T, B, N)
        made[f"gaussian_{name}"] = {"mu": draw(T, B, A), "sigma": draw(T, B, A).exp()}
    made |= {"actions": choose(T, B), "acts": draw(T, B, A)}
    made |= {name: draw(T, B, 3, N) for name in ("team_logit", "team_q", "team_target_q")}
    made |= {"team_action": choose(T, B, 3), "team_weight": draw(T, B, 3).exp()}
    return made


def results(module: Any) -> dict[str, Tensor]:
    """Return what the functions of ``module``, DI-engine's or those here, give for ``inputs``."""
    x, found = inputs(), dict[str, Any]()
    ends, chosen = (x["done"], x["weight"]), (x["action"], x["next_action"])
    found["q_1step"] = module.q_1step_td_error(
        module.q_1step_td_data(x["q"], x["next_q"], *chosen, x["reward"][0], *ends), GAMMA
    )
    munchausen = module.m_q_1step_td_data(x["q"], x["small_q"], x["next_q"], x["action"], x["reward"][0], *ends)
    found["munchausen"] = module.m_q_1step_td_error(munchausen, GAMMA, 0.03, 0.9)
    found["q_v_1step"] = module.q_v_1step_td_error(
        module.q_v_1step_td_data(x["q"], x["v"], x["action"], x["reward"][0], *ends), GAMMA
    )
    q_data = module.q_nstep_td_data(x["q"], x["next_q"], *chosen, x["reward"], *ends)
    branches = (x["branches"], x["next_branches"], x["branch_action"], x["next_branch_action"])
    demos = (x["done"], x["weight"], x["next_q_one"], x["next_action"], x["expert"])
    dqfd = module.dqfd_nstep_td_data(x["q"], x["next_q"], *chosen, x["reward"], x["done"], *demos)
    for name, discount in (("power", None), ("given", x["value_gamma"])):
        found[f"rescale/{name}"] = module.q_nstep_td_error_with_rescale(q_data, GAMMA, STEPS, discount)
        found[f"soft/{name}"] = module.q_nstep_sql_td_error(q_data, GAMMA, 0.5, STEPS, value_gamma=discount)
        data = module.q_nstep_td_data(*branches, x["reward"], *ends)
        found[f"branches/{name}"] = module.bdq_nstep_td_error(data, GAMMA, STEPS, value_gamma=discount)
        weights = (1.0, 0.7, 0.8, 0.6, STEPS)
        found[f"dqfd/{name}"] = module.dqfd_nstep_td_error(dqfd, GAMMA, *weights, value_gamma=discount)
        scaled = module.dqfd_nstep_td_error_with_rescale(dqfd, GAMMA, *weights, value_gamma=discount)
        found[f"dqfd_rescale/{name}"] = scaled
        data = module.dist_nstep_td_data(x["dist"], x["next_dist"], *chosen, x["reward"], *ends)
        found[f"c51/{name}"] = module.dist_nstep_td_error(data, GAMMA, -2.0, 2.0, M, STEPS, discount)
        tau = ((torch.arange(M) + 0.5) / M).double().repeat(B, 1).unsqueeze(-1)
        quantiles = (x["quantiles"], x["next_quantiles"], *chosen, x["reward"], x["done"])
        data = module.qrdqn_nstep_td_data(*quantiles, tau, x["weight"])
        found[f"qrdqn/{name}"] = module.qrdqn_nstep_td_error(data, GAMMA, STEPS, discount)
        samples = (x["samples"], x["next_samples"], *chosen, x["reward"], x["done"], x["levels"], x["weight"])
        found[f"iqn/{name}"] = module.iqn_nstep_td_error(
            module.iqn_nstep_td_data(*samples), GAMMA, STEPS, 0.75, value_gamma=discount
        )
        fqf = tuple(one.transpose(1, 2) for one in quantiles[:2])
        data = module.fqf_nstep_td_data(*fqf, *quantiles[2:], x["levels"].squeeze(-1).T, x["weight"])
        found[f"fqf/{name}"] = module.fqf_nstep_td_error(data, GAMMA, STEPS, value_gamma=discount)
    one = (x["dist"], x["next_dist"], *chosen, x["reward"][0], x["done"], None)
    found["c51_1step"] = module.dist_1step_td_error(module.dist_1step_td_data(*one), GAMMA, -2.0, 2.0, M)
    values = (x["v"], x["v_old"], x["return"], x["weight"])
    found["ppg"] = module.ppg_joint_error(module.ppg_data(x["logit"], x["logit_old"], x["action"], *values))[0]
    rest = (x["v"], x["v_old"], x["adv"], x["return"], x["weight"], x["factor"])
    found["happo"] = module.happo_error(module.happo_data(x["logit"], x["logit_old"], x["action"], *rest))
    steps = (x["values"], x["rewards"], x["weights"])
    data = module.vtrace_data(x["logits_new"], x["logits_old"], x["actions"], *steps)
    found["vtrace"] = module.vtrace_error_discrete_action(data, GAMMA, 0.75, 1.0, 0.9, 1.1)
    data = module.vtrace_data(x["gaussian_new"], x["gaussian_old"], x["acts"], *steps)
    found["vtrace_continuous"] = module.vtrace_error_continuous_action(data, GAMMA, 0.75)
    team = (x["team_logit"], x["team_action"], x["team_q"], x["team_target_q"], x["rewards"], x["team_weight"])
    found["coma"] = module.coma_error(module.coma_data(*team), GAMMA, 0.75)
    for function in (module.value_transform, module.value_inv_transform, module.symlog, module.inv_symlog):
        found[function.__name__] = function(4 * x["q"])
    epsilon = [module.get_epsilon_greedy_fn(0.9, 0.1, 10, kind)(step) for kind in ("exp", "linear") for step in (3, 12)]
    found["epsilon"] = torch.tensor(epsilon)
    return {f"{name}{path}": value for name, part in found.items() for path, value in _flat(part)}


def _flat(part: Any, path: str = "") -> Any:
    if isinstance(part, tuple):
        for number, value in enumerate(part):
            yield from _flat(value, f"{path}/{number}")
    else:
        yield path, torch.as_tensor(part, dtype=torch.float64).detach().reshape(-1).contiguous()


if __name__ == "__main__":
    from ding import rl_utils
    from safetensors.torch import save_file

    torch.set_default_dtype(torch.float64)
    save_file(results(rl_utils), sys.argv[1])
