"""MuJoCo's simulations continue from a saved state to the last bit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.envs import NotPlainError, env_state, load_env_state, make_vector_env
from tests.envs.state.test_state import check_continues, make, through_a_file

mujoco = pytest.importorskip("mujoco")

XML = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="5 5 1"/>
    <body name="ball" pos="0 0 0.3"><freejoint/><geom size="0.1" mass="{mass}"/></body>
    <body name="arm" pos="0.15 0 0.6"><joint name="hinge" axis="0 1 0"/><geom type="capsule" size="0.04 0.2"/></body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
  {end}
</mujoco>
"""


class Ball(gym.Env[Any, Any]):
    """Draws mass and gravity for each episode, and observes where bodies were before the last step."""

    def __init__(self, mass: float = 1.0, end: str = "", has_view: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-1e9, 1e9, (6,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.model = mujoco.MjModel.from_xml_string(XML.format(mass=mass, end=end))
        self.data = mujoco.MjData(self.model)
        if has_view:
            self.angle = self.data.qpos[-1:]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.model.body_mass[1] = self.np_random.uniform(0.5, 2.0)
        self.model.opt.gravity[2] = -self.np_random.uniform(5.0, 15.0)
        self.model.opt.density = self.np_random.uniform(0.0, 5.0)
        self.steps = 0
        return self._look(self.data.xipos), {}

    def step(self, action: Any) -> Any:
        before = self.data.xipos.copy()
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data)
        self.steps += 1
        return self._look(before), float(self.data.qvel[2]), self.steps == 40, False, {}

    def _look(self, positions: Any) -> Any:
        return np.concatenate([self.data.qpos[:3], positions[1]])


@pytest.mark.parametrize("env", [Ball, "HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5"])
def test_simulations_continue_from_a_saved_state(env: Any) -> None:
    check_continues(make(env), make(env, seed=2), before=33, steps=30)


def test_simulations_in_env_processes_continue_from_a_saved_state() -> None:
    first, second = (make_vector_env("Ant-v5", 1, "async", seed=seed) for seed in (1, 2))
    check_continues(first, second, before=25, steps=30)


def test_limit_of_the_episode_is_part_of_the_state() -> None:
    first, second = (make_vector_env("Pusher-v5", 1, seed=seed) for seed in (1, 2))
    action = np.zeros((1, 7), dtype=np.float32)
    for _ in range(97):
        first.step(action)
    load_env_state(second, through_a_file(env_state(first)))
    assert [bool(second.step(action)[3][0]) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "other", [{"end": "<sensor><jointpos joint='hinge'/></sensor>"}, {"end": "<keyframe><key time='1'/></keyframe>"}]
)
def test_state_of_another_model_is_refused(other: dict[str, str]) -> None:
    state = env_state(make(Ball))
    second = make_vector_env(lambda: Ball(**other), 3, seed=1)  # type: ignore[arg-type]
    state["made"] = env_state(second)["made"]
    with pytest.raises(NotPlainError, match=r"Ball: Ball.model was another model when saved"):
        load_env_state(second, state)


def test_view_of_a_simulation_is_refused() -> None:
    env = make(lambda: Ball(has_view=True))
    with pytest.raises(NotPlainError, match=r"shares memory with"):
        env_state(env)


def test_simulation_with_sleeping_bodies_is_refused() -> None:
    if not hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP"):
        pytest.skip("this version of MuJoCo has none")
    env = make(Ball)
    env.envs[0].unwrapped.model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_SLEEP)  # type: ignore[attr-defined]
    with pytest.raises(NotPlainError, match=r"Ball: Ball.data is a simulation of MuJoCo in which bodies can sleep"):
        env_state(env)
