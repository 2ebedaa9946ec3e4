"""MAT: one agent after the other and all at once, what each knows of the others, and games with known returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.policy import create_policy
from tests.conftest import MakeTrainer
from tests.policy.test_mappo import GAMES, GAMMA, LAMBDA, SHAPES, Config, Reach, final_return, rollout

KINDS = pytest.mark.parametrize("kind", ["discrete", "masked", "continuous"])


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    base = {
        "discount_factor": GAMMA,
        "collect": {"gae_lambda": LAMBDA},
        "model": {**SHAPES, "n_blocks": 2, "n_heads": 2},
    }
    policy: Any = create_policy({"type": "mat", **deep_merge(base, changes)})
    policy.seed(0)
    policy.model.init_orthogonally(actor=1.0)  # actors that differ much from uniform ones
    return policy


def case(kind: str) -> tuple[Any, Config]:
    """Return a policy and observations of 7 envs, in which some agents are dead."""
    policy = make(model={"action_space": "continuous" if kind == "continuous" else "discrete"})
    obs: Config = {"agent_state": torch.randn(7, 3, 2), "alive": torch.ones(7, 3)}
    obs["alive"][0, 0] = obs["alive"][1, 2] = 0
    if kind == "masked":
        obs["action_mask"] = (torch.rand(7, 12) < 0.5).long()
        obs["action_mask"][:, [0, 4, 8]] = 1
    return policy, obs


@KINDS
def test_probability_of_all_actions_at_once_is_that_of_one_agent_after_the_other(kind: str) -> None:
    policy, obs = case(kind)
    acted = policy.collect_mode.forward(obs)
    action, network = acted["drawn"], policy.model
    with torch.no_grad():
        output = network(obs, action)
        together = policy._distribution(output["logit"], obs).log_prob(action)
        assert_close(acted["log_prob"], together, rtol=0, atol=1e-5)
        encoded, steps = network.encode(obs), []
        for agent in range(3):  # this agent's action and those after it are not known yet
            known = action.clone()
            known[:, agent:] = 0
            logit = network.decode(encoded, obs, known)
            steps.append(policy._distribution(logit, obs).log_prob(action)[:, agent])
        assert_close(torch.stack(steps, 1), together, rtol=0, atol=1e-5)
        assert_close(output["value"], network.compute_critic(obs)["value"])


@KINDS
def test_greedy_action_of_each_agent_is_the_best_for_the_actions_before_it(kind: str) -> None:
    policy, obs = case(kind)
    with torch.no_grad():
        acted, _ = policy._act(obs, lambda distribution: distribution.mode())
        logit = policy.model(obs, acted)["logit"]
    assert_close(policy.eval_mode.forward(obs)["action"], policy._to_env(acted))
    assert_close(acted, policy._distribution(logit, obs).mode(), rtol=0, atol=1e-5)


def test_agent_knows_the_actions_before_its_own_and_what_all_agents_see() -> None:
    network = make(model={"action_space": "continuous"}).model
    obs = {"agent_state": torch.randn(5, 3, 2, requires_grad=True)}
    action = torch.randn(5, 3, 4, requires_grad=True)
    network(obs, action)["logit"]["mu"][:, 1].sum().backward()
    assert action.grad is not None
    assert action.grad[:, 0].any(-1).all()
    assert not action.grad[:, 1:].any()
    assert obs["agent_state"].grad.any(-1).all()  # type: ignore[union-attr]


def test_attention_is_that_of_plain_loops() -> None:
    for is_causal, block in (
        (False, make().model.encoder_blocks[0].attention),
        (True, make().model.decoder_blocks[0].of_agents),
    ):
        asking, asked = torch.randn(3, 64), torch.randn(3, 64)
        query, (key, value) = block.query(asking), block.key_value(asked).split(64, -1)
        rows = []
        for one in range(3):
            heads = []
            for head in (slice(0, 32), slice(32, 64)):
                seen = range(one + 1 if is_causal else 3)
                score = torch.stack([(query[one, head] * key[other, head]).sum() / 32**0.5 for other in seen])
                heads.append(sum(p * value[other, head] for p, other in zip(score.softmax(0), seen, strict=True)))
            rows.append(block.projection(torch.cat(heads)))
        assert_close(block(asking, asked), torch.stack(rows))


def test_loss_is_ppos_of_living_agents() -> None:
    policy = make(learn={"value_norm": False, "entropy_weight": 0.1})
    data = rollout(policy)
    learned = policy._learning_data(dict(data), policy._sequences_of(data))
    loss, report = policy.loss(learned)
    output = policy.model(data["obs"], data["action"])
    living = data["obs"]["alive"] > 0
    log_p = output["logit"].log_softmax(-1)
    ratio = (log_p.gather(-1, data["action"].unsqueeze(-1))[..., 0] - data["log_prob"]).exp()
    advantage = learned["advantage"]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)[living].mean()
    value_loss = 0.5 * (output["value"] - learned["return"])[living].square().mean()
    entropy = -(log_p.exp() * log_p).sum(-1)[living].mean()
    assert_close(loss, -surrogate + 0.5 * value_loss - 0.1 * entropy)
    assert_close(report["approx_kl"], (ratio - 1 - ratio.log())[living].mean().detach())


def test_what_a_dead_agent_sees_and_does_changes_no_weight() -> None:
    ends = []
    for changed in (0.0, 100.0):
        policy = make(learn={"batch_size": 8, "epoch_per_collect": 2})
        data = rollout(policy)
        for obs in (data["obs"], data["next_obs"]):
            obs["agent_state"] = torch.where(obs["alive"][..., None] > 0, obs["agent_state"], changed)
            obs["agent_reward"][[3, 4], 1] = changed
        data["action"][[3, 4], 1] = int(changed > 0)
        policy.learn_mode.forward(data)
        ends.append(policy.state_dict())
    assert_close(ends[0], ends[1], rtol=0, atol=1e-6)


def test_illegal_actions_are_never_taken() -> None:
    policy = make(model={"action_shape": [4, 2, 3]})
    mask = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 0]).repeat(50, 1)
    drawn = policy.collect_mode.forward({"agent_state": torch.randn(50, 3, 2), "action_mask": mask})
    assert [set(column.tolist()) for column in drawn["action"].unbind(1)] == [{2, 3}, {1}, {0}]
    assert not drawn["log_prob"][:, 1:].any()
    without = policy.collect_mode.forward({"agent_state": torch.randn(50, 3, 2)})
    assert without["action"].amax(0).tolist() == [3, 1, 2]


@pytest.mark.parametrize("sharing", [True, False, [0, 1, 1]])
def test_scale_of_the_critic_keeps_all_values(sharing: Any) -> None:
    policy = make(model={"parameter_sharing": sharing})
    data = rollout(policy)
    before = policy._returns_of(policy.model.compute_critic(data["obs"])["value"])
    policy._renew_scale(policy._learning_data(dict(data), policy._sequences_of(data)))
    assert not policy.return_statistics.corrects
    assert_close(policy._returns_of(policy.model.compute_critic(data["obs"])["value"]), before, rtol=1e-4, atol=1e-5)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model.encoder_hidden_size_list must be .* a multiple of n_heads \(3\)"):
        make(model={"n_heads": 3})
    with pytest.raises(ValueError, match=r"model.n_blocks must be >= 1"):
        make(model={"n_blocks": 0})
    with pytest.raises(ValueError, match=r"learn.learning_rate_actor must be None with mat"):
        make(learn={"learning_rate_actor": 1e-3, "learning_rate_critic": 1e-3})


GAME: Config = {
    "learn": {"learning_rate": 3e-3, "entropy_weight": 0.1, "batch_size": 64},
    "collect": {"n_sample": 128},
}


def test_continuous_actions_are_learned(make_trainer: MakeTrainer) -> None:
    changes: Config = {
        "learn": {"entropy_weight": 0.0, "learning_rate": 5e-3},
        "model": {"encoder_hidden_size_list": [32]},
    }
    assert final_return(make_trainer, "mat", Reach, 20, 0, **changes) > -0.1


def test_two_step_game_is_solved(make_trainer: MakeTrainer) -> None:
    assert final_return(make_trainer, "mat", f"{GAMES}TwoStepGame", 12, 0, **GAME) == 8.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_two_step_game_is_solved_from_every_seed(make_trainer: MakeTrainer, seed: int) -> None:
    assert final_return(make_trainer, "mat", f"{GAMES}TwoStepGame", 40, seed, **GAME) == 8.0
