"""Losses and gradients of the same weights and batches, equal to those that DI-engine computed.

``make_ding_values.py`` stored them. A comment says where an option here has another meaning than in DI-engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.di_engine.checkpoint import translate
from lightning_ding.model import C51DQN, RainbowDQN
from lightning_ding.policy.replay_policy import polyak_update
from tests.di_engine.values import GAE_LAMBDA, GAMMA, MODELS, checkpoint, make_policy, part, save

pytestmark = pytest.mark.usefixtures("double_precision")

FLOOR = 1e-6  # DI-engine adds it to probabilities of atoms, and to the slope of tanh in SAC's density
CONSTANT = {"lr_scheduler": {"type": "constant"}, "optimizer": {"eps": 1e-8}}
PRIORITIES = {"priority": True, "priority_IS_weight": True}


def q_learning(**learn: Any) -> dict[str, Any]:
    return {"discount_factor": GAMMA, "learn": {"target_update_freq": 1, "learning_rate": 1e-3, **learn}}


def on_policy(**learn: Any) -> dict[str, Any]:
    collect = {"gae_lambda": GAE_LAMBDA, "n_sample": 8}
    return {"discount_factor": GAMMA, "collect": collect, "learn": {**learn, **CONSTANT, "batch_size": 8}}


PPO = on_policy(
    value_clip=0.2,  # DI-engine clips values by clip_ratio, always
    value_norm=False,  # DI-engine divides returns by their standard deviation, not by their root mean square
    ppo_param_init=False,
    entropy_weight=0.01,
    epoch_per_collect=2,
    grad_clip_norm=None,
)
A2C = on_policy(learning_rate=0.01, value_weight=0.5, entropy_weight=0.01, grad_clip_norm=0.5)
DDPG = {"discount_factor": GAMMA, "learn": {"target_theta": 0.1}}
ADAM = {"eps": 1e-8}  # DI-engine's; the default here is that of the papers
CONFIGS: dict[str, dict[str, Any]] = {
    "dqn": q_learning(loss="mse") | PRIORITIES | {"nstep": 3},  # the default here is Huber's loss
    "dqn_plain": q_learning(loss="mse") | {"nstep": 1, "priority": True},
    "c51": q_learning(optimizer=ADAM) | {"nstep": 2, "priority": True},
    "qrdqn": q_learning(optimizer=ADAM) | {"nstep": 2, "priority": True},
    "rainbow": q_learning(optimizer=ADAM) | PRIORITIES | {"nstep": 3},
    "ppo": PPO,
    "ppo_continuous": PPO,
    "a2c": A2C,
    "a2c_continuous": A2C,
    "ddpg": DDPG,
    "td3": DDPG,
    "sac": DDPG,
}


class FlooredC51(C51DQN):
    def forward(self, obs: Any) -> dict[str, Tensor]:
        return floored(super().forward(obs), self.support)


class FlooredRainbow(RainbowDQN):
    def forward(self, obs: Any, noisy: bool = False) -> dict[str, Tensor]:
        return floored(super().forward(obs, noisy), self.support)


def floored(output: dict[str, Tensor], support: Tensor) -> dict[str, Tensor]:
    distribution = output["distribution"] + FLOOR
    return {"logit": distribution @ support, "distribution": distribution, "log_distribution": distribution.log()}


def floored_sample(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    action = (mu + log_sigma.exp() * noise).tanh()
    log_prob = torch.distributions.Normal(0.0, 1.0).log_prob(noise) - log_sigma - (1 - action.square() + FLOOR).log()
    return action, log_prob.sum(1)


def loaded_policy(case: str, folder: Path, network: Any = None) -> Any:
    policy = make_policy(case, network, **CONFIGS[case])
    policy.load_ding_checkpoint(save(checkpoint(case), folder))
    return policy


def use_noise(case: str, policy: Any) -> None:
    """Make the policy use the noise that DI-engine used."""
    noise = {name: value.numpy() for name, value in part(case, "noise").items()}
    if case == "td3":
        policy._noise = lambda shape: {"next_noise": np.clip(0.2 * noise["next_noise"], -0.5, 0.5)}
    elif case == "sac":
        policy._noise = lambda shape: noise
    elif case == "rainbow":  # DI-engine draws another noise for choosing the next action; the script keeps the first
        policy._reset_noise = lambda *models: None
        for name, network in {"model": policy.model, "target": policy.target_model}.items():
            layers = [*network.advantage.layers, *network.value.layers]
            for layer, drawn in zip(layers, part(case, f"noise/{name}").values(), strict=True):
                layer.noise.copy_(drawn)


def batch_of(case: str) -> dict[str, Any]:
    """Return the batch in the form that policies have here."""
    columns = part(case, "batch")
    batch = {name: columns[name] for name in ("obs", "next_obs", "action", "reward")} | {"terminated": columns["done"]}
    if "value_gamma" in columns:  # the buffer adds up the rewards of n steps here, and the loss in DI-engine
        batch["reward"] = (columns["reward"] * GAMMA ** torch.arange(columns["reward"].shape[1])).sum(1)
        batch["discount"] = columns["value_gamma"]
    if "IS" in columns:
        batch["IS"] = columns["IS"]
    if "adv" in columns:  # advantages are computed when learning here, A2C's when collecting in DI-engine
        logit = columns.get("logit", {name: columns.get(f"logit.{name}") for name in ("mu", "sigma")})
        batch["log_prob"] = rl.distribution_of(logit).log_prob(columns["action"])
        batch |= {"env_id": torch.zeros(8, dtype=torch.long), "episode_id": torch.tensor([0] * 5 + [1] * 3)}
    return batch


def record_gradients(policy: Any) -> list[dict[str, Tensor]]:
    """Return a list to which every step of an optimizer appends the gradients by parameter name."""
    steps: list[dict[str, Tensor]] = []
    names = {parameter: name for name, parameter in policy.model.named_parameters()}

    def record(optimizer: Any, args: Any, kwargs: Any) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        steps.append({names.get(one, "log_alpha"): one.grad.clone() for one in parameters})

    for optimizer in policy.updater.optimizers:
        optimizer.register_step_pre_hook(record)
    return steps


def losses_of(case: str, name: str) -> dict[str, Tensor]:
    """Return what DI-engine reported, under the names of the report here."""
    found = part(case, name)
    if "critic_loss" in found:
        critics = [found[key] for key in ("critic_loss", "critic_twin_loss", "twin_critic_loss") if key in found]
        actor = [found[key] for key in ("actor_loss", "policy_loss") if key in found]
        losses = {"critic_loss": torch.stack(critics).sum()}  # the sum over the critics here
        losses |= {"actor_loss": actor[0]} if actor else {}
        return losses | {key: found[key] for key in ("alpha_loss",) if key in found}
    if case.startswith("dqn"):  # the priority is the size of the error here, and its square in DI-engine
        found["priority"] = found["priority"].sqrt()
    return {{"clipfrac": "clip_fraction"}.get(key, key): value for key, value in found.items()}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], rtol: float = 1e-5) -> None:
    assert theirs.keys() <= ours.keys()
    for name, value in theirs.items():

        def message(text: str, name: str = name) -> str:
            return f"{name}: {text}"

        torch.testing.assert_close(ours[name], value, rtol=rtol, atol=1e-12, check_dtype=False, msg=message)


def assert_learns_the_same(case: str, policy: Any) -> None:
    steps, batch = record_gradients(policy), batch_of(case)
    last_pass = "1" if case.startswith("ppo") else ""
    for number in range(2):
        steps.clear()
        use_noise(case, policy)
        report = policy.learn_mode.forward(batch)
        assert_same(report, losses_of(case, f"learn{number}/loss{last_pass}"))
        for place, gradients in enumerate(steps):
            named = translate(policy.model, part(case, f"learn{number}/gradient{place}"))
            theirs = {name: one.squeeze() if name == "log_alpha" else one for name, (_, one) in named.items()}
            assert gradients.keys() == theirs.keys()
            assert_same(gradients, theirs)
        assert part(case, f"learn{number}/gradient{len(steps)}") == {}
        if case == "td3" and number == 0:  # the targets move with the actor here, after every update in DI-engine
            polyak_update(policy.model, policy.target_model, 0.1)


@pytest.mark.parametrize("case", [case for case in CONFIGS if case not in ("c51", "rainbow", "sac")])
def test_losses_and_gradients_are_those_of_di_engine(case: str, tmp_path: Path) -> None:
    assert_learns_the_same(case, loaded_policy(case, tmp_path))


@pytest.mark.parametrize(("case", "network"), [("c51", FlooredC51), ("rainbow", FlooredRainbow)])
def test_losses_and_gradients_of_atoms_are_those_of_di_engine_with_its_floor(
    case: str, network: Any, tmp_path: Path
) -> None:
    assert_learns_the_same(case, loaded_policy(case, tmp_path, network(**MODELS[case])))


def test_losses_and_gradients_of_sac_are_those_of_di_engine_with_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl, "squashed_gaussian_sample", floored_sample)
    policy = loaded_policy("sac", tmp_path)
    assert_learns_the_same("sac", policy)
    assert_same({"alpha": policy.alpha}, {"alpha": part("sac", "learn1/loss")["alpha"]})


@pytest.mark.parametrize("case", ["c51", "rainbow", "sac"])
def test_losses_without_the_floor_are_near_to_those_of_di_engine(case: str, tmp_path: Path) -> None:
    policy = loaded_policy(case, tmp_path)
    use_noise(case, policy)
    assert_same(policy.learn_mode.forward(batch_of(case)), losses_of(case, "learn0/loss"), rtol=1e-4)


def test_every_case_with_a_batch_is_compared() -> None:
    assert {case for case in MODELS if part(case, "batch")} == set(CONFIGS)
