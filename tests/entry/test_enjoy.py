"""The command ``enjoy``: a window, or a video of each episode."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from lightning_ding.entry.cli import main
from lightning_ding.entry.enjoy import Film, OneOfBatch, _record, enjoy, make_env, resized
from lightning_ding.entry.trained import as_single, env_of_run
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.tensor import CartPole as BatchedCartPole
from tests.conftest import MakeTrainer
from tests.entry.trained_runs import VECTOR_ENV, VECTOR_WRAPPER, train


@pytest.fixture
def ckpt(make_trainer: MakeTrainer, tmp_path: Path) -> Path:
    return train(make_trainer, tmp_path, eval_env_kwargs={"max_episode_steps": 5})


def test_window_shows_the_episodes(ckpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert enjoy(ckpt, episodes=2) == [(5.0, None), (5.0, None)]


def test_command_writes_a_gif_of_every_frame(ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "videos" / "cartpole.gif"
    main(["enjoy", str(ckpt), "--video", str(file)])
    assert capsys.readouterr().out == f"episode 0: return 5.00, written: {file}\n"
    with Image.open(file) as image:
        assert image.size == (600, 400)
        assert image.n_frames in (5, 6)  # type: ignore[attr-defined]  # equal ones in a row are one


def test_mp4_of_each_episode_has_every_frame(ckpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", types.ModuleType("moviepy"))
    monkeypatch.setitem(sys.modules, "moviepy.video", types.ModuleType("moviepy.video"))
    monkeypatch.setitem(sys.modules, "moviepy.video.io", types.ModuleType("moviepy.video.io"))
    clips: Any = types.ModuleType("moviepy.video.io.ImageSequenceClip")
    clips.ImageSequenceClip = CountedFrames
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ImageSequenceClip", clips)
    found = enjoy(ckpt, episodes=2, video=str(tmp_path / "a.mp4"))
    assert found == [(5.0, tmp_path / "a-0.mp4"), (5.0, tmp_path / "a-1.mp4")]
    assert [file.read_text() for _, file in found if file] == ["6 frames", "6 frames"]
    assert sorted(path.name for path in tmp_path.glob("*.mp4")) == ["a-0.mp4", "a-1.mp4"]


@pytest.mark.slow
def test_mp4_holds_every_frame(ckpt: Path, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")  # of the extra `video`
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    main(["enjoy", str(ckpt), "--video", str(tmp_path / "a.mp4")])
    frames, seconds = ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))
    assert frames == 6  # of 5 steps and the reset
    assert seconds == pytest.approx(6 / 50, abs=0.03)  # CartPole has 50 steps a second
    assert next(ffmpeg.read_frames(str(tmp_path / "a.mp4")))["size"] == (600, 400)


class Numbered(gym.Env[Any, Any]):
    """Episodes of 25 steps at 50 a second, whose frames have the number of the step as their colour."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)
        self.steps, self.drawn = 0, list[int]()

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 25, False, {}

    def render(self) -> Any:
        self.drawn.append(self.steps)
        return np.full((4, 8, 3), 10 * self.steps, np.uint8)


RIGHT: Any = SimpleNamespace(actor=lambda **_: lambda obs: 1, acts_on_reward=False)


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
@pytest.mark.parametrize(
    ("fps", "seconds", "steps", "milliseconds"),
    [
        (None, None, list(range(26)), 20),
        (20, None, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25], 50),  # at 0, 2.5, 5, 7.5 ... steps
        (20, 0.25, [0, 3, 5, 8, 10], 50),
        (None, 0.1, [0, 1, 2, 3, 4], 20),
        (25, 0.01, [0], None),  # one frame at least
    ],
)
def test_video_has_the_frames_per_second_and_the_length_that_are_asked_for(
    suffix: str, fps: float | None, seconds: float | None, steps: list[int], milliseconds: int | None, tmp_path: Path
) -> None:
    env = Numbered()
    ((total, file),) = _record(RIGHT, Film(env, fps=fps, seconds=seconds), False, 0, [tmp_path / f"x{suffix}"])
    assert total == 25.0  # of the whole episode
    assert env.drawn == steps  # other frames are not drawn
    with Image.open(str(file)) as image:
        shown: Any = image
        assert shown.n_frames == len(steps)
        for number, step in enumerate(steps):
            shown.seek(number)
            shown.load()
            assert np.asarray(shown.convert("L")).mean() == pytest.approx(10 * step, abs=3)
            assert milliseconds is None or shown.info["duration"] == milliseconds


def test_each_episode_has_a_video_of_its_own(tmp_path: Path) -> None:
    env = Numbered()
    _record(RIGHT, Film(env, fps=2), False, 0, [tmp_path / "a.gif", tmp_path / "b.gif"])
    assert env.drawn == [0, 25, 0, 25]
    for name in ("a.gif", "b.gif"):
        with Image.open(tmp_path / name) as image:
            assert image.n_frames == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "expected"), [(None, (8, 4)), (4, (4, 2)), (6, (6, 4)), (16, (16, 8)), (1, (1, 2))])
def test_width_keeps_the_proportions_and_gives_an_even_height(
    width: int | None, expected: tuple[int, int], tmp_path: Path
) -> None:
    _record(RIGHT, Film(Numbered(), width), False, 0, [tmp_path / "x.webp"])
    with Image.open(tmp_path / "x.webp") as image:
        assert image.size == expected


def test_smaller_frame_has_the_colours_of_the_larger_one() -> None:
    frame = np.zeros((40, 40, 3), np.uint8)
    frame[:, 20:] = (200, 100, 50)
    small = resized(frame, 10)
    assert small[:, :3].max() <= 3
    np.testing.assert_allclose(small[5, 8], (200, 100, 50), atol=3)


def test_command_writes_a_small_webp(ckpt: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.webp"
    main(["enjoy", str(ckpt), "--video", str(file), "--width", "60", "--fps", "25", "--seconds", "0.08"])
    with Image.open(file) as image:
        assert (image.format, image.size) == ("WEBP", (60, 40))
        assert image.n_frames == 2  # type: ignore[attr-defined]


class WithoutGL(Numbered):
    """An env that draws as MuJoCo does on a machine without a display and without a library for it."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.observation_space = gym.make("CartPole-v1").observation_space

    def render(self) -> Any:
        raise RuntimeError("no OpenGL platform library\nand more")


def test_env_that_has_no_way_to_draw_ends_the_command_in_one_line(
    ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(SystemExit) as end:
        main(["enjoy", str(ckpt), "--env_id", "tests.entry.test_enjoy.WithoutGL", "--video", str(tmp_path / "x.gif")])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: the env cannot draw a video: no OpenGL platform library; MUJOCO_GL is 'glfw'; set before"
    )


def test_mujoco_can_draw_without_a_display(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ckpt: Path) -> None:
    chosen: list[str] = []
    monkeypatch.setattr("lightning_ding.entry.enjoy.choose_mujoco_gl", lambda: chosen.append("egl"))
    enjoy(ckpt, shown=False)
    assert chosen == []
    enjoy(ckpt, video=str(tmp_path / "x.gif"))
    assert chosen == ["egl"]


@pytest.mark.parametrize(
    ("env_kwargs", "render_mode", "camera"),
    [({}, "rgb_array", "track"), ({"camera_name": "other"}, "rgb_array", "other"), ({}, "human", None)],
)
def test_camera_of_a_video_follows_a_robot(env_kwargs: dict[str, str], render_mode: str, camera: str | None) -> None:
    pytest.importorskip("mujoco")
    env: Any = make_env(env_of_run({"env_id": "HalfCheetah-v5", "env_kwargs": env_kwargs}), render_mode)
    assert env.unwrapped.camera_name == camera
    env.close()


class CountedFrames:
    """The part of moviepy that gymnasium uses."""

    def __init__(self, frames: list[Any], fps: float) -> None:
        self.frames = frames

    def write_videofile(self, path: str, logger: Any = None) -> None:
        Path(path).write_text(f"{len(self.frames)} frames")


def test_wrappers_of_the_run_are_used(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    wrapper = {"class_path": "gymnasium.wrappers.TimeLimit", "init_args": {"max_episode_steps": 2}}
    ckpt = train(make_trainer, tmp_path, wrappers=[wrapper])
    ((value, _),) = enjoy(ckpt, video=str(tmp_path / "x.gif"), stochastic=True)
    assert value == 2.0


@pytest.mark.parametrize("arguments", [{"env_id": VECTOR_ENV}, {"wrappers": [VECTOR_WRAPPER]}])
def test_native_vector_env_cannot_be_shown_but_another_env_can(
    arguments: dict[str, Any], make_trainer: MakeTrainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ckpt = train(make_trainer, tmp_path, mode="native", **arguments)
    options = ["enjoy", str(ckpt), "--video", str(tmp_path / "x.gif")]
    with pytest.raises(SystemExit) as end:
        main(options)
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(
        "error: env_id must be a single env, because the vector env or the vector wrappers of this run"
    )
    assert line.endswith(f"name one with --env_id, got {arguments.get('env_id', 'CartPole-v1')!r}")
    main([*options, "--env_id", "CartPole-v1"])
    assert (tmp_path / "x.gif").is_file()


def test_native_vector_env_that_is_registered_as_a_single_one_too_is_shown(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    ckpt = train(make_trainer, tmp_path, mode="native", wrappers=["flatten"], env_kwargs={"max_episode_steps": 4})
    assert enjoy(ckpt, video=str(tmp_path / "x.gif")) == [(4.0, tmp_path / "x.gif")]


class Blind(gym.Env[Any, Any]):
    """An env that cannot be drawn."""

    def __init__(self, render_mode: str | None = None) -> None:
        inner = gym.make("CartPole-v1")
        self.observation_space, self.action_space = inner.observation_space, inner.action_space


def test_mistakes_are_one_line(
    ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setitem(sys.modules, "moviepy", None)
    cases = [
        (["missing.ckpt"], "ckpt must be the path of a checkpoint, or zoo:NAME, got 'missing.ckpt'"),
        ([str(ckpt), "--video", "x.avi"], "video must be a path that ends in .mp4, .gif or .webp, got 'x.avi'"),
        ([str(ckpt), "--width", "9"], "width must be left out without a video, got 9"),
        ([str(ckpt), "--video", "x.gif", "--width", "0"], "width must be >= 1, got 0"),
        ([str(ckpt), "--video", "x.gif", "--fps", "60"], "fps must be above 0 and at most the 50 of the env, got 60"),
        ([str(ckpt), "--video", "x.gif", "--fps", "0"], "fps must be above 0 and at most the 50 of the env, got 0"),
        ([str(ckpt), "--video", "x.gif", "--seconds", "0"], "seconds must be > 0, got 0"),
        ([str(ckpt), "--video", "x.mp4"], "this needs moviepy: pip install 'lightning_ding[video]'"),
        ([str(ckpt), "--episodes", "0"], "episodes must be >= 1, got 0"),
        ([str(ckpt), "--env_id", "tests.entry.test_enjoy.Blind"], "the env must have the render mode 'human'"),
        ([str(ckpt)], "a window needs a screen"),
    ]
    for options, message in cases:
        with pytest.raises(SystemExit) as end:
            main(["enjoy", *options])
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2
        assert line.startswith("error: ")
        assert message in line, line


class Drawn(BatchedCartPole):
    """A batch of tensor envs that draws its first env."""

    def render(self, mode: str = "rgb_array") -> Any:
        return np.full((16, 16, 3), 10 * int(self.elapsed[0]), np.uint8)


def test_one_env_of_a_batch_is_shown_until_its_last_observation(tmp_path: Path) -> None:
    batch = make_vector_env(Drawn, 1, "tensor")
    env, right = OneOfBatch(batch, "rgb_array"), SimpleNamespace(actor=lambda **_: lambda obs: 1, acts_on_reward=False)
    ((total, file),) = _record(right, Film(env), False, 0, [tmp_path / "team.gif"])  # type: ignore[arg-type]
    obs, ended, steps = env.reset(seed=0)[0], False, 0
    while not ended:
        obs, _, ended, cut, _ = env.step(1)
        steps += 1
    assert (total, cut) == (steps, False)
    assert abs(obs[2]) > 0.2  # of the pole that fell, not of a new one
    with Image.open(str(file)) as image:
        assert image.n_frames == steps  # type: ignore[attr-defined]  # that of the last step is the one before it
    env.close()


def test_scenario_of_vmas_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("vmas")
    described = as_single(env_of_run({"env_id": "vmas:balance", "mode": "tensor", "env_kwargs": {"max_steps": 2}}))
    env = make_env(described, "rgb_array")
    still = SimpleNamespace(actor=lambda **_: lambda obs: np.zeros((3, 2), np.float32), acts_on_reward=False)
    ((_, file),) = _record(still, Film(env), False, 0, [tmp_path / "team.gif"])  # type: ignore[arg-type]
    with Image.open(str(file)) as image:
        assert image.size == (700, 700)
    env.close()
