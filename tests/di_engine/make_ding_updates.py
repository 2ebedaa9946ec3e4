"""Compute updates of DI-engine's policies with small networks, and store them for ``test_same_updates``.

Run it from the root of the repository in an environment with DI-engine 0.5.3:

    python -m tests.di_engine.make_ding_updates tests/di_engine/ding_updates.safetensors

IQL is not in that release: its case needs ``ding/policy/iql.py`` of commit d0b21d065 in the package. A step of an
optimizer notes the gradients and changes nothing, so that all losses are those of the first weights. DI-engine's
random numbers are replaced. Names in the file: ``case/model/parameter``, ``case/target/parameter``, ``case/in/name``
and ``case/out/name``. Everything is in double precision.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.di_engine import tiny_networks as tiny
from tests.di_engine.tiny_networks import TinyLogits, TinyQAC, TinyQuantiles, TinyVAC

ROWS, NSTEP, GAMMA, SAMPLES = 6, 3, 0.875, 4
Values = dict[str, Tensor]
_QAC: dict[str, Any] = {"discount_factor": GAMMA, "ignore_done": False}
_ATOMS = {"v_min": tiny.V_MIN, "v_max": tiny.V_MAX, "n_atom": tiny.ATOMS}
_CQL: dict[str, Any] = {**_QAC, "num_actions": SAMPLES, "min_q_weight": 1.5, "alpha": 0.2, "auto_alpha": False}
_PRIORITY = {"priority": True, "priority_IS_weight": True}
_TD3 = {**_QAC, "noise": False, "noise_sigma": 0.2, "noise_range": {"min": -0.5, "max": 0.5}, "actor_update_freq": 1}
"""With ``noise``, DI-engine's TD3+BC smooths the action of the target twice, once in a wrapper of the network."""
_PPO: dict[str, Any] = {
    "learn": {"ppo_param_init": False, "value_norm": False, "entropy_weight": 0.01},
    "collect": {"discount_factor": GAMMA},
}
_NSTEP = {"nstep_return": True, "nstep": NSTEP}
_CLONE = {"learn": {"ce_label_smooth": False, "tanh_mask": False, "show_accuracy": False}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "d4pg": ("d4pg.D4PGPolicy", {"learn": _QAC, "nstep": NSTEP, "model": _ATOMS, **_PRIORITY}),
    "td3_bc": ("td3_bc.TD3BCPolicy", {"learn": {**_TD3, "alpha": 2.5}, "model": {"twin_critic": True}}),
    "cql": ("cql.CQLPolicy", {"learn": _CQL, "model": {"twin_critic": True}}),
    "cql_entropy": ("cql.CQLPolicy", {"learn": {**_CQL, "with_q_entropy": True}, "model": {"twin_critic": True}}),
    "cql_lagrange": (
        "cql.CQLPolicy",
        {"learn": {**_CQL, "with_lagrange": True, "lagrange_thresh": 3.0}, "model": {"twin_critic": True}},
    ),
    "discrete_cql": (
        "cql.DiscreteCQLPolicy",
        {
            "nstep": NSTEP,
            "discount_factor": GAMMA,
            "learn": {"min_q_weight": 1.5},
            "model": {"action_shape": tiny.ACTIONS},
        },
    ),
    "iql": ("iql.IQLPolicy", {"learn": {**_QAC, "tau": 0.7, "beta": 1.0}, "model": {"twin_critic": True}}),
    "bc": ("bc.BehaviourCloningPolicy", {**_CLONE, "continuous": False}),
    "bc_mse": ("bc.BehaviourCloningPolicy", {**_CLONE, "continuous": True, "loss_type": "mse_loss"}),
    "bc_l1": ("bc.BehaviourCloningPolicy", {**_CLONE, "continuous": True, "loss_type": "l1_loss"}),
    "ppo_offpolicy": ("ppo.PPOOffPolicy", {**_PPO, "action_space": "discrete"}),
    "ppo_offpolicy_continuous": ("ppo.PPOOffPolicy", {**_PPO, "action_space": "continuous"}),
    "ppo_offpolicy_nstep": ("ppo.PPOOffPolicy", {**_PPO, **_NSTEP, "action_space": "discrete"}),
    "ppo_offpolicy_nstep_continuous": ("ppo.PPOOffPolicy", {**_PPO, **_NSTEP, "action_space": "continuous"}),
}
"""Class of each policy below ``ding.policy``, and what its config changes of DI-engine's defaults."""
OPTIMIZERS = ("_optimizer", "_optimizer_critic", "_optimizer_actor", "_optimizer_q", "_optimizer_policy")
DISCRETE = ("discrete_cql", "bc", "ppo_offpolicy", "ppo_offpolicy_nstep")


def network(case: str, is_theirs: bool) -> nn.Module:
    """Return the network of a case, for DI-engine or for this project."""
    if case.startswith("bc"):
        return TinyLogits(is_continuous=case != "bc")
    if case.startswith("ppo"):
        return TinyVAC(is_continuous=case not in DISCRETE)
    if case == "discrete_cql":
        return TinyQuantiles(is_theirs)
    if case == "d4pg":
        return TinyQAC("action", number=1, has_atoms=True)
    return TinyQAC("action" if case == "td3_bc" else "gaussian", with_value=case == "iql")


def batch(case: str, config: Mapping[str, Any], rng: np.random.Generator) -> Values:
    """Return the columns of a minibatch; some episodes end, and some end before n steps."""
    nstep = config.get("nstep", 1)
    taken = torch.from_numpy(rng.integers(1, nstep + 1, ROWS))
    reward = torch.from_numpy(rng.standard_normal((ROWS, nstep)))
    action = rng.integers(0, tiny.ACTIONS, ROWS) if case in DISCRETE else rng.uniform(-1, 1, (ROWS, tiny.DIMENSIONS))
    columns = {name: torch.from_numpy(rng.standard_normal((ROWS, tiny.OBS))) for name in ("obs", "next_obs")}
    columns |= {"action": torch.from_numpy(action), "done": torch.from_numpy(rng.random(ROWS) < 0.4)}
    columns["reward"] = torch.where(torch.arange(nstep) < taken[:, None], reward, 0.0)
    columns |= {"value_gamma": GAMMA**taken} if nstep > 1 else {}
    columns |= acted(case, rng) if case.startswith("ppo") else {}
    return columns | ({"IS": torch.from_numpy(rng.uniform(0.2, 1, ROWS))} if config.get("priority") else {})


def acted(case: str, rng: np.random.Generator) -> Values:
    """Return advantages, and what the policy that acted computed; names in a dict are joined by a dot."""
    columns = {name: torch.from_numpy(rng.standard_normal(ROWS)) for name in ("adv", "value")}
    if case in DISCRETE:
        return {**columns, "logit": torch.from_numpy(rng.standard_normal((ROWS, tiny.ACTIONS)))}
    shape = (ROWS, tiny.DIMENSIONS)
    columns["logit.mu"] = torch.from_numpy(rng.standard_normal(shape))
    return {**columns, "logit.sigma": torch.from_numpy(rng.uniform(0.5, 2, shape))}


def rows_of(columns: Values) -> list[dict[str, Any]]:
    """Return the minibatch as a list of dicts, in the shapes of DI-engine's collectors."""
    rows: list[dict[str, Any]] = [{name: column[row] for name, column in columns.items()} for row in range(ROWS)]
    if "logit.mu" in columns:
        rows = [{**row, "logit": {name: row[f"logit.{name}"] for name in ("mu", "sigma")}} for row in rows]
    single = "value_gamma" not in columns
    return [{**row, "done": bool(row["done"]), "reward": row["reward"][0] if single else row["reward"]} for row in rows]


@contextmanager
def given_noise(case: str, rng: np.random.Generator) -> Iterator[Values]:
    """Replace DI-engine's random numbers by those that are yielded."""

    def draw(number: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((number, tiny.DIMENSIONS)))

    many = ROWS * SAMPLES
    noise = {"next_noise": draw(ROWS), "gap_noise": draw(many), "next_gap_noise": draw(many), "noise": draw(ROWS)}
    torch.manual_seed(0)
    noise["uniform_noise"] = torch.FloatTensor(many, tiny.DIMENSIONS).uniform_(-1, 1)
    torch.manual_seed(0)
    with (
        mock.patch("torch.distributions.normal._standard_normal", side_effect=list(noise.values())),
        mock.patch("torch.randn_like", side_effect=lambda x: noise["next_noise"].clone()),
        mock.patch("ding.policy.ppo.to_dtype", side_effect=lambda x, _: x),  # PPO rounds to single precision
    ):
        yield noise if case.startswith("cql") else {"next_noise": noise["next_noise"]} if case == "td3_bc" else {}


def case_values(case: str, rng: np.random.Generator) -> Values:
    """Return weights, minibatch, noise, losses and gradients of a case."""
    from ding.utils import deep_merge_dicts
    from easydict import EasyDict

    path, changes = CASES[case]
    module, _, name = path.partition(".")
    policy_class = getattr(importlib.import_module(f"ding.policy.{module}"), name)
    model = network(case, is_theirs=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-1, 1, tuple(parameter.shape))))
    with ExitStack() as stack:  # CQL and IQL draw the last layers of DI-engine's own networks
        for head in ("actor_head", "critic_head", "critic_q_head", "critic_v_head"):
            stack.enter_context(mock.patch.object(TinyQAC, head, mock.MagicMock(), create=True))
        if case == "cql_lagrange":  # CQL reads the attribute before it sets it, and fails
            stack.enter_context(mock.patch.object(policy_class, "_lagrange_thresh", 3.0, create=True))
        policy = policy_class(EasyDict(deep_merge_dicts(policy_class.default_config(), changes)), model, ["learn"])
    values = {f"model/{key}": value.clone() for key, value in model.state_dict().items()}
    target = getattr(policy, "_target_model", None)
    if target is not None:
        for parameter in target.parameters():
            parameter.data.mul_(0.5)
        values |= {f"target/{key.removeprefix('_model.')}": one.clone() for key, one in target.state_dict().items()}
    gradients = watch(policy, model)
    columns = batch(case, changes, rng)
    with given_noise(case, rng) as noise:
        report = policy._forward_learn(rows_of(columns))
    losses = {key: torch.as_tensor(one) for key, one in report.items() if key.endswith("_loss") or key == "priority"}
    values |= {f"in/{key}": one for key, one in {**columns, **noise}.items()}
    return values | {f"out/{key}": one for key, one in {**losses, **gradients}.items()}


def watch(policy: Any, model: nn.Module) -> Values:
    """Return a dict that gets the gradients when an optimizer steps, which then changes nothing."""
    gradients: Values = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizers = [getattr(policy, name) for name in OPTIMIZERS if hasattr(policy, name)]
    if hasattr(policy, "alpha_prime_optimizer"):
        optimizers.append(policy.alpha_prime_optimizer)
    for optimizer in optimizers:

        def step(optimizer: Any = optimizer) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradients[f"gradient.{names.get(id(parameter), 'log_multiplier')}"] = parameter.grad.clone()

        optimizer.step = step
    return gradients


def functions(rng: np.random.Generator) -> Values:
    """Return inputs and results of functions that need no policy."""
    from ding.rl_utils import q_nstep_td_data, q_nstep_td_error_with_rescale
    from ding.torch_utils.loss import LabelSmoothCELoss

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(20 * rng.standard_normal(shape))

    given = {"q": normal(ROWS, 3), "next_q": normal(ROWS, 3), "reward": normal(NSTEP, ROWS), "logit": normal(ROWS, 2)}
    given |= {name: torch.from_numpy(rng.integers(0, 3, ROWS)) for name in ("action", "next_action")}
    given |= {"done": torch.from_numpy(rng.random(ROWS) < 0.4), "weight": torch.from_numpy(rng.uniform(0.2, 1, ROWS))}
    given["label"] = torch.from_numpy(rng.integers(0, 2, ROWS))
    names = ("q", "next_q", "action", "next_action", "reward", "done", "weight")
    parts = [given[name].double() if name == "done" else given[name] for name in names]
    loss, error = q_nstep_td_error_with_rescale(q_nstep_td_data(*parts), GAMMA, NSTEP)
    smoothed = LabelSmoothCELoss(0.1)(given["logit"], given["label"])
    out = {"r2d2_loss": loss, "r2d2_error": error, "smoothed_loss": smoothed}
    return {f"in/{key}": one for key, one in given.items()} | {f"out/{key}": one for key, one in out.items()}


def main(path: str) -> None:
    """Compute all cases and write them to a file."""
    torch.set_default_dtype(torch.float64)
    values = {f"functions/{key}": one for key, one in functions(np.random.default_rng(99)).items()}
    for number, case in enumerate(CASES):
        found = case_values(case, np.random.default_rng(number))
        values |= {f"{case}/{key}": one for key, one in found.items()}
    stored = {key: one.detach().clone().contiguous() for key, one in values.items()}
    save_file(stored, path, metadata={"DI-engine": "0.5.3"})
    print(f"{len(stored)} tensors of {len(CASES) + 1} cases in {path}")


if __name__ == "__main__":
    main(sys.argv[1])
