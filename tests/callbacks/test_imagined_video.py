"""Videos of imagined frames: their layout, that predictions use actions alone, and a run that writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from numpy.typing import NDArray
from torch.testing import assert_close

from lightning_ding.callbacks import ImaginedVideo
from lightning_ding.callbacks.imagined_video import compare
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy, DreamerV3Policy
from tests.algorithms.table import DREAMER

Config = dict[str, Any]
SIDE, LENGTH = 16, 12


class MovingSquare(gym.Env[NDArray[np.uint8], np.int64]):
    """A white square of 4 x 4 pixels that an action moves by two pixels to the left or to the right."""

    observation_space = spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Config | None = None) -> tuple[NDArray[np.uint8], Config]:
        super().reset(seed=seed)
        self._place, self._step = int(self.np_random.integers(0, SIDE // 2 - 1)) * 2, 0
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, Config]:
        self._place = int(np.clip(self._place + (2 if action == 1 else -2), 0, SIDE - 4))
        self._step += 1
        return self._frame(), float(self._place == 0), False, self._step == LENGTH, {}

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.zeros((3, SIDE, SIDE), dtype=np.uint8)
        frame[:, 6:10, self._place : self._place + 4] = 255
        return frame


def make(**changes: Any) -> Any:
    learn = {**DREAMER["learn"], **changes.pop("learn", {})}
    model = {**DREAMER["model"], "depth": 4, **changes.pop("model", {})}
    return DreamerV3Policy({**DREAMER, "model": model, "learn": learn, "learn_unroll_len": 8, **changes})


def test_a_video_stacks_frames_predictions_and_differences_below_a_bar() -> None:
    real, predicted = torch.zeros(3, 2, 1, 4, 5), torch.zeros(3, 2, 1, 4, 5)
    real[2, 1, 0, 0, 0], predicted[2, 1, 0, 0, 0], predicted[2, 1, 0, 0, 1] = 1.0, 0.4, 7.0
    video = compare(real, predicted, context=2)
    assert video.shape == (2, 3, 3, 14, 7)
    assert video.dtype == np.uint8
    assert video[0, :, :, 0, 0].tolist() == [[0, 255, 0], [0, 255, 0], [255, 0, 0]]  # green while frames are seen
    assert (video[..., 5:] == 128).all()  # the grey line
    assert video[1, 2, :, 2, 0].tolist() == [255] * 3
    assert video[1, 2, :, 6, :3].tolist() == [[102, 255, 0]] * 3  # 0.4 of 255; clipped; nothing
    assert video[1, 2, 0, 10, :3].tolist() == [51, 255, 128]  # (0.4 - 1 + 1) / 2, (1 - 0 + 1) / 2 and 1 / 2 of 255


def test_the_last_of_stacked_frames_is_shown() -> None:
    frames = torch.linspace(0, 1, 4).view(1, 1, 4, 1, 1).expand(1, 1, 4, 3, 3)
    assert (compare(frames, frames, 1)[0, 0, :, 2, :3] == 255).all()


def sequences(seed: int = 0, steps: int = 8, size: int = 2) -> Config:
    rng = np.random.default_rng(seed)
    frames = torch.from_numpy(rng.integers(0, 256, (steps + 1, size, 3, SIDE, SIDE), dtype=np.uint8))
    ends = {name: torch.zeros(steps, size, dtype=torch.bool) for name in ("terminated", "truncated")}
    return {
        **{"obs": frames[:-1], "next_obs": frames[1:], "reward": torch.ones(steps, size), **ends},
        **{"action": torch.from_numpy(rng.integers(0, 2, (steps, size))), "mask": torch.ones(steps, size).bool()},
        **{"is_first": torch.ones(size).bool(), "recurrent_state": torch.zeros(size, 16 + 3 + 2)},
    }


def test_predictions_after_the_context_come_from_the_actions_alone() -> None:
    torch.manual_seed(0)
    policy: Any = make(model={"obs_shape": (3, SIDE, SIDE), "action_shape": 2})
    data = sequences()
    real, predicted = (one[0] for one in policy.predict_open_loop(data, context=3))
    assert real.shape == predicted.shape == (9, 2, 3, SIDE, SIDE)
    assert_close(real, torch.cat([data["obs"], data["next_obs"][-1:]]) / 255)
    later = {**data, "obs": data["obs"].clone(), "next_obs": data["next_obs"].clone()}
    later["obs"][3:], later["next_obs"][2:] = 0, 0
    assert torch.equal(policy.predict_open_loop(later, context=3)[1][0], predicted)
    assert not torch.equal(policy.predict_open_loop(later, context=4)[1][0], predicted)
    moved = {**data, "action": data["action"].clone()}
    moved["action"][5] = 1 - data["action"][5]  # leads to row 6
    other = policy.predict_open_loop(moved, context=3)[1][0]
    assert torch.equal(other[:6], predicted[:6])
    assert not torch.equal(other[6], predicted[6])
    with pytest.raises(ValueError, match=r"context must be in \[1, 8\], got 9"):
        policy.predict_open_loop(data, context=9)


def fit(folder: Path, callbacks: list[Any], env: Any = MovingSquare) -> Any:
    seed_everything(0)
    policy = make()
    options: Config = {"logger": CSVLogger(folder), "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", callbacks=callbacks, limit_val_batches=0, **options)
    trainer.fit(policy, ReplayDataModule(env, num_envs=1, seed=0, max_env_step=64))
    return policy


def test_a_run_writes_videos_and_learns_the_same(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    policy = fit(tmp_path / "with", [ImaginedVideo(every=3, context=3, sequences=2)])
    files = sorted((tmp_path / "with").rglob("*.gif"))
    assert len(files) == policy.progress.train_iter // 3 >= 1
    with Image.open(files[-1]) as film:
        assert (film.size, film.n_frames) == ((2 * (SIDE + 2), 3 * SIDE + 2), 9)  # type: ignore[attr-defined]
    other = fit(tmp_path / "without", [])
    for name, value in policy.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_policies_without_a_world_model_and_observations_without_images_are_refused(tmp_path: Path) -> None:
    trainer = Trainer(accelerator="cpu", callbacks=[ImaginedVideo()], logger=CSVLogger(tmp_path))
    with pytest.raises(
        ValueError, match=r"policy must be one with a world model \(predict_open_loop\), got 'DQNPolicy'"
    ):
        trainer.fit(DQNPolicy({}), ReplayDataModule("CartPole-v1", num_envs=1, max_env_step=8))
    with pytest.raises(ValueError, match="observations must be images, or a dict with images"):
        fit(tmp_path, [ImaginedVideo(every=1)], env="CartPole-v1")


@pytest.mark.parametrize("name", ["every", "context", "sequences", "fps"])
def test_arguments_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >"):
        ImaginedVideo(**{name: 0})
