"""Access to envs in every mode, and settings that new envs get too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import EnvHandle, EnvProcessError, make_vector_env
from lightning_ding.envs.handle import EnvHandles
from lightning_ding.utils.protocols import EnvAccess
from tests.envs.test_native import NumberedVectorEnv
from tests.toys.levels import LevelEnv

Make = Callable[..., Any]


@pytest.fixture(scope="module", params=["sync", "async"])
def envs(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    made = make_vector_env(LevelEnv, num_envs=2, mode=request.param)
    yield made
    made.close()


@pytest.fixture
def handle(envs: VectorEnv) -> EnvHandle:
    handle = EnvHandle("training")
    handle.bind(envs)
    return handle


def observed(envs: VectorEnv) -> Any:
    """Return (level, wind, start) after the step that ends an episode, which resets the envs."""
    envs.reset()
    for _ in range(3):
        obs = envs.step(np.zeros(2, dtype=np.int64))[0]
    return obs[:, :3].tolist()


def test_settings_reach_each_env_and_the_resets_after_episodes(envs: VectorEnv, handle: EnvHandle) -> None:
    handle.set_attr("level", 2.0)
    handle.configure("set_wind", 3.0, factor=2.0)
    handle.set_reset_options({"start": 5.0})
    assert handle.get_attr("level") == (2.0, 2.0)
    assert handle.call("get_wrapper_attr", "wind") == (6.0, 6.0)
    assert observed(envs) == [[2, 6, 5]] * 2
    handle.set_attr("level", [7.0, 8.0])
    handle.set_reset_options(None)
    assert observed(envs) == [[7, 6, 0], [8, 6, 0]]


def test_options_of_a_reset_come_on_top_of_those_that_were_set(envs: VectorEnv, handle: EnvHandle) -> None:
    handle.set_reset_options({"start": 5.0, "other": 1})
    assert envs.reset(options={"start": 6.0})[0][:, 2].tolist() == [6, 6]
    assert envs.reset()[0][:, 2].tolist() == [5, 5]
    handle.set_reset_options({})


def test_mistakes_are_errors_and_are_not_kept(envs: VectorEnv, handle: EnvHandle) -> None:
    with pytest.raises(AttributeError, match="the envs have no attribute 'levell' to set"):
        handle.set_attr("levell", 1)
    with pytest.raises((AttributeError, EnvProcessError), match="blow"):
        handle.configure("blow", 1)
    with pytest.raises((TypeError, EnvProcessError), match="level must be a method of the env, got an attribute"):
        handle.configure("level", 1)
    with pytest.raises(ValueError, match=r"(?i)values must be .*2"):
        handle.set_attr("level", [1.0])
    with pytest.raises(ValueError, match="because checkpoints contain it"):
        handle.set_attr("level", object())
    with pytest.raises(ValueError, match="options must be without 'reset_mask'"):
        handle.set_reset_options({"reset_mask": True})
    assert handle.text == "[]"


def test_settings_that_were_made_before_the_envs_are_made_in_them(envs: VectorEnv) -> None:
    handle = EnvHandle("training")
    handle.set_attr("level", 4.0)
    with pytest.raises(RuntimeError, match="there are no such envs: they are made when a fit or an evaluation begins"):
        handle.get_attr("level")
    handle.bind(envs)
    assert handle.get_attr("level") == (4.0, 4.0)


def test_handle_is_a_sequence_of_the_env_objects_of_this_process(envs: VectorEnv, handle: EnvHandle) -> None:
    is_sync = isinstance(envs.unwrapped, SyncVectorEnv)
    assert [type(one.unwrapped) for one in handle] == [LevelEnv] * 2 * is_sync
    assert bool(handle) == is_sync
    handle.bind(None)
    assert len(handle) == 0


def test_new_env_process_gets_all_settings(tmp_path: Path) -> None:
    make = functools.partial(LevelEnv, mark=str(tmp_path / "mark"))
    envs, handle = make_vector_env(make, 2, "async", on_env_error="restart"), EnvHandle("training")
    handle.bind(envs)
    handle.set_attr("level", [1.0, 2.0])
    handle.configure("set_wind", 3.0)
    handle.configure("set_wind", 4.0)
    handle.set_reset_options({"start": 5.0})
    envs.reset(seed=0)
    obs, _, _, truncated, _ = envs.step(np.array([1, 0]))
    assert truncated.tolist() == [True, False]  # its process was replaced
    assert obs[:, :3].tolist() == [[1, 4, 5], [2, 4, 5]]
    assert handle.get_attr("wind") == (4.0, 4.0)
    envs.close()


class NativeLevels(NumberedVectorEnv):
    """A native vector env with a level for all its envs."""

    level = 1.0
    wind: Any = None

    def set_wind(self, *wind: float) -> None:
        self.wind = wind


def test_native_vector_env_has_one_value() -> None:
    handle, envs = EnvHandle("training"), NativeLevels(AutoresetMode.NEXT_STEP)
    handle.bind(envs)
    handle.set_attr("level", 3.0)
    handle.configure("set_wind", 1.0, 2.0)
    assert (envs.level, envs.wind) == (3.0, (1.0, 2.0))
    assert handle.get_attr("level") == handle.call("level") == (3.0,)
    handle.set_attr("level", np.array([1.0, 2.0, 3.0]))
    assert envs.level.tolist() == [1.0, 2.0, 3.0]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="values must be one value, such as a NumPy array, because this native"):
        handle.set_attr("level", [1.0, 2.0, 3.0])
    with pytest.raises(AttributeError, match="the native vector env NativeLevels has no attribute 'levell'"):
        handle.set_attr("levell", 1.0)
    with pytest.raises(ValueError, match='mode must be "sync" or "async" for options of resets'):
        handle.set_reset_options({"start": 1})


def test_native_vector_env_with_methods_for_single_envs_uses_them() -> None:
    handle, envs = EnvHandle("training"), SyncVectorEnv([LevelEnv] * 2)
    handle.bind(envs)
    handle.set_attr("level", [3.0, 4.0])
    handle.configure("set_wind", 5.0)
    assert (handle.get_attr("level"), handle.get_attr("wind")) == ((3.0, 4.0), (5.0, 5.0))
    with pytest.raises(AttributeError, match="no attribute 'levell'"):
        handle.set_attr("levell", 1.0)


def test_envs_of_collectors_take_settings_and_give_no_answers() -> None:
    handle = EnvHandle("training", is_remote=True)
    handle.set_attr("level", 3.0)
    assert handle.text == '[["attribute", "level", 3.0]]'
    with pytest.raises(ValueError, match="values must be one value for all envs of a distributed run"):
        handle.set_attr("level", [1.0, 2.0])
    for ask in (handle.get_attr, handle.call):
        with pytest.raises(RuntimeError, match="the training envs are in the collectors of a distributed run"):
            ask("level")


def test_a_run_without_such_envs_refuses_settings() -> None:
    handles = EnvHandles()
    handles.training = EnvAccess()
    access = handles.training
    for use in (access.get_attr, access.call, access.configure, lambda name: access.set_attr(name, 1)):
        with pytest.raises(RuntimeError, match="there are no such envs: the datamodule of this run collects no data"):
            use("level")
    assert handles.text == ""
    assert list(access) == []
    handles.evaluation.set_attr("level", 1)
    assert handles.text != ""


def test_settings_of_text_are_made_in_the_envs(envs: VectorEnv, handle: EnvHandle) -> None:
    given = EnvHandle("training")
    given.set_attr("level", 9.0)
    given.configure("set_wind", 8.0)
    handle.set_attr("level", 1.0)
    handle.load(given.text, keeps_own=True)
    assert (handle.get_attr("level"), handle.get_attr("wind")) == ((1.0, 1.0), (8.0, 8.0))
    handle.load(given.text)
    assert handle.get_attr("level") == (9.0, 9.0)
