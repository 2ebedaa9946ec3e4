"""Six algorithms have DI-engine's losses on random numbers, which ``make_ding_long_tail`` computed."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import BCQPolicy, BDQPolicy, EDACPolicy, PDQNPolicy, SQNPolicy

GAMMA = 0.875
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}
Values = dict[str, Tensor]


@cache
def stored() -> Values:
    return load_file(Path(__file__).with_name("ding_long_tail.safetensors"))


def case(name: str) -> tuple[Values, Values]:
    """Return what a case was given, and what DI-engine made of it."""
    sides: tuple[Values, Values] = ({}, {})
    for key, value in stored().items():
        one, side, last = key.split("/")
        if one == name:
            sides[side == "out"][last] = value
    return sides


class Rows(nn.Module):
    """Looks up the outputs of an observation, which is the number of a row; several networks or dimensions."""

    def __init__(self, parts: Tensor) -> None:
        super().__init__()
        self.parts = nn.Parameter(parts)  # (networks or dimensions, rows, actions)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, obs: Tensor) -> dict[str, Any]:
        found = list(self.parts[:, obs.long().flatten()])
        return {"logit": found}


class TwoNetworks(Rows):
    """The same, with the smaller value of two networks."""

    def forward(self, obs: Tensor) -> dict[str, Any]:
        both = self.parts[:, obs.long().flatten()]
        return {"logit": both.amin(0), "q_value": list(both)}


def batch_of(given: Values) -> dict[str, Tensor]:
    row = torch.arange(len(given["reward"])).unsqueeze(1)
    ends = {"terminated": given["done"].bool(), "discount": torch.full_like(given["reward"], GAMMA)}
    return {"obs": row, "next_obs": row + len(row), "action": given["action"], "reward": given["reward"]} | ends


def test_loss_of_bdq_equals_ding_where_dimensions_have_separate_targets() -> None:
    given, found = case("bdq")
    online = torch.cat([given["q"], given["online_next_q"]]).transpose(0, 1)
    target = torch.cat([given["q"], given["next_q"]]).transpose(0, 1)
    model = {"obs_shape": 1, "action_shape": [online.shape[2]] * online.shape[0]}
    learn = {"loss": "mse", "mean_target": False}
    policy: Any = BDQPolicy({"discount_factor": GAMMA, "model": model, "learn": learn}, model=Rows(online))
    policy.target_model.parts.data = target
    loss, _ = policy.loss(policy.prepare(batch_of(given)))
    assert_close(loss.detach(), found["loss"], **CLOSE)


def test_losses_of_sqn_equal_ding() -> None:
    given, found = case("sqn")
    learn = {"loss": "mse", "alpha": math.exp(-0.7), "target_entropy": 0.4}
    config = {"discount_factor": GAMMA, "model": {"obs_shape": 1, "action_shape": 4}, "learn": learn}
    policy: Any = SQNPolicy(config, model=TwoNetworks(torch.cat([given["q"], given["next_q"]], 1)))
    policy.target_model.parts.data = policy.model.parts.detach().clone()
    loss, report = policy.loss(policy.prepare(batch_of(given)))
    assert_close(loss.detach(), found["loss"], **CLOSE)
    assert_close(report["entropy"], found["entropy"], **CLOSE)
    alpha_loss, _ = policy.alpha_loss(report)
    assert_close(alpha_loss.detach().reshape(1), found["alpha_loss"].double().reshape(1), rtol=1e-5, atol=1e-6)


def test_loss_of_edacs_critics_and_its_gradient_equal_ding() -> None:
    given, found = case("edac")
    sizes = {"ensemble_num": 5, "critic_head_hidden_size": 8, "critic_head_layer_num": 0, "activation": "tanh"}
    config = {"discount_factor": GAMMA, "model": {"obs_shape": 3, "action_shape": 2, **sizes}, "learn": {"eta": 0.6}}
    policy: Any = EDACPolicy(config).double()
    head = policy.model.critic.head
    layers = [pair for both in zip(head.weights, head.biases, strict=True) for pair in both]
    for number, one in enumerate(layers):
        one.data = _ours(given[f"critic.{number}"], one)
    ended = torch.ones(len(given["reward"]), dtype=torch.bool)
    batch = {name: given[name] for name in ("obs", "action", "reward")} | {"next_obs": given["obs"]}
    loss, _ = policy.critic_loss(policy.prepare(batch | {"terminated": ended}))
    loss.backward()
    assert_close(loss.detach(), found["critic_loss"], **CLOSE)
    for number, one in enumerate(layers):
        assert_close(one.grad, _ours(found[f"gradient.{number}"], one), **CLOSE)


def _ours(theirs: Tensor, ours: Tensor) -> Tensor:
    """Return weights (E out, in, 1) or biases (E out) of grouped convolutions as those of an ensemble."""
    critics, size = len(ours), ours.shape[2]
    if theirs.dim() == 1:
        return theirs.view(critics, 1, size)
    return theirs.view(critics, size, -1).transpose(1, 2).contiguous()


def test_targets_and_gradients_of_acer_equal_ding() -> None:
    given, found = case("acer")
    log_p, average, log_mu = (given[name].log_softmax(-1) for name in ("logit", "average_logit", "behaviour_logit"))
    q, action = given["q"], given["action"]
    value, index = (log_p.exp() * q).sum(-1), action.unsqueeze(-1)
    log_ratio = (log_p[:-1] - log_mu).gather(-1, index).squeeze(-1)
    taken, last = q[:-1].gather(-1, index).squeeze(-1), torch.zeros_like(given["done"], dtype=torch.bool)
    last[-1] = True
    discount = GAMMA * (1 - given["done"])
    target = rl.retrace(log_ratio, given["reward"], taken, value[:-1], value[1:], discount, last)
    assert_close(target, found["retrace"][:-1, :, 0], **CLOSE)
    assert_close(0.5 * (target - taken).square(), found["critic_loss"].squeeze(-1), **CLOSE)
    gradient = rl.acer_gradient(log_p[:-1], log_mu, action, q[:-1], target, c_clip_ratio=2.0)
    assert_close(gradient, found["gradient"], **CLOSE)
    assert_close(rl.within_trust_region(gradient, average[:-1], 0.1), found["limited"], **CLOSE)


def test_two_updates_of_bcq_equal_ding() -> None:
    """The losses of the three parts in their order, and all weights after it."""
    given, found = case("bcq")
    sizes = {"actor_hidden_size_list": [8], "critic_hidden_size_list": [8], "vae_hidden_size_list": [8], "phi": 0.3}
    rates = {f"learning_rate_{part}": 3e-4 for part in ("actor", "critic", "vae")}
    learn = {**rates, "kl_weight": 0.5, "grad_clip_norm": None, "target_theta": 0.005}
    model = {"obs_shape": 3, "action_shape": 1, **sizes}
    policy: Any = BCQPolicy({"discount_factor": GAMMA, "model": model, "learn": learn}).double()
    ensemble = policy.model.critic.head
    weights = {f"critic.{i}.{2 * n}": (ensemble, i, n) for i in range(2) for n in range(2)}
    layers = {f"actor.{2 * n}": policy.model.actor.head.layers[n] for n in range(2)}
    layers |= {
        f"vae.{part}.{n}": getattr(policy.model.vae, part).layers[n] for part in ("encode", "decode") for n in (0, 1)
    }

    def pairs(values: Values) -> list[tuple[Tensor, Tensor]]:
        """Return our parameters with DI-engine's."""
        own = [
            (getattr(one, part).data, values[f"model.{name}.{part}"])
            for name, one in layers.items()
            for part in ("weight", "bias")
        ]
        for name, (head, i, n) in weights.items():
            own.append((head.weights[n].data[i], values[f"model.{name}.weight"].T))
            own.append((head.biases[n].data[i, 0], values[f"model.{name}.bias"]))
        return own

    for own, theirs in pairs(given):
        own.copy_(theirs)
    policy.target_model.load_state_dict(policy.model.state_dict())
    batch = {name: given[name] for name in ("obs", "next_obs", "action", "reward")} | {
        "terminated": given["done"].bool()
    }
    for i in range(2):
        vae, following, noise = (given[f"drawn.{3 * i + n}"] for n in range(3))
        drawn = {"vae_noise": vae, "next_noise": following.view(len(vae), 10, 2), "noise": noise}
        report = policy._forward_learn(policy.prepare(batch) | drawn)
        for name, term in (("recons_loss", "recons_loss"), ("kl_loss", "kld_loss"), ("vae_loss", "vae_loss")):
            assert_close(report[name], found[f"{term}.{i}"], **CLOSE)
        assert_close(report["critic_loss"], found[f"critic_loss.{i}"] + found[f"twin_critic_loss.{i}"], **CLOSE)
        assert_close(report["actor_loss"], found[f"actor_loss.{i}"], **CLOSE)
    for own, theirs in pairs(found):
        assert_close(own, theirs, **CLOSE)


def test_eleven_updates_of_pdqn_equal_ding() -> None:
    """The first one trains both parts in DI-engine, and the critic alone here."""
    given, found = case("pdqn")
    sizes = {"encoder_hidden_size_list": [8, 8], "actor_hidden_size_list": [8], "critic_hidden_size_list": [10]}
    shape = {"action_type_shape": 4, "action_args_shape": 2}
    model = {"obs_shape": 3, "action_shape": shape, **sizes, "share_encoder": True}
    learn: dict[str, Any] = {"learning_rate_actor": 1e-2, "learning_rate_critic": 1e-2, "double_q": True, "turn": 5}
    learn |= {"target_theta": 0.1, "grad_clip_norm": None}
    policy: Any = PDQNPolicy({"discount_factor": GAMMA, "model": model, "learn": learn}).double()
    critic, actor = policy.model.critic, policy.model.actor.head.layers
    layers = {"cont_encoder.init": critic.encoder.layers[0], "cont_encoder.main.0": critic.encoder.layers[1]}
    layers |= {"cont_head.main.0": actor[0], "cont_head.last": actor[1]}

    def pairs(values: Values) -> list[tuple[Tensor, Tensor]]:
        """Return our parameters with DI-engine's."""
        own = [
            (getattr(one, part).data, values[f"model.{name}.{part}"])
            for name, one in layers.items()
            for part in ("weight", "bias")
        ]
        for n in range(2):
            own.append((critic.head.weights[n].data[0], values[f"model.dis_head.Q.{n}.0.weight"].T))
            own.append((critic.head.biases[n].data[0, 0], values[f"model.dis_head.Q.{n}.0.bias"]))
        return own

    for own, theirs in pairs(given):
        own.copy_(theirs)
    policy.target_model.load_state_dict(policy.model.state_dict())
    batch = {name: given[name] for name in ("obs", "next_obs", "reward")} | {"terminated": given["done"].bool()}
    batch = policy.prepare(batch | {"action": {"action_type": given["type"], "action_args": given["args"]}})
    policy.updater.minimise(policy.actor_loss, batch, 1)
    for number in range(11):
        policy.progress.train_iter = number
        report = policy._forward_learn(batch)
        name = "q_loss" if "critic_loss" in report else "continuous_loss"
        ours = report["critic_loss" if name == "q_loss" else "actor_loss"]
        assert_close(ours, found[name][number], **CLOSE)
    for own, theirs in pairs(found):
        assert_close(own, theirs, **CLOSE)
