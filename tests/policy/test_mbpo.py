"""MBPO's rollouts in a model that is known exactly, its training, its minibatches and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import MBPOPolicy, NonFiniteError, mbpo
from lightning_ding.policy.base import non_finite
from lightning_ding.worker.buffer import ImaginationReplayBuffer
from lightning_ding.worker.buffer.imagination import ImaginedTransitions
from tests.conftest import MakeTrainer
from tests.toys.bandits import TargetEnv

SMALL: dict[str, Any] = {
    "random_collect_size": 40,
    "model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8},
    "dynamics": {
        **{"ensemble_num": 3, "elite_num": 2, "hidden_size_list": [16], "batch_size": 16, "fit_freq": 16},
        "max_epochs": 3,
    },
    "rollout": {"batch_size": 21},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"n_episode": 1}},
}
MATRIX = torch.tensor([[1.0, 0.5], [0.0, 1.0]])  # of a linear env: a position and a speed
REWARD = torch.tensor([1.0, -2.0, 0.5])  # for position, speed and action


def above_two(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    return next_obs[:, 0] > 2


def no_mask(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    return next_obs[:, :1] > 2  # (N, 1)


def make(shape: int = 2, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = deep_merge(deep_merge(SMALL, {"model": {"obs_shape": shape, "action_shape": 1}}), changes)
    return MBPOPolicy(config)


def linear(obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rewards and the next observations of the linear env."""
    return torch.cat([obs, action], 1) @ REWARD, obs @ MATRIX.T + action * torch.tensor([0.0, 1.0])


class Linear(torch.nn.Module):
    """Layers that predict the linear env exactly, with tiny variances."""

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        reward, next_obs = linear(x[..., :2].flatten(0, 1), x[..., 2:].flatten(0, 1))
        mean = torch.cat([reward[:, None], next_obs - x[..., :2].flatten(0, 1)], 1).view(*x.shape[:2], 3)
        return torch.cat([mean, torch.full_like(mean, -100.0)], 2)


def test_rollouts_in_an_exact_model_equal_a_loop_over_them() -> None:
    policy = make(dynamics={"terminated_fn": f"{__name__}.above_two"}, rollout={"deterministic": True})
    policy.dynamics.layers = Linear()
    policy.action_bounds.set([-3.0], [3.0], False)
    start = torch.randn(6, 2) * 2
    policy.rng = np.random.default_rng(5)
    found = policy.imagine(start, length=4)
    source, noise = np.random.default_rng(5), []
    for _ in range(4):
        noise.append(torch.from_numpy(source.standard_normal((6, 1), dtype=np.float32)))
        source.permutation(6)
    expected: list[list[tuple[Tensor, ...]]] = [[] for _ in range(4)]
    for rollout in range(6):
        obs = start[rollout][None]
        for step in range(4):
            normal, _ = policy._sample(obs, noise[step][rollout][None])
            reward, next_obs = linear(obs, normal)  # the model sees normalised actions
            ended = bool(next_obs[0, 0] > 2)
            expected[step].append((obs[0], 3 * normal[0], reward[0], next_obs[0], torch.tensor(ended)))
            if ended:
                break
            obs = next_obs
    rows = [row for step in expected for row in step]
    assert 6 < len(rows) < 24  # some ended, some did not
    for name, values in zip(
        ("obs", "action", "reward", "next_obs", "terminated"), zip(*rows, strict=True), strict=True
    ):
        assert torch.allclose(found[name].float(), torch.stack(values).detach().float(), atol=1e-5), name
    assert not found["truncated"].any()


def test_the_model_sees_the_rounded_actions_of_a_box_of_integers() -> None:
    integers = {"action_low": [0.0], "action_high": [4.0], "action_integer": True}
    never = {"terminated_fn": "lightning_ding.rl.dynamics.never_terminated"}
    policy = make(model=integers, dynamics=never, rollout={"deterministic": True, "random_action_share": 0.5})
    policy.dynamics.layers = Linear()
    made = policy.imagine(torch.randn(40, 2), length=1)
    assert set(made["action"].flatten().tolist()) == {0, 1, 2, 3, 4}
    normal = (made["action"] - 2) / 2.5  # each integer has a fifth of [-1, 1]
    assert torch.allclose(made["reward"], linear(made["obs"], normal)[0], atol=1e-5)


def test_with_norm_obs_the_policy_sees_normalised_observations_and_the_model_those_of_the_env() -> None:
    never = {"terminated_fn": "lightning_ding.rl.dynamics.never_terminated"}
    policy = make(dynamics=never, rollout={"deterministic": True})
    policy.dynamics.layers = Linear()
    start = torch.randn(6, 2) * 3 + 1
    policy.normaliser.begin(spaces.Box(-9, 9, (2,)), norm_obs=True)
    policy.normaliser.update({"obs": start})
    policy.rng = np.random.default_rng(5)
    found = policy.imagine(start, length=1)
    noise = torch.from_numpy(np.random.default_rng(5).standard_normal((6, 1), dtype=np.float32))
    normal = policy._sample((start - start.mean(0)) / start.std(0, correction=0), noise)[0]
    assert torch.allclose(found["action"], normal, atol=1e-5)
    for name, expected in zip(("reward", "next_obs"), linear(start, normal), strict=True):
        assert torch.allclose(found[name], expected, atol=1e-5), name
    assert torch.equal(found["obs"], start)  # normalised with the env's own ones, when they are learned from


def test_an_end_that_is_no_mask_of_all_rollouts_is_refused() -> None:
    policy = make(dynamics={"terminated_fn": f"{__name__}.no_mask"})
    allowed = r"dynamics.terminated_fn must be a function that returns a bool tensor \(4,\), got .*\(4, 1\)"
    with pytest.raises(ValueError, match=allowed):
        policy.imagine(torch.zeros(4, 2), length=1)


def test_samples_have_the_predicted_variance() -> None:
    policy = make()
    with torch.no_grad():
        policy.dynamics.layers.weights[-1].zero_()
        policy.dynamics.layers.biases[-1].zero_()
        policy.dynamics.layers.biases[-1][..., 3:6] = -2.0
    made = policy.imagine(torch.zeros(4000, 2), length=1)
    assert float(made["next_obs"].var(0).log().mean()) == pytest.approx(-2.0, abs=0.15)
    with pytest.raises(ValueError, match="obs must be a multiple of 2 rows"):
        policy.imagine(torch.zeros(3, 2), length=1)


def test_a_share_of_the_actions_is_uniform() -> None:
    policy = make(rollout={"random_action_share": 0.25})
    with torch.no_grad():
        policy.model.actor.requires_grad_(False)
        for one in policy.model.actor.parameters():
            one.zero_()
    policy._standard_normal = lambda shape: np.zeros(shape, dtype=np.float32)
    action = policy.imagine(torch.zeros(4000, 2), length=1)["action"]
    drawn = action[action != 0]
    assert len(drawn) == pytest.approx(1000, abs=100)
    assert float(drawn.std()) == pytest.approx(3**-0.5, abs=0.05)


def lessons(number: int = 400) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    obs, action = torch.randn(number, 2, generator=generator), torch.rand(number, 1, generator=generator) * 2 - 1
    reward, next_obs = linear(obs, action)
    ended = above_two(obs, action, next_obs)
    return {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "terminated": ended}


def test_the_ensemble_learns_a_linear_env_and_its_end() -> None:
    changes = {"max_epochs": 40, "hidden_size_list": [32], "batch_size": 64, "learning_rate": 0.01}
    policy = make(dynamics=changes, rollout={"deterministic": True})
    before = float(policy.dynamics.squared_error(*_pair(policy)).mean())
    report = policy.learn_dynamics(lessons())
    errors = policy.dynamics.squared_error(*_pair(policy))
    assert float(errors.max()) < 0.05 < before
    assert float(report["dynamics_error"]) < 0.05
    assert int(report["dynamics_epochs"]) <= 40
    new = lessons(600)
    x = torch.cat([new["obs"], new["action"]], 1)
    _, _, end = policy.dynamics.step(x, None)
    assert float((end == new["terminated"]).float().mean()) > 0.97
    mean = x[:400].double()
    assert torch.allclose(policy.dynamics.input_mean.double(), mean.mean(0), atol=0.15)


def _pair(policy: Any) -> tuple[Tensor, Tensor]:
    data = policy._lessons(lessons())
    return data["x"], data["target"]


def test_training_ends_when_no_member_improves() -> None:
    policy = make(dynamics={"max_epochs": None, "max_epochs_since_update": 2, "learning_rate": 1e-12})
    report = policy.learn_dynamics(lessons(50))
    assert int(report["dynamics_epochs"]) == 4  # the first, and three that were no better
    with pytest.raises(ValueError, match="transitions must be at least two, got 1"):
        policy.learn_dynamics(lessons(1))


def test_a_loss_that_is_not_finite_raises_before_anything_is_imagined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(non_finite, "READ_AT_ONCE", ())  # as on a GPU, whose values are read later
    policy = make()
    policy.updater.guard.writes_dump = False
    with pytest.raises(NonFiniteError):
        policy.learn_dynamics(lessons(40) | {"reward": torch.full((40,), torch.nan)})


def test_a_rank_that_has_imagined_transitions_trains_with_one_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the other rank would wait for it: after a resume with another number of ranks, whose buffers merge."""
    policy, buffer = make(), ImaginationReplayBuffer({"type": "imagination", "replay_buffer_size": 100}, seed=0)
    buffer.push({name: one.numpy() for name, one in lessons(40).items()} | {"env_id": np.zeros(40, dtype=int)})
    policy._look_ahead(buffer)
    size = len(buffer.imagined)
    policy._look_ahead(buffer)
    assert len(buffer.imagined) == size > 0  # it is not time
    asked = []

    def another_lacks(condition: bool) -> bool:
        asked.append(condition)
        return True

    monkeypatch.setattr(mbpo, "on_any_rank", another_lacks)
    policy._look_ahead(buffer)
    assert asked == [False]
    assert len(buffer.imagined) > size


def test_integer_observations_of_the_env_do_not_round_imagined_ones() -> None:
    policy, imagined = make(), ImaginedTransitions()
    made = {"obs": torch.full((4, 2), 0.5), "next_obs": torch.full((4, 2), 1.5), "reward": torch.zeros(4)}
    ends = {name: torch.zeros(4, dtype=torch.bool) for name in ("terminated", "truncated")}
    imagined.push({**made, **ends, "action": torch.zeros(4, 1)}, retain=1)
    real = {name: torch.ones(3, 8, 2, dtype=torch.int8) for name in ("obs", "next_obs")}
    real |= {name: torch.zeros(3, 8, dtype=torch.bool) for name in ends}
    mixed = policy._mixed({**real, "reward": torch.zeros(3, 8), "action": torch.zeros(3, 8, 1)}, imagined)
    assert mixed["obs"][0, :, 0].tolist() == [1.0] + [0.5] * 7
    assert mixed["next_obs"][2, :, 1].tolist() == [1.0] + [1.5] * 7
    assert mixed["terminated"].dtype == torch.bool


def test_truncation_is_no_termination() -> None:
    data = lessons(8) | {"truncated": torch.ones(8, dtype=torch.bool)}
    assert torch.equal(make()._lessons(data)["terminated"], data["terminated"])


def test_minibatches_of_a_fit_have_a_share_of_real_transitions(make_trainer: MakeTrainer) -> None:
    never = {"terminated_fn": "lightning_ding.rl.dynamics.never_terminated"}
    changes = {"dynamics": never, "learn": {"real_ratio": 0.25}, "rollout": {"length": [[0, 1], [60, 3]]}}
    policy = MBPOPolicy(deep_merge(SMALL, changes))
    datamodule = ReplayDataModule("Pendulum-v1", num_envs=2, seed=0, max_env_step=72)
    seen, sizes = [], []
    learn = policy._forward_learn

    def note(batch: Any) -> Any:
        stored = datamodule.buffer.transitions()["obs"]  # type: ignore[union-attr]
        seen.append([bool((row == stored).all(1).any()) for row in batch["next_obs"]])
        sizes.append(list(datamodule.buffer.imagined._sizes))  # type: ignore[union-attr]
        return learn(batch)

    policy._forward_learn = note  # type: ignore[method-assign]
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert len(seen) == 8
    assert {tuple(row[2:]) for row in seen} == {(False,) * 6}  # next observations of the model are new
    assert sum(sum(row[:2]) for row in seen) >= 10  # those of the env are in the buffer, unless they are the newest
    assert sizes[0] == [40]  # after 48 env steps: two steps of 21 rollouts, less one for two equal parts
    assert sizes[-1] == [40, 60]  # after 64 env steps


def test_a_policy_learns_from_the_model_where_a_target_is(make_trainer: MakeTrainer) -> None:
    """1 of 64 transitions of a minibatch is the env's. The best constant action has an error of 1/12."""
    torch.manual_seed(0)
    sizes = {"ensemble_num": 2, "elite_num": 1, "hidden_size_list": [16], "batch_size": 32, "max_epochs": 15}
    rates = dict.fromkeys(("learning_rate_q", "learning_rate_policy", "learning_rate_alpha"), 5e-3)
    config: dict[str, Any] = {
        **{"random_collect_size": 128, "collect": {"n_sample": 16}},
        "model": {"actor_head_hidden_size": 32, "critic_head_hidden_size": 32},
        "dynamics": {**sizes, "learning_rate": 0.01, "fit_freq": 64},
        "rollout": {"batch_size": 600, "random_action_share": 0.5},
        "learn": {**rates, "update_per_collect": 24, "batch_size": 64, "real_ratio": 0.01},
    }
    policy, box = MBPOPolicy(config), {"low": -2.0, "high": 6.0}
    datamodule = ReplayDataModule(TargetEnv, env_kwargs=box, num_envs=8, seed=0, max_env_step=320)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    x = torch.linspace(-1, 1, 101)[:, None]
    error = (policy.eval_mode.forward(x)["action"] - (2 + 2 * x)) / 4  # in halves of the box
    assert float(error.square().mean()) < 0.02


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamics": {"elite_num": 4}}, r"dynamics.elite_num must be in \[1, 3\]"),
        ({"dynamics": {"fit_freq": 0}}, "dynamics.fit_freq must be >= 1"),
        ({"dynamics": {"ensemble_num": 0}}, "dynamics.ensemble_num must be >= 1"),
        ({"dynamics": {"batch_size": 0}}, "dynamics.batch_size must be >= 1"),
        ({"dynamics": {"hidden_size_list": []}}, "dynamics.hidden_size_list must be widths >= 1"),
        ({"dynamics": {"learning_rate": 0.0}}, "dynamics.learning_rate must be > 0"),
        ({"dynamics": {"weight_decay": -1.0}}, "dynamics.weight_decay must be >= 0"),
        ({"dynamics": {"holdout_ratio": 1.0}}, r"dynamics.holdout_ratio must be in \(0, 1\)"),
        ({"dynamics": {"max_epochs_since_update": -1}}, "dynamics.max_epochs_since_update must be >= 0"),
        ({"dynamics": {"max_epochs": 0}}, "dynamics.max_epochs must be >= 1 or None"),
        ({"dynamics": {"import_names": ["json"]}}, "dynamics.import_names must be empty without"),
        ({"dynamics": {"terminated_fn": "no_module.f"}}, "dynamics.terminated_fn must be the dotted path"),
        ({"rollout": {"length": [[0, 0]]}}, "rollout.length must be pairs"),
        ({"rollout": {"length": [[10, 1], [10, 2]]}}, "rollout.length must be pairs .* increasing env steps"),
        ({"rollout": {"random_action_share": 1.5}}, r"rollout.random_action_share must be in \[0, 1\]"),
        ({"rollout": {"retain": 0}}, "rollout.retain must be >= 1"),
        ({"rollout": {"batch_size": 1}}, "rollout.batch_size must be >= 2, dynamics.elite_num"),
        ({"learn": {"real_ratio": 1.0}}, r"learn.real_ratio must be in \(0, 1\)"),
        ({"learn": {"batch_size": 1}}, "learn.batch_size must be >= 2"),
        ({"other": {"replay_buffer": {"type": "naive"}}}, "other.replay_buffer.type must be 'imagination'"),
        ({"nstep": 3}, "nstep must be 1: imagined transitions are single steps, got 3"),
        ({"nstep": None}, "nstep must be 1"),  # a buffer would sum 3 rewards
        ({"priority": True}, "priority must be False"),
        ({"reward_model": {"type": "rnd"}}, "reward_model.type must be None"),
        ({"model": {"obs_shape": (3, 8, 8)}}, "model.obs_shape must be that of a vector"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_fit_without_a_replay_buffer_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="datamodule must be a ReplayDataModule"):
        make_trainer().fit(make(), [lessons(8)])


def test_the_learner_state_has_the_ensemble() -> None:
    policy, other = make(), make()
    policy.learn_dynamics(lessons(40))
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    for one, same in zip(policy.dynamics.state_dict().values(), other.dynamics.state_dict().values(), strict=True):
        assert torch.equal(one, same)
