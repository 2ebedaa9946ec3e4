"""Compute with DI-engine what ``test_rl_utils`` compares with, and store it.

Run it in an environment with DI-engine 0.5.3:

    python tests/di_engine/make_ding_rl_utils.py tests/di_engine/ding_rl_utils.safetensors

``inputs`` makes the arguments from a fixed seed; the file has the results, by the names of the functions. Everything is
in double precision.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

B, T, N, A, STEPS = 6, 5, 3, 2, 3
GAMMA, LAMBDA = 0.875, 0.9375  # exact in single precision


def inputs() -> dict[str, Tensor]:
    """Return the tensors from which all arguments are made."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    made = {name: draw(B) for name in ("v", "next_v", "v_old", "adv", "return")}
    made |= {name: draw(B, N) for name in ("q", "next_q", "logit", "logit_old")}
    made |= {name: draw(B, A) for name in ("mu", "mu_old", "act")}
    made |= {name: draw(B, A).exp() for name in ("sigma", "sigma_old")}
    made |= {"reward": draw(STEPS, B), "weight": draw(B).exp(), "value_gamma": draw(B).sigmoid()}
    made |= {name: torch.randint(0, N, (B,), generator=generator) for name in ("action", "next_action")}
    made["done"] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    made |= {name: draw(T, B) for name in ("values", "next_values", "rewards")}
    made |= {"dones": (draw(T, B) > 1).double(), "steps": draw(T, 1)}
    return made


def results(module: Any) -> dict[str, Tensor]:
    """Return what the functions of ``module``, DI-engine's or those here, give for ``inputs``."""
    x, found = inputs(), dict[str, Any]()
    for name, weight in (("plain", None), ("weighted", x["weight"])):
        data = (x["q"], x["next_q"], x["action"], x["next_action"], x["reward"], x["done"], weight)
        q_data = module.q_nstep_td_data(*data)
        found[f"q_nstep/{name}"] = module.q_nstep_td_error(q_data, GAMMA, nstep=STEPS)
        found[f"q_nstep_gamma/{name}"] = module.q_nstep_td_error(q_data, GAMMA, STEPS, value_gamma=x["value_gamma"])
        v_data = module.v_1step_td_data(x["v"], x["next_v"], x["reward"][0], x["done"], weight)
        found[f"v_1step/{name}"] = module.v_1step_td_error(v_data, GAMMA, torch.nn.SmoothL1Loss(reduction="none"))
        v_data = module.v_nstep_td_data(x["v"], x["next_v"], x["reward"], x["done"], weight, None)
        found[f"v_nstep/{name}"] = module.v_nstep_td_error(v_data, GAMMA, STEPS)
        rest = (x["v"], x["v_old"], x["adv"], x["return"], weight)
        data = module.ppo_data(x["logit"], x["logit_old"], x["action"], *rest)
        found[f"ppo/{name}"] = module.ppo_error(data)
        found[f"ppo_dual/{name}"] = module.ppo_error(data, 0.1, False, 1.5)
        gaussians = ({"mu": x["mu"], "sigma": x["sigma"]}, {"mu": x["mu_old"], "sigma": x["sigma_old"]})
        data = module.ppo_data_continuous(*gaussians, x["act"], *rest)
        found[f"ppo_continuous/{name}"] = module.ppo_error_continuous(data)
        values = (x["v"], x["adv"], x["return"], weight)
        found[f"a2c/{name}"] = module.a2c_error(module.a2c_data(x["logit"], x["action"], *values))
        found[f"a2c_continuous/{name}"] = module.a2c_error_continuous(module.a2c_data(gaussians[0], x["act"], *values))
    cum = (x["q"], x["next_q"], x["action"], x["next_action"], x["reward"][0], x["done"], x["weight"])
    found["q_cum"] = module.q_nstep_td_error(module.q_nstep_td_data(*cum), GAMMA, STEPS, cum_reward=True)
    sequences = (x["values"], x["next_values"].clone(), x["rewards"], x["dones"])
    found["gae"] = module.gae(module.gae_data(*sequences, None), GAMMA, LAMBDA)
    for done in (True, False):
        found[f"get_gae/{done}"] = _column(module.get_gae_with_default_last_value(_list(x), done, GAMMA, LAMBDA, False))
        for cum_reward in (True, False):
            rows = module.get_nstep_return_data(_list(x, done), STEPS, cum_reward, gamma=GAMMA)
            found[f"n_step/{done}/{cum_reward}"] = {
                name: torch.stack([torch.as_tensor(row[name], dtype=torch.float64) for row in rows])
                for name in ("reward", "next_obs", "done")
            }
            whole = [row["value_gamma"] for row in rows[: T - STEPS]]
            found[f"n_step/{done}/{cum_reward}/value_gamma"] = torch.tensor(whole, dtype=torch.float64)
    return dict(_flat(found))


def _list(x: Mapping[str, Tensor], done: bool = True) -> list[dict[str, Any]]:
    """Return the transitions of a sequence."""
    return [
        {"value": x["values"][step, :1], "reward": x["steps"][step], "done": done and step == T - 1}
        | {"obs": x["values"][step], "next_obs": x["values"][step + 1] if step < T - 1 else x["next_values"][step]}
        for step in range(T)
    ]


def _column(rows: list[dict[str, Any]]) -> Tensor:
    return torch.stack([row["adv"] for row in rows])


def _flat(values: Any, path: str = "") -> Any:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _flat(value, f"{path}/{name}" if path else name)
    elif isinstance(values, tuple):
        for number, value in enumerate(values):
            yield from _flat(value, f"{path}/{number}")
    else:
        yield path, torch.as_tensor(values, dtype=torch.float64).contiguous()


if __name__ == "__main__":
    from ding import rl_utils
    from safetensors.torch import save_file

    save_file(results(rl_utils), sys.argv[1])
