"""State-dependent exploration of PPO, A2C, SAC, CQL and TQC: acting, its noise as state, log densities and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from lightning import Trainer
from torch import nn
from torch.testing import assert_close

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.policy import SACPolicy, create_policy
from lightning_ding.worker.players import check_players
from tests.algorithms.table import ALGORITHMS, WITHOUT_COLLECTING

NAMES = ["ppo", "a2c", "ppg", "trpo", "sac", "cql", "calql", "tqc"]
OTHERS = ["mbpo", "dreamerv3", "tdmpc2"]  # SAC itself, and a model with sections of its own
ON_POLICY = ("ppo", "a2c", "ppg", "trpo")
OBS = torch.linspace(-1, 1, 12).reshape(4, 3)
BOX, TORQUES = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


def make(name: str, seed: int = 0, sde_sample_freq: int | None = None, **model: Any) -> Any:
    torch.manual_seed(0)
    lists = {"actor_hidden_size_list": [8], "critic_hidden_size_list": [8], "activation": "tanh"}
    section = {"obs_shape": 3, "action_shape": 2, "use_sde": True, **lists, **model}
    section |= {"action_space": "continuous"} if name in ON_POLICY else {}
    policy = create_policy({"type": name, "model": section, "collect": {"sde_sample_freq": sde_sample_freq}})
    policy.seed(seed)
    return policy


def act(policy: Any, obs: Any = OBS) -> Any:
    return policy.collect_mode.forward(obs)["action"]


@pytest.mark.parametrize("name", NAMES)
def test_noise_stays_for_an_episode_of_an_env(name: str) -> None:
    policy = make(name)
    first = act(policy)
    assert torch.equal(act(policy), first)
    policy.collect_mode.reset([2])
    changed = (act(policy) != first).any(1)
    assert changed.tolist() == [False, False, True, False]
    policy.collect_mode.reset()
    assert (act(policy) != first).any(1).all()


@pytest.mark.parametrize("name", NAMES)
def test_noise_stays_for_the_steps_of_the_option(name: str) -> None:
    first, second, third = (act(policy) for policy in [make(name, sde_sample_freq=2)] for _ in range(3))
    assert torch.equal(first, second)
    assert (third != first).any(1).all()


@pytest.mark.parametrize("name", NAMES)
def test_envs_by_their_numbers_have_their_own_noise(name: str) -> None:
    policy, other = make(name), make(name)
    actions = act(policy)
    assert torch.equal(act(other), actions)
    by_env = other.collect_mode.forward({3: OBS[3], 1: OBS[1]})
    assert_close(by_env[3]["action"], actions[3])
    assert_close(by_env[1]["action"], actions[1])


@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_seeds_have_their_own_noise(name: str) -> None:
    assert torch.equal(act(make(name, seed=1)), act(make(name, seed=1)))
    assert (act(make(name, seed=1)) != act(make(name, seed=2))).any(1).all()


@pytest.mark.parametrize("name", NAMES)
def test_evaluations_and_predictions_have_no_noise(name: str) -> None:
    policy = make(name, clip_mean=0.01) if name not in ON_POLICY else make(name)
    policy.build(BOX, TORQUES)
    output = policy.model.compute_actor(OBS)
    mean = output["logit"]["mu"].clamp(-1, 1) if name in ON_POLICY else output["mu"].tanh()
    assert_close(policy.eval_mode.forward(OBS)["action"], mean.detach())
    assert_close(torch.from_numpy(policy.predict(OBS.numpy())), mean.detach())
    if name not in ON_POLICY:
        assert output["mu"].abs().max() <= 0.01


@pytest.mark.parametrize("name", NAMES)
def test_an_actor_that_explores_has_noise_of_its_own(name: str) -> None:
    policy = make(name).build(BOX, TORQUES)
    training = act(policy)
    one, other = (policy.actor(deterministic=False) for _ in range(2))
    first = one(OBS.numpy())
    assert (other(OBS.numpy()) != first).any()
    assert (one(OBS.numpy()) == first).all()
    assert torch.equal(act(policy), training)
    with pytest.raises(ValueError, match="call actor"):
        policy.predict(OBS.numpy(), deterministic=False)


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_collecting_continues_with_the_same_bits(name: str) -> None:
    policy = make(name, sde_sample_freq=3)
    act(policy)
    memory, generator = policy.collect_memory(), policy.rng.bit_generator.state
    wanted = [act(policy) for _ in range(5)]
    other = make(name, seed=9, sde_sample_freq=3)
    other.load_collect_memory(memory)
    other.rng.bit_generator.state = generator
    assert all(torch.equal(act(other), one) for one in wanted)


def normal_log_density(x: float, mean: float, variance: float) -> float:
    return -0.5 * ((x - mean) ** 2 / variance + math.log(2 * math.pi * variance))


@pytest.mark.parametrize("name", ON_POLICY)
def test_log_probability_is_the_density_of_the_action_over_all_matrices(name: str) -> None:
    policy = make(name, log_std_init=-1.0)
    output = policy.collect_mode.forward(OBS)
    logit = policy.model.compute_actor(OBS)["logit"]
    z, std, mu = (logit[part].detach() for part in ("features", "std", "mu"))
    assert_close(std, torch.full((8, 2), math.exp(-1)))
    for row in range(4):
        variances = [sum(float(z[row, i] * std[i, j]) ** 2 for i in range(8)) + 1e-6 for j in range(2)]
        terms = [normal_log_density(float(output["drawn"][row, j]), float(mu[row, j]), variances[j]) for j in range(2)]
        assert float(output["log_prob"][row]) == pytest.approx(sum(terms), rel=1e-4)


@pytest.mark.parametrize("name", ["sac", "cql", "tqc"])
def test_log_probability_of_a_squashed_action_is_that_of_the_change_of_variables(name: str) -> None:
    policy = make(name, log_std_init=-1.0)
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 2), dtype=np.float32))
    action, log_prob = (part.detach() for part in policy._sample(OBS, noise))
    output = policy.model.compute_actor(OBS)
    z, std, mu = (output[part].detach() for part in ("features", "std", "mu"))
    for row in range(4):
        wanted = 0.0
        for j in range(2):
            variance = sum(float(z[row, i] * std[i, j]) ** 2 for i in range(8)) + 1e-6
            u = float(mu[row, j]) + math.sqrt(variance) * float(noise[row, j])
            assert float(action[row, j]) == pytest.approx(math.tanh(u), rel=1e-4)
            wanted += normal_log_density(u, float(mu[row, j]), variance) - math.log(1 - math.tanh(u) ** 2)
        assert float(log_prob[row]) == pytest.approx(wanted, rel=1e-4)


def test_entropy_and_density_train_the_deviations_of_the_weights() -> None:
    policy = make("ppo")
    before = policy.model.actor.sde.log_std.detach().clone()
    ids = {name: torch.zeros(4, dtype=torch.long) for name in ("env_id", "episode_id")}
    output = policy.collect_mode.forward(OBS)
    flags = {"terminated": torch.arange(4) == 3, "truncated": torch.zeros(4, dtype=torch.bool)}
    columns = {"obs": OBS, "next_obs": OBS, "reward": OBS[:, 0], "action": output["drawn"]}
    policy.learn_mode.forward({**columns, **flags, **ids, "log_prob": output["log_prob"]})
    assert (policy.model.actor.sde.log_std != before).any()


@pytest.mark.parametrize("name", [name for name in ALGORITHMS | WITHOUT_COLLECTING if name not in (*NAMES, *OTHERS)])
def test_policies_without_such_noise_name_those_that_have_it(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"model.use_sde' does not exist here: ppo, a2c, ppg, trpo, sac, cql, tqc and mbpo explore"
    ):
        create_policy({"type": name, "model": {"use_sde": True}})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collect": {"sde_sample_freq": 4}}, "collect.sde_sample_freq must be None without model.use_sde, got 4"),
        (
            {"model": {"use_sde": True}, "collect": {"sde_sample_freq": 0}},
            "collect.sde_sample_freq must be >= 1 or None, got 0",
        ),
    ],
)
def test_durations_without_effect_or_out_of_range_are_refused(name: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": name, **options})


@pytest.mark.parametrize("name", ON_POLICY)
def test_discrete_actions_of_an_env_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use_sde must be False for discrete actions"):
        create_policy({"type": name, "model": {"use_sde": True}}).build(BOX, spaces.Discrete(2))


class WithoutFeatures(nn.Module):
    """A network of one's own that gives a mean and a deviation only."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 2), nn.Linear(5, 1)

    def compute_actor(self, obs: Any) -> Any:
        mu = self.actor(obs)
        return {"mu": mu, "log_sigma": torch.zeros_like(mu)}

    def compute_critic(self, obs: Any, action: Any, members: Any = None) -> Any:
        return {"q_value": self.critic(torch.cat([obs, action], 1)).T}


def test_a_network_without_features_is_refused_when_it_explores() -> None:
    policy = SACPolicy({"model": {"use_sde": True, "action_shape": 2}}, model=WithoutFeatures())
    with pytest.raises(ValueError, match=r"the actor's output must be a dict with .*'features', 'std'.* model.use_sde"):
        act(policy)


def test_players_of_a_game_cannot_have_the_noise_of_an_env(tmp_path: Any) -> None:
    policy = make("ppo")
    with pytest.raises(ValueError, match=r"policy of player 0 must be one without model\.use_sde"):
        check_players([policy.collect_mode, policy.collect_mode], 2)
    check_players([policy.eval_mode, policy.eval_mode], 2)  # which have no noise
    run = {"main": {"exp_name": str(tmp_path), "policy": {"type": "sac", "model": {"use_sde": True}}}}
    with pytest.raises(
        ValueError, match=r"main\.policy\.model\.use_sde must be False with marine collectors, got True"
    ):
        Coordinator({**run, "system": {"collector": {"type": "marine"}}}, MemoryStore())


def test_a_rollout_of_envs_has_one_noise_for_an_episode(tmp_path: Any) -> None:
    policy: Any = create_policy(
        {
            "type": "ppo",
            "model": {"use_sde": True, "actor_hidden_size_list": [8], "critic_hidden_size_list": [8]},
            "collect": {"n_sample": 404},
            "learn": {"epoch_per_collect": 1, "batch_size": None},
        }
    )
    drawn: list[np.ndarray[Any, Any]] = []
    process = policy._process_transition

    def note(obs: Any, output: Any, timestep: Any) -> Any:
        drawn.append(policy._sde_noise.matrix.numpy().copy())
        return process(obs, output, timestep)

    policy._process_transition = note
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_epochs=1, enable_checkpointing=False, limit_val_batches=0, **flags)
    trainer.fit(policy, RolloutDataModule("Pendulum-v1", num_envs=2, rounds_per_epoch=1))  # episodes of 200 steps
    assert len(drawn) == 202
    for step, before, after in zip(range(1, 202), drawn[:-1], drawn[1:], strict=True):
        assert (before == after).all() == (step != 200)
