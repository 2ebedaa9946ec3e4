"""Compute with DI-engine what ``test_same_numbers`` and ``test_checkpoint`` compare with, and store it.

Run it in an environment with DI-engine 0.5.3, dizoo is not needed:

    python tests/di_engine/make_ding_values.py tests/di_engine/ding_values.safetensors

For each case it builds DI-engine's policy with a small network and weights drawn from a fixed seed, and stores the
network's output for fixed observations. Where the case has a batch, the policy then learns from it in two steps, and
the losses and the gradients before each step of an optimizer are stored. Everything is in double precision, so that
rounding hides no difference. Of DI-engine, only its random numbers and PPO's conversion to single precision are
replaced.

Names in the file: ``case/model/001.parameter``, ``case/target/...``, ``case/batch/...``, ``case/noise/...``,
``case/output/...``, ``case/learn0/loss/...``, ``case/learn0/gradient0/...`` (of the first optimizer that steps), and so
on. The numbers keep the order.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

ROWS, OUTPUT_ROWS, LEARN_STEPS = 8, 2, 2
GAMMA, GAE_LAMBDA = 0.875, 0.9375  # exact in single precision, in which DI-engine multiplies them with 1 - done
VECTOR, DISCRETE, CONTINUOUS = 4, 3, 2
OPTIMIZERS = (
    "_optimizer",
    "_optimizer_critic",
    "_optimizer_actor",
    "_optimizer_q",
    "_optimizer_policy",
    "_alpha_optim",
)

Config = dict[str, Any]
Values = dict[str, Tensor]
_MLP: Config = {"obs_shape": VECTOR, "encoder_hidden_size_list": [8, 6]}
_IMAGE: Config = {"obs_shape": [2, 36, 36], "encoder_hidden_size_list": [3, 4, 3, 6]}
_Q: Config = {"model": {**_MLP, "action_shape": DISCRETE}, "discount_factor": GAMMA, "learn": {"target_update_freq": 1}}
_PRIORITY = {"priority": True, "priority_IS_weight": True}
_VAC: Config = {
    "encoder_hidden_size_list": [8, 6],
    "obs_shape": VECTOR,
    "actor_head_hidden_size": 6,
    "critic_head_hidden_size": 6,
}
_DISCRETE: Config = {"action_space": "discrete", "action_shape": DISCRETE}
_CONTINUOUS: Config = {"action_space": "continuous", "action_shape": CONTINUOUS}
_HYBRID: Config = {
    "action_space": "hybrid",
    "action_shape": {"action_type_shape": DISCRETE, "action_args_shape": CONTINUOUS},
}
_HEADS = {
    f"{head}_head_{name}": size
    for head in ("actor", "critic")
    for name, size in {"hidden_size": 6, "layer_num": 1}.items()
}
_QAC: Config = {"obs_shape": VECTOR, "action_shape": CONTINUOUS, **_HEADS}
_PPO_LEARN: Config = {"epoch_per_collect": 2, "batch_size": ROWS, "value_norm": False, "ppo_param_init": False}
_PPO_LEARN |= {"entropy_weight": 0.01, "grad_clip_type": None}
_PPO: Config = {
    "recompute_adv": True,
    "learn": _PPO_LEARN,
    "collect": {"n_sample": ROWS, "discount_factor": GAMMA, "gae_lambda": GAE_LAMBDA},
}
_A2C: Config = {"learn": {"batch_size": ROWS, "adv_norm": True, "learning_rate": 0.01}}
_DDPG: Config = {"learn": {"discount_factor": GAMMA, "target_theta": 0.1}}

CASES: dict[str, tuple[str, Config]] = {
    "dqn": ("dqn.DQNPolicy", {**_Q, **_PRIORITY, "nstep": 3}),
    "dqn_plain": ("dqn.DQNPolicy", {**_Q, "nstep": 1, "model": {**_MLP, "action_shape": DISCRETE, "dueling": False}}),
    "dqn_image": ("dqn.DQNPolicy", {**_Q, "model": {**_IMAGE, "action_shape": DISCRETE}}),
    "dqn_norm": ("dqn.DQNPolicy", {**_Q, "model": {**_MLP, "action_shape": DISCRETE, "norm_type": "LN"}}),
    "dqn_multi": ("dqn.DQNPolicy", {**_Q, "model": {**_MLP, "action_shape": [2, 3]}}),
    "c51": ("c51.C51Policy", {**_Q, "nstep": 2, "model": {**_Q["model"], "v_min": -3, "v_max": 3, "n_atom": 11}}),
    "qrdqn": ("qrdqn.QRDQNPolicy", {**_Q, "nstep": 2, "model": {**_Q["model"], "num_quantiles": 7}}),
    "rainbow": (
        "rainbow.RainbowDQNPolicy",
        {**_Q, **_PRIORITY, "nstep": 3, "model": {**_Q["model"], "v_min": -3, "v_max": 3, "n_atom": 11}},
    ),
    "ppo": ("ppo.PPOPolicy", {**_PPO, "action_space": "discrete", "model": {**_VAC, **_DISCRETE}}),
    "ppo_continuous": ("ppo.PPOPolicy", {**_PPO, "action_space": "continuous", "model": {**_VAC, **_CONTINUOUS}}),
    "ppo_conditioned": (
        "ppo.PPOPolicy",
        {
            **_PPO,
            "action_space": "continuous",
            "model": {**_VAC, **_CONTINUOUS, "sigma_type": "conditioned", "bound_type": "tanh"},
        },
    ),
    "ppo_multi": (
        "ppo.PPOPolicy",
        {**_PPO, "action_space": "discrete", "model": {**_VAC, "action_space": "discrete", "action_shape": [2, 3]}},
    ),
    "ppo_hybrid": ("ppo.PPOPolicy", {**_PPO, "action_space": "hybrid", "model": {**_VAC, **_HYBRID}}),
    "ppo_image": ("ppo.PPOPolicy", {**_PPO, "action_space": "discrete", "model": {**_VAC, **_IMAGE, **_DISCRETE}}),
    "a2c": ("a2c.A2CPolicy", {**_A2C, "action_space": "discrete", "model": {**_VAC, **_DISCRETE}}),
    "a2c_continuous": (
        "a2c.A2CPolicy",
        {**_A2C, "action_space": "continuous", "model": {**_VAC, **_CONTINUOUS, "share_encoder": False}},
    ),
    "pg": ("pg.PGPolicy", {"model": {**_MLP, "action_shape": DISCRETE, "action_space": "discrete"}}),
    "pg_continuous": ("pg.PGPolicy", {"model": {**_MLP, **_CONTINUOUS}}),
    "ddpg": ("ddpg.DDPGPolicy", {**_DDPG, "model": {**_QAC, "action_space": "regression", "twin_critic": False}}),
    "td3": ("td3.TD3Policy", {**_DDPG, "model": {**_QAC, "action_space": "regression"}}),
    "sac": ("sac.SACPolicy", {**_DDPG, "model": {**_QAC, "twin_critic": True}}),
    "sac_image": (
        "sac.SACPolicy",
        {
            **_DDPG,
            "model": {**_QAC, "obs_shape": [2, 12, 12], "encoder_hidden_size_list": [3, 4, 5], "share_encoder": True},
        },
    ),
}
"""Class of each policy below ``ding.policy``, and what its config changes of DI-engine's defaults."""
LEARNING = {"dqn", "dqn_plain", "c51", "qrdqn", "rainbow", "ddpg", "td3", "sac"}
LEARNING |= {"ppo", "ppo_continuous", "a2c", "a2c_continuous"}
SAC_ALPHA = {"alpha": 0.2, "auto_alpha": True, "log_space": True}


def main(path: str) -> None:
    """Compute all cases and write them to a file."""
    torch.set_default_dtype(torch.float64)
    importlib.import_module("ding.policy.ppo").__dict__["to_dtype"] = lambda data, dtype: data
    values: Values = {}
    for number, (name, (policy_class, config)) in enumerate(CASES.items()):
        found = case_values(name, policy_class, config, np.random.default_rng(number))
        for place, (key, value) in enumerate(found.items()):
            group, _, last = key.rpartition("/")
            values[f"{name}/{group}/{place:03d}.{last}"] = value.detach().clone().contiguous()
    save_file(values, path, metadata={"DI-engine": "0.5.3"})
    print(f"{len(values)} tensors of {len(CASES)} cases in {path}")


def case_values(name: str, policy_class: str, config: Config, rng: np.random.Generator) -> Values:
    """Return the weights, the outputs, and where the case learns its batch, losses and gradients."""
    policy = make_policy(policy_class, config)
    target = getattr(policy, "_target_model", None)
    scale = 0.3 if name.startswith("sac") else 0.6
    for network in (policy._model, target):
        if network is not None:
            draw_weights(network, scale, rng)
    values = {f"model/{key}": tensor for key, tensor in policy._model.state_dict().items()}
    if target is not None and name in LEARNING:
        values |= {f"target/{key}": tensor for key, tensor in target.state_dict().items()}
    values = {key: tensor.clone() for key, tensor in values.items()}
    values |= outputs(policy._model, config["model"], rng)
    return values | learn(name, policy, config, rng) if name in LEARNING else values


def make_policy(policy_class: str, config: Config) -> Any:
    """Return a policy of DI-engine with its default config and these changes."""
    from ding.utils import deep_merge_dicts
    from easydict import EasyDict

    module, _, name = policy_class.partition(".")
    cls = getattr(importlib.import_module(f"ding.policy.{module}"), name)
    merged = EasyDict(deep_merge_dicts(cls.default_config(), config))
    if module == "sac":
        merged = EasyDict(
            deep_merge_dicts(merged, {"learn": SAC_ALPHA, "model": {"action_space": "reparameterization"}})
        )
    return cls(merged, enable_field=["learn", "collect"])  # A2C learns only with both


@torch.no_grad()
def draw_weights(network: Any, scale: float, rng: np.random.Generator) -> None:
    """Draw all parameters uniformly from [-scale, scale]; biases and the scales of noisy layers are positive."""
    for name, parameter in network.named_parameters():
        drawn = torch.from_numpy(rng.uniform(-scale, scale, tuple(parameter.shape)))
        parameter.copy_(drawn.abs() if name.endswith(("_sigma", "bias", "bias_mu")) else drawn)


@torch.no_grad()
def outputs(network: Any, model: Mapping[str, Any], rng: np.random.Generator) -> Values:
    """Return observations and the network's outputs for them, in evaluation mode."""
    shape = model["obs_shape"]
    shape = [shape] if isinstance(shape, int) else shape
    obs = torch.from_numpy(rng.standard_normal((OUTPUT_ROWS, *shape)))
    network.eval()
    if not hasattr(network, "mode"):
        found = flat(network(obs))
    elif "compute_actor_critic" in network.mode:
        found = flat(network(obs, "compute_actor_critic"))
    else:
        action = torch.from_numpy(rng.uniform(-1, 1, (OUTPUT_ROWS, model["action_shape"])))
        critics = network({"obs": obs, "action": action}, "compute_critic")
        found = flat(network(obs, "compute_actor")) | flat(critics) | {"action_in": action}
    network.train()
    return {"output/obs": obs} | {f"output/{key}": value for key, value in found.items()}


def flat(output: Any, prefix: str = "") -> Values:
    """Return the tensors of nested dicts and lists by dotted names."""
    if isinstance(output, Tensor):
        return {prefix: output}
    if not isinstance(output, (Mapping, list)):
        return {}  # a distribution of REINFORCE
    items = output.items() if isinstance(output, Mapping) else enumerate(output)
    return {k: v for key, part in items for k, v in flat(part, f"{prefix}.{key}".lstrip(".")).items()}


def learn(name: str, policy: Any, config: Config, rng: np.random.Generator) -> Values:
    """Return a batch, and the losses and gradients of each learn step with it."""
    if "collect" in config or name.startswith("a2c"):
        columns = rollout(policy, config, rng)
    else:
        columns = replay(config, rng, is_discrete=name in ("dqn", "dqn_plain", "c51", "qrdqn", "rainbow"))
    values = {f"batch/{key}": column for key, column in columns.items()}
    steps: list[dict[str, Tensor]] = []
    watch(policy, steps)
    with given_noise(name, policy, rng) as noise:
        for number in range(LEARN_STEPS):
            steps.clear()
            report = policy._forward_learn(transitions(columns))
            reports = report if isinstance(report, list) else [report]
            for place, one in enumerate(reports):
                losses = {key: torch.as_tensor(value) for key, value in one.items() if is_loss(key)}
                part = f"learn{number}/loss{place}" if isinstance(report, list) else f"learn{number}/loss"
                values |= {f"{part}/{key}": value for key, value in losses.items()}
            for place, gradients in enumerate(steps):
                values |= {f"learn{number}/gradient{place}/{key}": value for key, value in gradients.items()}
            if name.startswith("a2c"):
                columns |= advantages(policy, columns)
    return values | {f"noise/{key}": value for key, value in noise.items()}


def is_loss(name: str) -> bool:
    """Return whether an entry of a report is compared."""
    return name.endswith("_loss") or name in ("priority", "alpha", "clipfrac")


def transitions(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the batch as a list of dicts, in the shapes of DI-engine's collectors."""
    rows = []
    for row in range(ROWS):
        one: dict[str, Any] = {}
        for name, column in columns.items():
            if "." in name:
                one.setdefault(name.partition(".")[0], {})[name.partition(".")[2]] = column[row]
            elif name == "done":
                one[name] = bool(column[row])
            else:
                one[name] = column[row] if column.ndim > 1 else column[row : row + 1]
        rows.append(one)
    return rows


def replay(config: Config, rng: np.random.Generator, is_discrete: bool) -> Values:
    """Return the columns of a batch from replay; some episodes end, and some end before n steps."""
    nstep = config.get("nstep", 1)
    taken = torch.from_numpy(rng.integers(1, nstep + 1, ROWS))
    reward = torch.from_numpy(rng.standard_normal((ROWS, nstep)))
    columns = {
        "obs": torch.from_numpy(rng.standard_normal((ROWS, VECTOR))),
        "next_obs": torch.from_numpy(rng.standard_normal((ROWS, VECTOR))),
        "reward": torch.where(torch.arange(nstep) < taken[:, None], reward, 0.0),
        "done": torch.from_numpy(rng.random(ROWS) < 0.4),
    }
    if not is_discrete:
        columns["reward"] = columns["reward"].squeeze(1)
        return columns | {"action": torch.from_numpy(rng.uniform(-1, 1, (ROWS, CONTINUOUS)))}
    columns |= {"action": torch.from_numpy(rng.integers(0, DISCRETE, ROWS)), "value_gamma": GAMMA**taken}
    return columns | ({"IS": torch.from_numpy(rng.uniform(0.2, 1, ROWS))} if config.get("priority") else {})


def rollout(policy: Any, config: Config, rng: np.random.Generator) -> Values:
    """Return the columns of a rollout of one env: an episode that terminates, and one that the rollout cuts."""
    done = torch.zeros(ROWS, dtype=torch.bool)
    done[4] = True
    obs = torch.from_numpy(rng.standard_normal((ROWS + 1, VECTOR)))
    next_obs = obs[1:].clone()
    next_obs[4] = torch.from_numpy(rng.standard_normal(VECTOR))
    columns = {"obs": obs[:-1], "next_obs": next_obs, "done": done}
    columns["reward"] = torch.from_numpy(rng.standard_normal(ROWS))
    is_discrete = config["action_space"] == "discrete"
    drawn = rng.integers(0, DISCRETE, ROWS) if is_discrete else rng.standard_normal((ROWS, CONTINUOUS))
    columns["action"] = torch.from_numpy(drawn)
    with torch.no_grad():  # the policy that acted is near to the one that learns, so some ratios are clipped
        logit = flat(policy._model(columns["obs"], "compute_actor"))
    changes = {key: torch.from_numpy(rng.uniform(0.7, 1.4, tuple(value.shape))) for key, value in logit.items()}
    columns |= {key: value * changes[key] for key, value in logit.items()}
    return columns | advantages(policy, columns)


@torch.no_grad()
def advantages(policy: Any, columns: Values) -> Values:
    """Return DI-engine's values and advantages of a rollout, with gamma and lambda of this file."""
    from ding.rl_utils import gae, gae_data

    value, next_value = (policy._model(columns[name], "compute_critic")["value"] for name in ("obs", "next_obs"))
    data = gae_data(value.clone(), next_value, columns["reward"], columns["done"], None)
    return {"value": value, "adv": gae(data, GAMMA, GAE_LAMBDA)}


def watch(policy: Any, steps: list[dict[str, Tensor]]) -> None:
    """Append the gradients by parameter name to ``steps`` whenever an optimizer steps."""
    names = {id(parameter): name for name, parameter in policy._model.named_parameters()}
    for optimizer in (getattr(policy, name) for name in OPTIMIZERS if hasattr(policy, name)):

        def step(optimizer: Any = optimizer, original: Any = optimizer.step) -> None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            found = {names.get(id(p), "log_alpha"): p.grad.clone() for p in parameters if p.grad is not None}
            steps.append(found)
            original()

        optimizer.step = step


@contextmanager
def given_noise(name: str, policy: Any, rng: np.random.Generator) -> Iterator[Values]:
    """Replace DI-engine's random numbers, the same in each learn step, by those that are yielded."""
    shape = (ROWS, CONTINUOUS)
    if name == "sac":
        noise = {key: torch.from_numpy(rng.standard_normal(shape)) for key in ("next_noise", "noise")}
        cycle = [noise["next_noise"], noise["noise"]] * LEARN_STEPS
        with mock.patch("torch.distributions.normal._standard_normal", side_effect=cycle):
            yield noise
    elif name == "td3":
        noise = {"next_noise": torch.from_numpy(rng.standard_normal(shape))}
        with mock.patch(
            "ding.rl_utils.exploration.torch.randn", side_effect=lambda *a, **k: noise["next_noise"].clone()
        ):
            yield noise
    elif name == "rainbow":
        from ding.torch_utils.network.nn_module import NoiseLinearLayer

        noise = {}
        for kind, network in {"model": policy._model, "target": policy._target_model}.items():
            for layer_name, layer in network.named_modules():
                if isinstance(layer, NoiseLinearLayer):
                    drawn = torch.from_numpy(rng.standard_normal(layer.in_channels + layer.out_channels))
                    layer.given = noise[f"{kind}/{layer_name}"] = drawn

        def reset_noise(layer: Any) -> None:
            noise_in, noise_out = layer.given.split([layer.in_channels, layer.out_channels])
            layer.weight_eps, layer.bias_eps = torch.outer(noise_out, noise_in), noise_out.clone()

        with mock.patch.object(NoiseLinearLayer, "reset_noise", reset_noise):
            yield noise
    else:
        yield {}


if __name__ == "__main__":
    main(sys.argv[1])
