"""Masks of legal actions: the wrapper that adds them, and the checks that find wrong ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from lightning import Trainer

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.action_masks import check_mask_space, mask_sizes
from lightning_ding.envs.stepper import EnvStepper
from lightning_ding.policy import PPOPolicy

MODES = pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])


class MaskedEnv(gym.Env[Any, Any]):
    """Three actions, of which action ``step % 3`` is legal; an episode has two steps.

    Args:
        place: Where the mask is: ``info``, ``method``, ``key`` (``action_masks``), ``deep`` or ``obs``.
        dead: Step whose mask has no legal action, if any.
        size: Entries of the mask in an observation.
    """

    def __init__(self, place: str = "obs", dead: int | None = None, size: int = 3) -> None:
        self.place, self.dead, self.size = place, dead, size
        self.action_space = spaces.Discrete(3)
        plain, mask = spaces.Box(0, 9, (2,), np.float32), spaces.Box(0, 1, (size,), np.int8)
        dicts: dict[str, dict[str, Any]] = {"key": {"action_masks": mask}, "obs": {"action_mask": mask}}
        dicts["deep"] = {"inner": spaces.Dict({"action_mask": mask})}
        self.observation_space: Any = spaces.Dict({"x": plain, **dicts[place]}) if place in dicts else plain
        if place == "method":
            self.action_masks = self._mask

    def _mask(self) -> Any:
        legal = np.zeros(self.size, np.int8)
        if self.count != self.dead:
            legal[self.count % 3] = 1
        return legal

    def _answer(self) -> tuple[Any, dict[str, Any]]:
        obs: Any = np.full(2, self.count, np.float32)
        masks = {"key": {"action_masks": self._mask()}, "obs": {"action_mask": self._mask()}}
        masks["deep"] = {"inner": {"action_mask": self._mask()}}
        obs = {"x": obs, **masks[self.place]} if self.place in masks else obs
        return obs, {"action_mask": self._mask()} if self.place == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._answer()

    def step(self, action: Any) -> Any:
        assert self._mask()[action] == 1, f"action {action} is illegal in step {self.count}"
        self.count += 1
        obs, info = self._answer()
        return obs, 1.0, self.count == 2, False, info


@pytest.mark.parametrize("place", ["info", "method"])
def test_wrapper_adds_the_mask_so_that_a_policy_takes_legal_actions_only(place: str, tmp_path: Any) -> None:
    data = RolloutDataModule(MaskedEnv, 2, wrappers=["action_mask"], env_kwargs={"place": place}, max_env_step=32)
    cfg = {"collect": {"n_sample": 16}, "learn": {"batch_size": 8}, "eval": {"evaluator": {"n_episode": 2}}}
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*gives a mask")
        Trainer(accelerator="cpu", default_root_dir=tmp_path, enable_model_summary=False, **quiet).fit(
            PPOPolicy(cfg), data
        )
    assert set(data.single_observation_space.spaces) == {"observation", "action_mask"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("place", "named", "cure"),
    [
        ("info", "info['action_mask']", "the wrapper 'action_mask' adds it"),
        ("method", "the method action_masks()", "the wrapper 'action_mask' adds it"),
        ("key", "the entry action_masks", "rename or move it to 'action_mask'"),
        ("deep", "the entry inner.action_mask", "rename or move it to 'action_mask'"),
    ],
)
def test_mask_in_a_place_that_policies_do_not_read_is_warned_of(place: str, named: str, cure: str) -> None:
    with pytest.warns(UserWarning, match="gives a mask of legal actions as") as found:
        make_vector_env(MaskedEnv, 2, env_kwargs={"place": place}, check_api=True).close()
    (message,) = {str(one.message) for one in found}
    assert f"as {named}, but policies read" in message
    assert message.endswith(cure)


@MODES
def test_mask_without_a_legal_action_is_an_error_unless_the_episode_is_over(autoreset: Any) -> None:
    def steps(dead: int) -> None:
        stepper = EnvStepper(make_vector_env(MaskedEnv, 2, autoreset=autoreset, env_kwargs={"dead": dead}))
        stepper.reset()
        for _ in range(6):
            stepper.step(stepper.obs["action_mask"].argmax(1))

    steps(2)  # the terminal observation
    with pytest.raises(ValueError, match="env 0 gave an action_mask without a legal action"):
        steps(1)
    with pytest.raises(ValueError, match="env 0 gave an action_mask without a legal action"):
        steps(0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_mask_of_another_length_is_refused_when_envs_are_made(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"the entry action_mask .* must be of shape \(3,\), one entry for"):
        make_vector_env(MaskedEnv, 2, mode, env_kwargs={"size": 4})


def test_masks_of_several_dimensions_are_side_by_side() -> None:
    assert mask_sizes(spaces.MultiBinary(2)) == (2, 2)
    assert mask_sizes(spaces.Dict({"action_type": spaces.Discrete(4), "action_args": spaces.Box(0, 1)})) == (4,)
    right = spaces.Dict({"action_mask": spaces.Box(0, 1, (5,), np.int8)})
    check_mask_space(right, spaces.MultiDiscrete([3, 2]))
    with pytest.raises(ValueError, match="action_mask"):
        check_mask_space(right, spaces.MultiDiscrete([3, 3]))


def test_each_dimension_needs_a_legal_action() -> None:
    class TwoDimensions(gym.Env[Any, Any]):
        observation_space = spaces.Dict({"action_mask": spaces.Box(0, 1, (5,), np.int8)})
        action_space = spaces.MultiDiscrete([3, 2])

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"action_mask": np.array([1, 1, 1, 0, 0], np.int8)}, {}

    make: Callable[[], Any] = TwoDimensions
    with pytest.raises(ValueError, match="without a legal action"):
        EnvStepper(make_vector_env(make, 1)).reset()


def test_wrapper_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="'info' for an env without action_masks"):
        make_vector_env(MaskedEnv, 1, wrappers=[{"action_mask": {"source": "method"}}])
    with pytest.raises(ValueError, match="action_space must be Discrete"):
        make_vector_env("Pendulum-v1", 1, wrappers=["action_mask"])
    with pytest.raises(ValueError, match="info must be one with the entry 'action_mask'"):
        make_vector_env("CartPole-v1", 1, wrappers=["action_mask"]).reset()
