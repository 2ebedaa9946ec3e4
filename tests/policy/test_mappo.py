"""PPO of teams: advantages and losses of each agent against plain loops, and games whose best returns are known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from lightning import seed_everything
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import MAPPOPolicy, create_policy
from lightning_ding.policy.base.rank_statistics import standardise_over_ranks
from tests.conftest import MakeTrainer

Config = dict[str, Any]
SHAPES = {"agent_num": 3, "agent_obs_shape": 2, "global_obs_shape": 6, "action_shape": 4, "action_space": "discrete"}
GAMES = "lightning_ding.envs.teams.games."
GAMMA, LAMBDA = 0.9, 0.8
NAMES = ("mappo", "ippo", "happo", "recurrent_mappo")


def make(name: str = "mappo", **changes: Any) -> Any:
    torch.manual_seed(0)
    base = {"discount_factor": GAMMA, "collect": {"gae_lambda": LAMBDA}, "model": SHAPES}
    policy = create_policy({"type": name, **deep_merge(base, changes)})
    policy.seed(0)
    return policy


def rollout(policy: Any, has_own_rewards: bool = True) -> Config:
    """Return 8 steps of 2 envs: agent 1 of env 0 dies at step 2, env 0 terminates at 4, env 1 is truncated at 5."""
    rng = np.random.default_rng(1)
    seen = torch.from_numpy(rng.normal(size=(17, 3, 2)).astype(np.float32))
    obs: Config = {"agent_state": seen[:16], "alive": torch.ones(16, 3)}
    following: Config = {"agent_state": seen[1:17], "alive": torch.ones(16, 3)}
    following["alive"][[2, 3, 4], 1] = 0
    obs["alive"][[3, 4], 1] = 0
    if has_own_rewards:
        following["agent_reward"] = torch.from_numpy(rng.normal(size=(16, 3)).astype(np.float32))
        obs["agent_reward"] = torch.zeros(16, 3)
    steps = torch.arange(16) % 8
    env_id = torch.arange(16) // 8
    terminated, truncated = (env_id == 0) & (steps == 4), (env_id == 1) & (steps == 5)
    data: Config = {
        "obs": obs,
        "next_obs": following,
        "reward": torch.from_numpy(rng.normal(size=16).astype(np.float32)),
    }
    data |= {"terminated": terminated, "truncated": truncated, "env_id": env_id}
    data["episode_id"] = 2 * env_id + (steps > torch.where(env_id == 0, 4, 5))
    if policy.has_memory:
        data |= {"recurrent_state": policy.model.first_state(16), "is_first": torch.zeros(16, dtype=torch.bool)}
        data["is_first"][[0, 5, 8, 14]] = True
    with torch.no_grad():
        acted = policy.collect_mode.forward(obs)
    return data | {"action": acted["drawn"], "log_prob": acted["log_prob"] - 0.1}


def values_by_loops(data: Config, value: torch.Tensor, next_value: torch.Tensor) -> torch.Tensor:
    """Return advantages, shape (S, N), one agent and step at a time."""
    advantage = torch.zeros_like(value)
    for agent in range(3):
        for row in reversed(range(16)):
            is_last = row in (4, 7, 13, 15)
            has_ended = bool(data["terminated"][row]) or data["next_obs"]["alive"][row, agent] == 0
            own = data["next_obs"].get("agent_reward")
            reward = data["reward"][row] if own is None else own[row, agent]
            delta = reward - value[row, agent] + (0 if has_ended else GAMMA * next_value[row, agent])
            later = 0 if is_last or has_ended else advantage[row + 1, agent]
            advantage[row, agent] = delta + GAMMA * LAMBDA * later
    return advantage


@pytest.mark.parametrize("has_own_rewards", [True, False])
@pytest.mark.parametrize("name", ["mappo", "ippo"])
def test_advantages_of_each_agent_are_those_of_plain_loops(name: str, has_own_rewards: bool) -> None:
    policy = make(name, learn={"value_norm": False})
    data = rollout(policy, has_own_rewards)
    found = policy._learning_data(dict(data), rl.time_major(data["env_id"], data["episode_id"]))
    with torch.no_grad():
        value, next_value = (policy.model.compute_critic(data[key])["value"] for key in ("obs", "next_obs"))
    expected = values_by_loops(data, value, next_value)
    living = data["obs"]["alive"] > 0
    assert_close(found["advantage"][living], expected[living])
    assert_close(found["return"][living], (expected + value)[living])
    assert found["value"].shape == (16, 3)


def test_ignored_termination_bootstraps_all_but_the_dead() -> None:
    policy = make(learn={"value_norm": False, "ignore_done": True})
    data = rollout(policy)
    found = policy._learning_data(dict(data), rl.time_major(data["env_id"], data["episode_id"]))
    with torch.no_grad():
        value, next_value = (policy.model.compute_critic(data[key])["value"] for key in ("obs", "next_obs"))
    expected = values_by_loops({**data, "terminated": torch.zeros(16)}, value, next_value)
    living = data["obs"]["alive"] > 0
    assert_close(found["advantage"][living], expected[living])


def test_losses_are_means_over_living_agents() -> None:
    policy = make(learn={"value_norm": False, "entropy_weight": 0.1, "value_clip": 0.3})
    data = rollout(policy)
    learned = policy._learning_data(dict(data), rl.time_major(data["env_id"], data["episode_id"]))
    loss, report = policy.loss(learned)
    output = policy.model.compute_actor_critic(data["obs"])
    surrogate, error, entropy, number = [], [], [], 0
    for row in range(16):
        for agent in range(3):
            if data["obs"]["alive"][row, agent] == 0:
                continue
            number += 1
            log_p = output["logit"][row, agent].log_softmax(-1)
            ratio = (log_p[data["action"][row, agent]] - data["log_prob"][row, agent]).exp()
            advantage, target = learned["advantage"][row, agent], learned["return"][row, agent]
            surrogate.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
            error.append(0.5 * (output["value"][row, agent] - target) ** 2)
            entropy.append(-(log_p.exp() * log_p).sum())
    assert number == 46
    policy_loss, value_loss, mean_entropy = (torch.stack(one).mean() for one in (surrogate, error, entropy))
    assert_close(report["policy_loss"], -policy_loss.detach())
    assert_close(report["value_loss"], value_loss.detach())
    assert_close(report["entropy_loss"], mean_entropy.detach())
    assert_close(loss, -policy_loss + 0.5 * value_loss - 0.1 * mean_entropy)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_dead_agent_sees_and_does_changes_no_weight(name: str) -> None:
    ends = []
    for changed in (0.0, 100.0):
        policy = make(name, learn={"batch_size": 8, "epoch_per_collect": 2}, model={"parameter_sharing": True})
        if name in ("mappo", "recurrent_mappo"):  # whose critic sees all agents unless there is a global state
            policy.model.centralised = False
            policy.model.seen_by_critic = lambda obs: torch.cat(
                [obs["agent_state"], obs["agent_state"].new_zeros(*obs["agent_state"].shape[:-1], 6)], -1
            )
        data = rollout(policy)
        for obs in (data["obs"], data["next_obs"]):
            if name == "happo":
                obs["global_state"] = torch.ones(16, 6)
            obs["agent_state"] = torch.where(obs["alive"][..., None] > 0, obs["agent_state"], changed)
            if "agent_reward" in obs:
                obs["agent_reward"][[3, 4], 1] = changed
        data["action"][[3, 4], 1] = int(changed > 0)
        if policy.has_memory:
            data["is_first"][:] = True
        policy.learn_mode.forward(data)
        ends.append(policy.state_dict())
    assert_close(ends[0], ends[1], rtol=0, atol=1e-6)


def test_standardised_advantages_count_living_agents_only() -> None:
    table, counted = (
        torch.tensor([[1.0, 5.0, 3.0, 9.0], [2.0, 7.0, 7.0, 7.0]]),
        torch.tensor([[1, 0, 1, 1], [1, 0, 0, 0]]),
    )
    first, second = standardise_over_ranks([table], counted=[counted.float()])[0]
    living = torch.tensor([1.0, 3.0, 9.0])
    assert_close(first[[0, 2, 3]], (living - living.mean()) / living.std())
    assert second[0] == 2  # a single number stays as it is


@pytest.mark.parametrize("sharing", [True, False, [0, 1, 1]])
@pytest.mark.parametrize("name", ["mappo", "happo"])
def test_scale_of_the_critic_follows_living_returns_and_keeps_all_values(name: str, sharing: Any) -> None:
    policy = make(name, model={"parameter_sharing": sharing})
    data = rollout(policy)
    learned = policy._learning_data(dict(data), rl.time_major(data["env_id"], data["episode_id"]))
    before = policy._returns_of(policy.model.compute_critic(data["obs"])["value"])
    returns = policy._returns_of(learned["return"])
    policy._renew_scale(learned)
    assert_close(policy._returns_of(policy.model.compute_critic(data["obs"])["value"]), before, rtol=1e-4, atol=1e-5)
    assert not policy.return_statistics.corrects
    living = returns[data["obs"]["alive"] > 0]
    assert_close(policy.return_statistics.mean.float(), living.mean(), rtol=1e-4, atol=1e-5)
    assert int(policy.return_statistics.count) == 46


def test_agents_without_common_weights_learn_apart() -> None:
    policy = make("ippo", model={"parameter_sharing": False}, learn={"value_norm": False, "adv_norm": False})
    obs = {"agent_state": torch.randn(4, 3, 2, requires_grad=True)}
    output = policy.model.compute_actor_critic(obs)
    (output["logit"][:, 0].sum() + output["value"][:, 0].sum()).backward()
    for name, parameter in policy.model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad[0].any(), name
        assert not parameter.grad[1:].any(), name
    assert not obs["agent_state"].grad[:, 1:].any()  # type: ignore[index]


def test_critic_of_mappo_sees_all_agents_and_that_of_ippo_one() -> None:
    for name, sees_others in (("mappo", True), ("ippo", False)):
        obs = {"agent_state": torch.randn(4, 3, 2, requires_grad=True)}
        make(name).model.compute_critic(obs)["value"][:, 0].sum().backward()
        assert bool(obs["agent_state"].grad[:, 1:].any()) == sees_others  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_illegal_actions_are_never_taken(name: str) -> None:
    policy = make(name, model={"action_shape": [4, 2, 3]})
    mask = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 0]).repeat(50, 1)
    obs = {"agent_state": torch.randn(50, 3, 2), "action_mask": mask}
    drawn = policy.collect_mode.forward(obs)
    assert set(drawn["action"][:, 0].tolist()) == {2, 3}
    assert set(drawn["action"][:, 1].tolist()) == {1}
    assert set(drawn["action"][:, 2].tolist()) == {0}
    assert not drawn["log_prob"][:, 1:].any()
    del obs["action_mask"]
    assert policy.collect_mode.forward(obs)["action"].amax(0).tolist() == [3, 1, 2]


class Reach(gym.Env[Any, Any]):
    """Two agents move a number each to a target that differs between them; the reward is minus the squared distance."""

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Dict({"agent_state": spaces.Box(-1, 1, (2, 1))})
        self.action_space: Any = spaces.Box(np.array([[-2.0], [0.0]]), np.array([[2.0], [4.0]]), (2, 1), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"agent_state": np.ones((2, 1), np.float32)}, {}

    def step(self, action: Any) -> Any:
        reward = -float(np.square(action - np.array([[1.0], [3.0]])).sum())
        return {"agent_state": np.ones((2, 1), np.float32)}, reward, True, False, {}


def final_return(make_trainer: MakeTrainer, name: str, env: Any, rounds: int, seed: int, **changes: Any) -> float:
    """Return the mean return of the policy at the end of a run."""
    seed_everything(seed)
    learn = {"epoch_per_collect": 4, "batch_size": 32, "learning_rate": 1e-2, "entropy_weight": 0.01}
    base: Config = {"collect": {"n_sample": 64}, "learn": learn, "eval": {"evaluator": {"n_episode": 1}}}
    policy = create_policy({"type": name, **deep_merge(base, changes)})
    kwargs = {"env_kwargs": {"payoff": env}} if env in ("climbing", "penalty") else {}
    env = f"{GAMES}MatrixGame" if kwargs else env
    datamodule = RolloutDataModule(env, num_envs=8, **kwargs)  # type: ignore[arg-type]
    trainer = make_trainer(limit_train_batches=rounds, max_epochs=1, limit_val_batches=0)
    trainer.fit(policy, datamodule)
    trainer.limit_val_batches = 1
    return float(trainer.validate(policy, datamodule, verbose=False)[0]["eval/return_mean"])


def test_continuous_actions_in_the_units_of_each_agent_are_learned(make_trainer: MakeTrainer) -> None:
    assert final_return(make_trainer, "mappo", Reach, 30, 0, learn={"entropy_weight": 0.0}) > -0.1


@pytest.mark.parametrize(("game", "least"), [("climbing", 5.0), ("penalty", 2.0)])
def test_games_with_costly_mistakes_end_in_an_equilibrium(make_trainer: MakeTrainer, game: str, least: float) -> None:
    assert final_return(make_trainer, "mappo", game, 30, 0) >= least


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", ["mappo", "ippo", "happo"])
@pytest.mark.parametrize(("game", "least"), [("climbing", 5.0), ("penalty", 2.0)])
def test_games_with_costly_mistakes_from_every_seed(
    make_trainer: MakeTrainer, game: str, least: float, name: str, seed: int
) -> None:
    assert final_return(make_trainer, name, game, 40, seed) >= least


@pytest.mark.parametrize("name", NAMES)
def test_two_step_game_is_solved(make_trainer: MakeTrainer, name: str) -> None:
    rounds = 12 if name == "happo" else 20
    short = {"learn_unroll_len": 4, "model": {"core": {"type": "gru", "hidden_size": 16}}}
    changes: Config = {"learn": {"entropy_weight": 0.05}, **(short if name == "recurrent_mappo" else {})}
    assert final_return(make_trainer, name, f"{GAMES}TwoStepGame", rounds, 0, **changes) == 8.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", NAMES)
def test_two_step_game_is_solved_from_every_seed(make_trainer: MakeTrainer, name: str, seed: int) -> None:
    short = {"learn_unroll_len": 4, "model": {"core": {"type": "gru", "hidden_size": 16}}}
    learn = {"entropy_weight": 0.05, "batch_size": 64}
    changes: Config = {"learn": learn, "collect": {"n_sample": 128}}
    changes |= short if name == "recurrent_mappo" else {}
    assert final_return(make_trainer, name, f"{GAMES}TwoStepGame", 60, seed, **changes) == 8.0


def test_reward_models_are_refused_for_rewards_of_agents() -> None:
    space = spaces.Dict({"agent_state": spaces.Box(-1, 1, (3, 2)), "agent_reward": spaces.Box(-1, 1, (3,))})
    policy = MAPPOPolicy({"reward_model": {"type": "rnd"}})
    with pytest.raises(ValueError, match=r"reward_model.type must be None for a team whose agents have rewards"):
        policy.build(space, spaces.MultiDiscrete([2, 2, 2]))


def test_state_of_a_memory_holds_that_of_all_agents_and_unrolls_as_step_by_step() -> None:
    policy = make("recurrent_mappo", model={"core": {"type": "gru", "hidden_size": 5}})
    network = policy.model
    obs = {"agent_state": torch.randn(6, 2, 3, 2)}
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 1] = True
    whole = network(obs, network.first_state(2), starts)
    state, logits, values = network.first_state(2), [], []
    assert state.shape == (2, 2 * 3 * 5)
    for step in range(6):
        state = state.masked_fill(starts[step][:, None], 0.0)
        output = network.act({"agent_state": obs["agent_state"][step]}, state)
        state = output["state"]
        logits.append(output["logit"])
        values.append(output["value"])
    assert_close(whole["logit"], torch.cat(logits))
    assert_close(whole["value"], torch.cat(values))
    assert_close(whole["state"], state)
