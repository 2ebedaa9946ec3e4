"""COMA: targets of TD(lambda), counterfactual advantages and losses against plain loops, and the two-step game."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.policy import COMAPolicy, create_policy
from tests.conftest import MakeTrainer
from tests.policy.test_mappo import GAMES, GAMMA, SHAPES, Config, final_return, rollout

LAMBDA = 0.7
LAST = (4, 7, 13, 15)  # rows of the last steps of sequences


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    base = {"discount_factor": GAMMA, "model": SHAPES, "learn": {"td_lambda": LAMBDA, "value_norm": False}}
    policy: Any = create_policy({"type": "coma", **deep_merge(base, changes)})
    policy.seed(0)
    for weight in policy.target_model.parameters():  # so that it differs from the critic
        weight.data.add_(0.1 * torch.randn_like(weight))
    return policy


def learning_data(policy: Any, data: Config) -> Any:
    return policy._learning_data(dict(data), policy._sequences_of(data))


def q_of(network: Any, obs: Any, action: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return network.compute_critic(obs, action)["q_value"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("has_own_rewards", [True, False])
def test_targets_are_those_of_plain_loops(has_own_rewards: bool) -> None:
    policy = make()
    data = rollout(policy, has_own_rewards)
    policy.model.actor.output.net.layers[-1].bias.data[2] = 100.0  # from here on, it draws action 2
    found = learning_data(policy, data)["return"]
    taken = q_of(policy.target_model, data["obs"], data["action"]).gather(-1, data["action"].unsqueeze(-1))[..., 0]
    twos = torch.full((16, 3), 2)
    final = q_of(policy.target_model, data["next_obs"], twos)[..., 2]
    expected = torch.zeros(16, 3)
    for agent in range(3):
        for row in reversed(range(16)):
            own = data["next_obs"].get("agent_reward")
            reward = data["reward"][row] if own is None else own[row, agent]
            if data["terminated"][row] or data["next_obs"]["alive"][row, agent] == 0:
                later: Any = 0.0
            elif row in LAST:
                later = final[row, agent]
            else:
                later = (1 - LAMBDA) * taken[row + 1, agent] + LAMBDA * expected[row + 1, agent]
            expected[row, agent] = reward + GAMMA * later
    living = data["obs"]["alive"] > 0
    assert_close(found[living], expected[living])


@pytest.mark.parametrize("has_mask", [False, True])
def test_advantage_is_the_value_less_the_mean_over_the_actions_of_the_agent(has_mask: bool) -> None:
    policy = make()
    data = rollout(policy)
    if has_mask:
        mask = torch.ones(16, 3, 4)
        mask.scatter_(2, ((data["action"] + 1) % 4).unsqueeze(-1), 0.0)
        data["obs"]["action_mask"] = mask.flatten(1)
    found = policy._counterfactual_advantage({"obs": data["obs"], "action": data["action"]})
    logit = policy.model.compute_actor(data["obs"])["logit"].detach()
    for row in range(16):
        one = {name: column[row : row + 1] for name, column in data["obs"].items()}
        for agent in range(3):
            legal = [a for a in range(4) if not has_mask or a != (data["action"][row, agent] + 1) % 4]
            p = logit[row, agent, legal].softmax(0)
            values = []
            for choice in legal:  # the critic is asked for each action of the agent, the others doing what they did
                joint = data["action"][row : row + 1].clone()
                joint[0, agent] = choice
                values.append(q_of(policy.model, one, joint)[0, agent, choice])
            taken = values[legal.index(int(data["action"][row, agent]))]
            assert_close(found[row, agent], taken - (p * torch.stack(values)).sum(), rtol=1e-4, atol=1e-5)


def test_critic_of_an_agent_knows_the_actions_of_all_others_only() -> None:
    policy = make(model={"action_shape": [4, 2, 3]})
    obs = {"agent_state": torch.randn(5, 3, 2)}
    before = q_of(policy.model, obs, torch.zeros(5, 3, dtype=torch.long))
    after = q_of(policy.model, obs, torch.tensor([[1, 0, 0]]).expand(5, 3))
    assert before.shape == (5, 3, 4)
    assert torch.equal(before[:, 0], after[:, 0])
    assert ((before != after)[:, 1:]).any(-1).all()


def test_losses_are_means_over_living_agents() -> None:
    policy = make(learn={"entropy_weight": 0.1})
    data = rollout(policy)
    learned = learning_data(policy, data) | {"advantage": torch.linspace(-1, 1, 48).view(16, 3)}
    actor, of_actor = policy.loss_of_actor(learned)
    critic, of_critic = policy.loss_of_critic(learned)
    logit, q = policy.model.compute_actor(data["obs"])["logit"], q_of(policy.model, data["obs"], data["action"])
    gain, error, entropy = [], [], []
    for row in range(16):
        for agent in range(3):
            if data["obs"]["alive"][row, agent] == 0:
                continue
            log_p, action = logit[row, agent].log_softmax(-1), data["action"][row, agent]
            gain.append(log_p[action] * learned["advantage"][row, agent])
            entropy.append(-(log_p.exp() * log_p).sum())
            error.append(0.5 * (q[row, agent, action] - learned["return"][row, agent]) ** 2)
    assert len(gain) == 46
    assert_close(actor, -torch.stack(gain).mean() - 0.1 * torch.stack(entropy).mean())
    assert_close(critic, 0.5 * torch.stack(error).mean())
    assert set(of_actor) == {"total_loss", "policy_loss", "entropy_loss"}
    assert_close(of_critic["value_loss"], 2 * critic.detach())


def test_critic_learns_first_and_the_actors_from_its_new_values(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make(learn={"batch_size": 8, "epoch_per_collect": 3, "adv_norm": False, "target_theta": 0.5})
    data = rollout(policy)
    turns: list[tuple[str, set[str]]] = []
    inherited = policy._update

    def update(minibatch: Any) -> Any:
        before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
        target = {name: weight.clone() for name, weight in policy.target_model.state_dict().items()}
        if "advantage" in minibatch:
            rows = {name: minibatch[name] for name in ("obs", "action")}
            if not turns or turns[-1][0] == "critic":
                assert_close(minibatch["advantage"], policy._counterfactual_advantage(rows))
        report = inherited(minibatch)
        weights = policy.model.state_dict()
        if "advantage" not in minibatch:
            for name, weight in policy.target_model.state_dict().items():
                assert_close(weight, 0.5 * (target[name] + weights[name]))
        changed = {name.split(".")[0] for name, weight in weights.items() if not torch.equal(weight, before[name])}
        turns.append(("actor" if "advantage" in minibatch else "critic", changed))
        return report

    monkeypatch.setattr(policy, "_update", update)
    policy.learn_mode.forward(data)
    assert turns == [("critic", {"critic_encoder", "critic"})] * 6 + [("actor", {"encoder", "actor"})] * 2
    assert policy.update_per_collect == 4 * 64


@pytest.mark.parametrize("sharing", [True, False, [0, 1, 1]])
def test_scale_of_the_critic_keeps_the_values_of_critic_and_target(sharing: Any) -> None:
    policy = make(learn={"value_norm": "popart"}, model={"parameter_sharing": sharing})
    data = rollout(policy)
    data["reward"] += 20
    data["next_obs"].pop("agent_reward")
    networks = (policy.model, policy.target_model)
    before = [policy._returns_of(q_of(network, data["obs"], data["action"])) for network in networks]
    policy._renew_scale(learning_data(policy, data))
    assert float(policy.return_statistics.mean) > 10
    for network, known in zip(networks, before, strict=True):
        assert_close(policy._returns_of(q_of(network, data["obs"], data["action"])), known, rtol=1e-4, atol=1e-4)


def test_what_a_dead_agent_does_changes_no_weight() -> None:
    ends = []
    for action in (0, 1):
        policy = make(learn={"batch_size": 8, "epoch_per_collect": 2})
        data = rollout(policy)
        data["action"][[3, 4], 1] = action
        policy.learn_mode.forward(data)
        ends.append(policy.state_dict())
    assert_close(ends[0], ends[1], rtol=0, atol=1e-6)


def test_continuous_actions_and_wrong_options_are_refused() -> None:
    seen = spaces.Dict({"agent_state": spaces.Box(-1, 1, (3, 2))})
    with pytest.raises(TypeError, match="coma needs discrete actions of a team"):
        COMAPolicy().build(seen, spaces.Box(-1, 1, (3, 2)))
    with pytest.raises(ValueError, match=r"model.action_space must be discrete for coma"):
        make(model={"action_space": "continuous"})
    for name, value in (("td_lambda", 1.1), ("target_theta", 0.0), ("epoch_per_collect", 0)):
        with pytest.raises(ValueError, match=rf"learn\.{name} must be"):
            make(learn={name: value})


GAME: Config = {
    "learn": {"batch_size": 64, "learning_rate": 5e-3, "entropy_weight": 0.2, "epoch_per_collect": 4, "td_lambda": 0.5},
    "collect": {"n_sample": 128},
}


def test_two_step_game_is_solved(make_trainer: MakeTrainer) -> None:
    assert final_return(make_trainer, "coma", f"{GAMES}TwoStepGame", 40, 0, **GAME) == 8.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_two_step_game_is_solved_from_every_seed(make_trainer: MakeTrainer, seed: int) -> None:
    assert final_return(make_trainer, "coma", f"{GAMES}TwoStepGame", 60, seed, **GAME) == 8.0
