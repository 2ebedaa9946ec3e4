"""Videos and figures of evaluations: contents, timing and destination."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from matplotlib import image as matplotlib_image
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from lightning_ding.envs import FaultBarrier
from lightning_ding.envs.process.vector_env import ProcessVectorEnv
from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker import InteractionSerialEvaluator
from lightning_ding.worker.evaluator.plan import EpisodePlan
from lightning_ding.worker.evaluator.rendering import LoggerMedia
from lightning_ding.worker.evaluator.video import MAX_FRAMES, MAX_SIDE, choose_mujoco_gl, gif, returns_figure
from tests.toys.envs import CountingEnv

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


class FilmedEnv(CountingEnv):
    """A CountingEnv that draws 100 * number + 10 * length of the episode + step, all over a frame."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - as gymnasium has it
    shape = (2, 3, 3)

    def __init__(self, number: int = 0, lengths: Sequence[int] = (3,), render_mode: str | None = "rgb_array") -> None:
        super().__init__(number, lengths)
        self.render_mode = render_mode

    def render(self) -> Any:
        length = self.lengths[self._episode % len(self.lengths)]
        return np.full(self.shape, (100 * self.number + 10 * length + self._step) % 256, dtype=np.uint8)


class FailingEnv(FilmedEnv):
    """A FilmedEnv whose first episode fails in its second step."""

    def step(self, action: Any) -> Any:
        if self._episode == 0 and self._step == 1:
            raise OSError("gone")
        return super().step(action)


class FakeWriter:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.videos: list[tuple[str, Any, int, float]] = []
        self.figures: list[tuple[str, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Take a number."""

    def add_video(self, name: str, video: Any, step: int, fps: float) -> None:
        self.videos.append((name, video, step, fps))

    def add_figure(self, name: str, figure: Any, step: int, close: bool) -> None:
        assert not close
        self.figures.append((name, step))


def still_policy() -> EvalMode:
    def forward(obs: Any) -> dict[str, Any]:
        return {"action": torch.zeros(len(obs), dtype=torch.int64)}

    def nothing(*_: Any) -> Any:
        return None

    return EvalMode(forward, nothing, nothing, nothing, nothing, nothing)


def filmed_envs(
    lengths: Sequence[Sequence[int]], mode: AutoresetMode = AutoresetMode.DISABLED, **kwargs: Any
) -> VectorEnv:
    makers = [functools.partial(FilmedEnv, i, of_env, **kwargs) for i, of_env in enumerate(lengths)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def evaluator_of(env: VectorEnv, tb_logger: Any = None, **cfg: Any) -> Any:
    return InteractionSerialEvaluator(cfg, env, still_policy(), tb_logger)


def frames(video: Any) -> list[list[int]]:
    assert (video == video[..., :1, :1, :1]).all()
    return video[..., 0, 0, 0].tolist()  # type: ignore[no-any-return]


# ------------------------------------------------------------------ what is filmed


@pytest.mark.parametrize("mode", MODES)
def test_film_shows_what_the_policy_saw_in_each_episode(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(filmed_envs([(1, 3), (2,)], mode), render={"episodes": "all"})

    returns, _ = evaluator.run(range(3), video=True)

    # Env 0 runs an episode of 1 step, with return 1, and one of 3, with return 6; env 1 one of 2, with return 3.
    assert returns == [1, 3, 6]
    assert frames(evaluator.pop_video()) == [[10, 10, 10], [120, 121, 121], [30, 31, 32]]


@pytest.mark.parametrize("mode", MODES)
def test_film_is_of_the_first_episode_and_nothing_else_is_drawn(
    mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    draw = FilmedEnv.render

    def note(env: FilmedEnv) -> Any:
        drawn.append(env.number)
        return draw(env)

    monkeypatch.setattr(FilmedEnv, "render", note)
    evaluator = evaluator_of(filmed_envs([(2, 3), (2,)], mode))

    returns, _ = evaluator.run(range(3), video=True)

    assert returns == [3, 3, 6]
    assert frames(evaluator.pop_video()) == [[20, 21]]
    assert drawn == [0, 0]  # the two steps of the first episode, in env 0


def test_cancelled_evaluation_draws_no_more_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    evaluator = evaluator_of(filmed_envs([(2,), (2,), (2,)]), render={"episodes": "all"})

    def cancel(env: FilmedEnv) -> Any:
        drawn.append(env.number)
        evaluator.cancel_requested = True  # as the thread of a signal does
        return np.zeros(FilmedEnv.shape, dtype=np.uint8)

    monkeypatch.setattr(FilmedEnv, "render", cancel)

    returns, _ = evaluator.run(range(3), video=True)

    assert drawn == [0]
    assert np.isnan(returns).all()
    assert evaluator.pop_video() is None


def test_one_env_is_drawn_in_its_process() -> None:
    makers = [functools.partial(FilmedEnv, i, (3,)) for i in range(3)]
    env = ProcessVectorEnv(makers, AutoresetMode.DISABLED, num_workers=1, context="fork")
    try:
        env.reset(seed=[0, 1, 2])
        assert [env.render_one(i)[0, 0, 0] for i in (2, 1, 0)] == [230, 130, 30]
        evaluator = evaluator_of(env)
        evaluator.run(range(3), video=True)
        assert frames(evaluator.pop_video()) == [[30, 31, 32]]
    finally:
        env.close()


def test_signal_after_the_last_step_makes_no_video(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = evaluator_of(filmed_envs([(2,)]))
    record = EpisodePlan.record

    def cancel(plan: EpisodePlan, *args: Any) -> None:
        evaluator.cancel_requested = True
        record(plan, *args)

    monkeypatch.setattr(EpisodePlan, "record", cancel)

    assert evaluator.run(range(1), video=True) == ([3.0], [2])  # the evaluation is complete
    assert evaluator.pop_video() is None


class FatalError(Exception):
    """An error like MuJoCo's without a way to draw."""


def test_envs_that_cannot_draw_name_the_variable_of_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise FatalError("an OpenGL platform library has not been loaded into this process\nmore")

    monkeypatch.setattr(FilmedEnv, "render", fail)
    monkeypatch.setenv("MUJOCO_GL", "glfw")

    with pytest.raises(
        RuntimeError,
        match=r"cannot draw a video: an OpenGL platform .* this process; MUJOCO_GL is 'glfw'; set before .* egl needs",
    ):
        evaluator_of(filmed_envs([(1,)])).run(range(1), video=True)


def test_other_errors_of_drawing_are_those_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise FatalError("no picture")

    monkeypatch.setattr(FilmedEnv, "render", fail)

    with pytest.raises(FatalError, match=r"^no picture$"):
        evaluator_of(filmed_envs([(1,)])).run(range(1), video=True)


def test_slow_drawing_is_said_once_with_the_variable_of_mujoco(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    draw = FilmedEnv.render

    def slow(env: FilmedEnv) -> Any:
        now[0] += 0.25
        return draw(env)

    monkeypatch.setattr(FilmedEnv, "render", slow)
    monkeypatch.setattr("lightning_ding.worker.evaluator.video.time.monotonic", lambda: now[0])
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)

    evaluator_of(filmed_envs([(30,)])).run(range(1), video=True)

    (text,) = caplog.messages
    assert text.startswith(
        "the videos of evaluations are slow: a frame takes 0.25 s; a larger render_freq makes fewer;"
    )
    assert "; MUJOCO_GL is not set; set before Python starts, egl" in text


@pytest.mark.parametrize(
    ("environment", "libraries", "expected"),
    [
        ({}, ["EGL", "OSMesa"], "egl"),
        ({}, ["OSMesa"], "osmesa"),
        ({}, [], None),
        ({"DISPLAY": ":0"}, ["EGL"], None),
        ({"MUJOCO_GL": "glfw"}, ["EGL"], "glfw"),
    ],
)
def test_mujoco_draws_without_a_display_where_there_is_none(
    environment: dict[str, str], libraries: list[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: name if name in libraries else None)
    monkeypatch.setattr(sys, "platform", "linux")

    choose_mujoco_gl()

    assert os.environ.get("MUJOCO_GL") == expected


def test_film_leaves_episodes_with_a_fault_out() -> None:
    env = SyncVectorEnv([lambda: FaultBarrier(FailingEnv(0, (3, 2)))], autoreset_mode=AutoresetMode.DISABLED)
    evaluator = evaluator_of(env)

    evaluator.run(range(1), video=True)

    assert frames(evaluator.pop_video()) == [[20, 21]]  # nothing of the episode of 3 steps


def test_run_without_film_draws_nothing() -> None:
    evaluator = evaluator_of(filmed_envs([(2,)]))
    evaluator.run(range(1), video=True)
    evaluator.run(range(1))

    assert evaluator.pop_video() is None


def test_film_is_handed_out_once() -> None:
    evaluator = evaluator_of(filmed_envs([(2,)]))
    evaluator.run(range(1), video=True)

    assert [evaluator.pop_video() is None for _ in range(2)] == [False, True]


def test_film_is_no_larger_than_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilmedEnv, "shape", (4, 2 * MAX_SIDE + 1, 3))
    evaluator = evaluator_of(filmed_envs([(MAX_FRAMES + 50,)]))

    evaluator.run(range(1), video=True)

    # 641 pixels: a third of them; 350 frames: every second one
    assert np.asarray(evaluator.pop_video()).shape == (1, 175, 3, 2, 214)


def test_pixels_of_a_film_that_is_shrunk_are_means() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (5, 2 * MAX_SIDE + 2, 3), dtype=np.uint8)  # a factor of 3

    class Drawing(FilmedEnv):
        def render(self) -> Any:
            return frame

    evaluator = evaluator_of(SyncVectorEnv([Drawing], autoreset_mode=AutoresetMode.DISABLED))
    evaluator.run(range(1), video=True)

    video = np.asarray(evaluator.pop_video())[0, 0].transpose(1, 2, 0)
    assert video.shape == (2, 214, 3)
    assert np.array_equal(video[0, 1], frame[0:3, 3:6].mean((0, 1)).astype(np.uint8))
    assert np.array_equal(video[1, 0], frame[[3, 4, 4], 0:3].mean((0, 1)).astype(np.uint8))  # the edge counts twice


# ------------------------------------------------------------------ when


@pytest.mark.parametrize("mode", ["train_iter", "envstep"])
def test_films_are_made_every_render_freq(mode: str) -> None:
    writer = FakeWriter()
    evaluator = evaluator_of(filmed_envs([(2,)]), writer, render={"render_freq": 100, "mode": mode}, n_episode=1)

    for now in (0, 99, 100, 150, 200):
        counters = {"train_iter": 1, "envstep": 1} | {mode: now}
        evaluator.eval(**counters)

    at = [0, 100, 200]
    assert [step for _, _, step, _ in writer.videos] == (at if mode == "train_iter" else [1, 1, 1])
    assert evaluator.state_dict()["last_film"] == 200


def test_asking_whether_a_film_is_due_changes_nothing() -> None:
    evaluator = evaluator_of(filmed_envs([(2,)]), FakeWriter(), render={"render_freq": 100})

    assert [evaluator.should_render(envstep=0, train_iter=0) for _ in range(3)] == [True] * 3


def test_no_film_is_made_unless_it_is_asked_for() -> None:
    writer = FakeWriter()
    evaluator = evaluator_of(filmed_envs([(2,)]), writer, n_episode=1)
    evaluator.eval(train_iter=10_000)

    assert (evaluator.should_render(0, 0), writer.videos) == (False, [])


def test_force_render_films_whatever_the_config_says() -> None:
    writer = FakeWriter()
    evaluator_of(filmed_envs([(2,)]), writer, n_episode=1).eval(train_iter=7, force_render=True)

    ((name, video, step, fps),) = writer.videos
    assert (name, frames(video), step, fps) == ("evaluator_iter/video", [[20, 21]], 7, 5.0)


def test_resumed_evaluator_makes_its_next_film_when_it_is_due() -> None:
    cfg = {"render": {"render_freq": 100}, "n_episode": 1}
    first = evaluator_of(filmed_envs([(2,)]), FakeWriter(), **cfg)
    first.eval(train_iter=50)
    resumed = evaluator_of(filmed_envs([(2,)]), FakeWriter(), **cfg)
    resumed.load_state_dict(first.state_dict())

    assert [resumed.should_render(0, train_iter) for train_iter in (149, 150)] == [False, True]


# ------------------------------------------------------------------ where it goes


def images_in(folder: Path) -> dict[str, list[Any]]:
    """Return the images that a TensorBoard folder holds, by name."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    return {name: events.Images(name) for name in events.Tags()["images"]}


def test_summary_writer_gets_the_films_side_by_side_as_an_animation(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path)
    render = {"episodes": "all"}
    evaluator_of(filmed_envs([(1,), (3,)]), writer, n_episode=2, render=render).eval(train_iter=7, force_render=True)
    writer.close()

    (event,) = images_in(tmp_path)["evaluator_iter/video"]
    assert (event.step, event.width, event.height) == (7, 6, 2)
    animation = Image.open(io.BytesIO(event.encoded_image_string))
    shown = []
    for number in range(animation.n_frames):  # type: ignore[attr-defined]
        animation.seek(number)
        assert animation.info["duration"] == 200  # milliseconds, at 5 frames per second
        shown.append(np.asarray(animation.convert("RGB"))[0, [0, 5], 0].tolist())
    assert shown == [[10, 130], [10, 131], [10, 132]]


def test_lightnings_tensorboard_logger_gets_film_and_figure_at_the_env_step(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="")
    evaluator = evaluator_of(filmed_envs([(2,)]), logger, n_episode=1, figure_path=str(tmp_path / "figures"))
    evaluator.eval(train_iter=7, envstep=400, force_render=True)
    logger.finalize("success")

    images = images_in(tmp_path)
    assert {name: [event.step for event in events] for name, events in images.items()} == {
        "evaluator/video": [400],
        "evaluator/returns": [400],
    }


def test_figure_that_cannot_be_written_costs_one_line_and_no_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "figures").write_text("a file in place of the folder")
    evaluator = evaluator_of(filmed_envs([(2,)]), None, n_episode=1, figure_path=str(tmp_path / "figures"))
    evaluator.eval(train_iter=7, envstep=400)
    (record,) = caplog.records
    assert "figures/evaluator_7.png could not be written: " in record.getMessage()


def test_grey_frames_make_an_animation() -> None:
    film = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1) * np.ones((3, 1, 2, 4), np.uint8)

    animation = Image.open(io.BytesIO(gif(film, fps=10)))

    assert (animation.n_frames, animation.size) == (3, (4, 2))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fps", "step", "milliseconds"),
    [(5, 1, 200), (30, 1, 30), (50, 1, 20), (60, 2, 30), (67, 2, 30), (100, 2, 20), (125, 3, 20), (500, 10, 20)],
)
def test_animation_has_the_speed_of_the_env_and_frames_of_at_least_20_ms(
    fps: float, step: int, milliseconds: int
) -> None:
    film = np.arange(30, dtype=np.uint8).reshape(30, 1, 1, 1) * np.ones((30, 1, 2, 4), np.uint8)

    animation: Any = Image.open(io.BytesIO(gif(film, fps)))

    shown = []
    for number in range(animation.n_frames):
        animation.seek(number)
        assert animation.info["duration"] == milliseconds
        shown.append(np.asarray(animation.convert("L"))[0, 0])
    assert shown == list(range(0, 30, step))
    assert milliseconds / step == pytest.approx(1000 / fps, rel=0.2)


def test_figure_of_every_evaluation_is_written_into_its_folder(tmp_path: Path) -> None:
    folder, writer = tmp_path / "a" / "figures", FakeWriter()
    evaluator = evaluator_of(filmed_envs([(1, 2)]), writer, n_episode=2, figure_path=str(folder))
    assert not folder.exists()  # nothing is made on construction

    for train_iter in (5, 60):
        evaluator.eval(train_iter=train_iter)

    assert sorted(file.name for file in folder.iterdir()) == ["evaluator_5.png", "evaluator_60.png"]
    assert matplotlib_image.imread(folder / "evaluator_5.png").std() > 0.1
    assert writer.figures == [("evaluator_iter/returns", 5), ("evaluator_iter/returns", 60)]


def test_figure_shows_the_returns_and_their_mean() -> None:
    figure = returns_figure([1.0, 6.0, 2.0], "title")

    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [1.0, 6.0, 2.0]
    assert axes.get_legend().get_texts()[0].get_text() == "mean 3"
    assert axes.get_title() == "title"


def test_figure_needs_no_logger(tmp_path: Path) -> None:
    evaluator_of(filmed_envs([(1,)]), n_episode=1, figure_path=str(tmp_path)).eval(train_iter=5)

    assert [file.name for file in tmp_path.iterdir()] == ["evaluator_5.png"]


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("call", [lambda e: e.eval(force_render=True), lambda e: e.run(range(1), video=True)])
def test_film_of_envs_without_frames_says_what_is_missing(call: Any) -> None:
    evaluator = evaluator_of(filmed_envs([(1,)], render_mode=None), FakeWriter())

    with pytest.raises(ValueError, match=r'a video needs envs made with render_mode="rgb_array".*render_mode=None'):
        call(evaluator)


def test_film_of_envs_that_draw_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilmedEnv, "render", lambda _: None)

    with pytest.raises(ValueError, match=r"must render an array each, got \['NoneType'\]"):
        evaluator_of(filmed_envs([(1,)])).run(range(1), video=True)


@pytest.mark.parametrize("shape", [(1000, 4), (4, 4)])
def test_video_of_frames_that_are_not_images_raises(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilmedEnv, "shape", shape)

    with pytest.raises(ValueError, match=r"frame must be a uint8 array of shape \(H, W, C\), got"):
        evaluator_of(filmed_envs([(1,)])).run(range(1), video=True)


class NumbersOnly(Logger):
    """Takes numbers, and has no folder."""

    name, version = "numbers", 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize("logger", [None, NumbersOnly(), LoggerMedia([NumbersOnly(), NumbersOnly()])])
def test_film_needs_a_logger_that_takes_films(logger: Any) -> None:
    evaluator = evaluator_of(filmed_envs([(1,)]), logger)

    with pytest.raises(ValueError, match=r"a video needs a SummaryWriter, or a .*, got (NoneType|NumbersOnly)"):
        evaluator.eval(force_render=True)


def test_logger_with_a_folder_gets_film_and_figure_as_files(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, "", "")
    evaluator = evaluator_of(filmed_envs([(2,)]), logger, n_episode=1, figure_path=str(tmp_path / "figures"))
    evaluator.eval(train_iter=7, envstep=400, force_render=True)

    assert sorted(file.name for file in (tmp_path / "media").iterdir()) == [
        "evaluator_returns_400.png",
        "evaluator_video_400.gif",
    ]


def test_full_disk_of_a_logger_loses_the_film_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "media").write_text("not a folder")
    loggers = LoggerMedia([CSVLogger(tmp_path, "", ""), TensorBoardLogger(tmp_path / "other", "", "")])
    evaluator = evaluator_of(filmed_envs([(2,)]), loggers, n_episode=1)
    evaluator.eval(train_iter=7, envstep=400, force_render=True)

    assert "CSVLogger could not write evaluator/video at env step 400" in caplog.text
    loggers.loggers[1].finalize("success")
    assert list(images_in(tmp_path / "other")) == ["evaluator/video"]


@pytest.mark.parametrize(
    ("module", "cfg"), [("PIL", {"render": {"render_freq": 1}}), ("matplotlib", {"figure_path": "never_made"})]
)
def test_missing_extra_is_named_before_anything_is_evaluated(
    module: str, cfg: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> Any:
        raise ImportError(f"no {name}")

    def never(*_: Any) -> Any:
        raise AssertionError("the policy must not act")

    monkeypatch.setattr("lightning_ding.worker.evaluator.video.importlib.import_module", find)
    policy = still_policy()._replace(forward=never)

    with pytest.raises(ImportError, match=rf"this needs {module}: pip install 'lightning_ding\[video\]'"):
        InteractionSerialEvaluator(cfg, filmed_envs([(1,)]), policy, FakeWriter()).eval()
