"""Scenarios of VMAS as tensor envs of a team."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_ding.envs import make_vector_env
from lightning_ding.envs.named import find_env
from lightning_ding.envs.teams import VmasTeam
from lightning_ding.envs.tensor.reader import TensorEnv

pytestmark = pytest.mark.filterwarnings("ignore")


def made(scenario: str, **arguments: Any) -> TensorEnv:
    pytest.importorskip("vmas")
    return TensorEnv(VmasTeam(scenario, num_envs=4, max_steps=7, **arguments))


def actions(env: TensorEnv, steps: int) -> list[torch.Tensor]:
    generator, space = torch.Generator().manual_seed(0), env.single_action_space
    if hasattr(space, "nvec"):
        counts = space.nvec.tolist()
        drawn = [[torch.randint(n, (4,), generator=generator) for n in counts] for _ in range(steps)]
        return [torch.stack(one, 1) for one in drawn]
    return [torch.rand(4, *space.shape, generator=generator) * 2 - 1 for _ in range(steps)]  # type: ignore[misc]


def test_without_the_package_one_error_says_what_to_install() -> None:
    try:
        import vmas  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="needs the package 'vmas': pip install vmas"):
            find_env("vmas:balance")
    else:
        with pytest.raises(ValueError, match="did you mean 'vmas:balance'"):
            find_env("vmas:balnce")


def test_rewards_and_returns_are_those_of_the_scenario() -> None:
    env = made("balance", team_reward="sum")
    env.reset(seed=0)
    total = torch.zeros(4, 3)
    for number, action in enumerate(actions(env, 7), 1):
        step = env.step(action)
        assert torch.equal(step.reward, step.next_obs["agent_reward"].sum(1))
        total += step.next_obs["agent_reward"]
        assert torch.allclose(torch.stack([step.info[f"return_{one}"] for one in env.env.agents], 1), total)
        assert step.truncated.tolist() == [number == 7] * 4
    assert torch.equal(step.obs["agent_reward"], torch.zeros(4, 3))
    assert not torch.equal(step.obs["agent_state"], step.next_obs["agent_state"])


@pytest.mark.parametrize(
    ("scenario", "arguments"), [("balance", {}), ("simple_spread", {"continuous_actions": False}), ("football", {})]
)
def test_saved_state_continues_to_the_last_bit_whatever_other_envs_draw(scenario: str, arguments: Any) -> None:
    env, other = made(scenario, **arguments), made(scenario, **arguments)
    env.reset(seed=0)
    other.reset(seed=1)
    for action in actions(env, 5):
        env.step(action)
    state = env.state_dict()
    expected = [env.step(action) for action in actions(env, 9)]
    other.load_state_dict(state)
    made(scenario, **arguments).reset(seed=2)
    for now, then in zip([other.step(action) for action in actions(env, 9)], expected, strict=True):
        assert torch.equal(now.reward, then.reward)
        assert all(torch.equal(now.obs[name], then.obs[name]) for name in then.obs)


def test_envs_that_end_alone_start_alone() -> None:
    env = made("balance")
    env.reset(seed=0)
    env.env.env.steps[1] = 6  # the time of env 1 is up after the next step
    step = env.step(torch.zeros(4, 3, 2))
    assert step.truncated.tolist() == [False, True, False, False]
    kept = [0, 2, 3]
    assert torch.equal(step.obs["agent_state"][kept], step.next_obs["agent_state"][kept])
    assert not torch.equal(step.obs["agent_state"][1], step.next_obs["agent_state"][1])


def test_observations_of_different_sizes_are_filled_up() -> None:
    env = made("simple_speaker_listener")
    seen = env.reset(seed=0)["agent_state"]
    assert seen.shape == (4, 2, 11)
    assert not seen[:, 0, 3:].any()
    env.step(actions(env, 1)[0])


def test_vector_env_by_name() -> None:
    pytest.importorskip("vmas")
    env = make_vector_env("vmas:balance", 3, mode="tensor", env_kwargs={"max_steps": 2, "n_agents": 4}, seed=0)
    obs, _ = env.reset(seed=0)
    assert obs["agent_state"].shape[:2] == (3, 4)
    env.step(env.action_space.sample())
    assert env.step(env.action_space.sample())[3].all()
    env.close()
