"""Pickles of statistics, read as data."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lightning_ding.policy.base.running_statistics import statistics_name
from lightning_ding.sb3.statistics import MOMENTS, VEC_NORMALIZE, Record, read_pickle, read_statistics

MEAN, VAR = np.array([[1.0, -2.5]], order="F"), np.array([[0.25, 4.0]])


class Classes:
    """Classes with the names of Stable-Baselines3's, which is not installed.

    Args:
        monkeypatch: Registers their modules for the test.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for path in (VEC_NORMALIZE, MOMENTS):
            *modules, name = path.split(".")
            for number in range(1, len(modules) + 1):
                module = ".".join(modules[:number])
                monkeypatch.setitem(sys.modules, module, sys.modules.get(module) or ModuleType(module))
            kind = type(name, (), {"__module__": ".".join(modules), "__qualname__": name})
            monkeypatch.setattr(sys.modules[".".join(modules)], name, kind, raising=False)
            setattr(self, name, kind)

    def moments(self, **state: Any) -> Any:
        """Return a RunningMeanStd with these attributes."""
        return self._made("RunningMeanStd", state)

    def wrapper(self, **changes: Any) -> Any:
        """Return a VecNormalize."""
        obs = self.moments(mean=MEAN, var=VAR, count=np.float64(50.0))
        rewards = self.moments(mean=np.zeros(()), var=np.array(2.0), count=50.0)
        state = {"norm_obs": True, "norm_reward": True, "clip_obs": 10.0, "clip_reward": 10.0, "epsilon": 1e-8}
        return self._made("VecNormalize", {**state, "obs_rms": obs, "ret_rms": rewards, **changes})

    def _made(self, name: str, state: dict[str, Any]) -> Any:
        made = getattr(self, name)()
        vars(made).update(state)
        return made


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Classes:
    return Classes(monkeypatch)


def written(content: Any, folder: Path, protocol: int = 4) -> Path:
    file = folder / "vecnormalize.pkl"
    file.write_bytes(pickle.dumps(content, protocol))
    return file


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_statistics_are_those_that_were_pickled(protocol: int, tmp_path: Path, classes: Classes) -> None:
    found = read_statistics(written(classes.wrapper(), tmp_path, protocol), statistics_name)
    assert found.shapes == {"": (1, 2)}
    tensors = {name: tensor.tolist() for name, tensor in found.tensors.items()}
    assert tensors == {
        **{"obs.count": 50.0, "obs.mean": [[1.0, -2.5]], "obs.m2": [[12.5, 200.0]]},
        **{"reward.count": 50.0, "reward.mean": 0.0, "reward.m2": 100.0},
    }


def test_statistics_of_a_dict_have_the_names_of_its_entries(tmp_path: Path, classes: Classes) -> None:
    entry = classes.moments(mean=np.zeros(3), var=np.ones(3), count=9.0)
    found = read_statistics(
        written(classes.wrapper(obs_rms={"a.b": entry}, norm_reward=False), tmp_path), statistics_name
    )
    assert found.shapes == {"a.b": (3,)}
    assert sorted(found.tensors) == ["obs:a%2Eb.count", "obs:a%2Eb.m2", "obs:a%2Eb.mean"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_obs": 5.0}, r"clip_obs of '.*' must be 10\.0, got 5\.0"),
        ({"obs_rms": np.zeros(2)}, r"the statistics 'obs' of '.*' must be a RunningMeanStd, got <numpy"),
        ({"obs_rms": {"a": 3}}, "the statistics 'obs:a' of '.*' must be a RunningMeanStd, got 3"),
    ],
)
def test_other_statistics_are_refused(changes: dict[str, Any], message: str, tmp_path: Path, classes: Classes) -> None:
    file = written(classes.wrapper(**changes), tmp_path)
    with pytest.raises(ValueError, match=message):
        read_statistics(file, statistics_name)


def _nested(changes: str) -> bytes:
    """Return the pickle of a wrapper in which 60 tuples contain the one before twice: 2^60 in all."""
    twice = b"".join(b"h%ch%c\x86q%c" % (number, number, number + 1) for number in range(60))
    wrapper = VEC_NORMALIZE.rpartition(".")
    head = f"c{wrapper[0]}\n{wrapper[2]}\n".encode() + b")\x81}("
    entries = {"norm_obs": b"\x88", "norm_reward": b"\x89", "obs_rms": b"N", "ret_rms": b"N"}
    entries |= {"clip_obs": b"G" + struct.pack(">d", 10.0), "clip_reward": b"N", changes: b"h\x3c"}
    named = b"".join(b"X" + struct.pack("<I", len(name)) + name.encode() + value for name, value in entries.items())
    return b"\x80\x02)q\x00" + twice + head + named + b"ub."


@pytest.mark.parametrize("name", ["obs_rms", "clip_obs", "epsilon"])
def test_tuples_that_contain_each_other_are_refused_at_once(name: str, tmp_path: Path) -> None:
    file = tmp_path / "forged.pkl"
    file.write_bytes(_nested(name))
    with pytest.raises(ValueError, match=r"forged\.pkl' must be .*, got <tuple>"):
        read_statistics(file, statistics_name)


def test_keys_and_names_that_are_tuples_are_refused_at_once() -> None:
    twice = b"".join(b"h%ch%c\x86q%c" % (number, number, number + 1) for number in range(60))
    with pytest.raises(ValueError, match="a key of a dict is a tuple"):
        read_pickle(b"\x80\x02)q\x00" + twice + b"}h\x3cNs.")
    with pytest.raises(TypeError):
        read_pickle(b"\x80\x04)q\x00" + twice + b"h\x3ch\x3c\x93.")
    assert read_pickle(b"\x80\x02)q\x00" + twice + b"h\x3c)R.").name == "a tuple"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_obs": None}, r"clip_obs of '.*' must be 10\.0, got None"),
        ({"clip_obs": 1 << 4000}, r"clip_obs of '.*' must be 10\.0, got <int>"),
        ({"epsilon": "x"}, r"epsilon of '.*' must be a number in \[0, 1\], got 'x'"),
        ({"obs_rms": {5: 1}}, r"an entry of obs_rms of '.*' must be a text, got 5"),
    ],
)
def test_values_of_other_types_are_named(
    changes: dict[str, Any], message: str, tmp_path: Path, classes: Classes
) -> None:
    with pytest.raises(ValueError, match=message):
        read_statistics(written(classes.wrapper(**changes), tmp_path), statistics_name)


@pytest.mark.parametrize("mean", [1 << 4000, np.dtype("f8"), None, (1, 2)])
def test_mean_that_is_no_array_is_named(mean: Any, tmp_path: Path, classes: Classes) -> None:
    moments = classes.moments(mean=mean, var=np.ones(()), count=1.0)
    with pytest.raises(ValueError, match=r"the statistics 'obs' of '.*' cannot be read"):
        read_statistics(written(classes.wrapper(obs_rms=moments), tmp_path), statistics_name)


def test_statistics_of_objects_or_of_infinite_numbers_are_refused(tmp_path: Path, classes: Classes) -> None:
    objects = classes.moments(mean=np.array([None]), var=np.ones(1), count=1.0)
    file = written(classes.wrapper(obs_rms=objects), tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read: 'O8' is no type|an array of objects is no array of numbers"):
        read_statistics(file, statistics_name)
    infinite = classes.moments(mean=np.array([np.inf]), var=np.ones(1), count=1.0)
    file = written(classes.wrapper(obs_rms=infinite), tmp_path)
    with pytest.raises(ValueError, match="must be finite, of one shape"):
        read_statistics(file, statistics_name)


def test_pickles_are_read_as_data() -> None:
    value: dict[Any, Any] = {
        "a": [1, -(2**70), 2.5, True, None],
        "b": ("x", b"\x00"),
        "c": {},
        "d": [[]],
        5: (1, 2, 3, 4),
    }
    for protocol in range(3, 6):
        assert read_pickle(pickle.dumps(value, protocol)) == value
    shared = [1]
    read = read_pickle(pickle.dumps([shared, shared]))
    assert read == [[1], [1]]
    assert read[0] is read[1]


def test_calls_in_a_pickle_become_records() -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, ("ran",)

    read = read_pickle(pickle.dumps(Runs()))
    assert isinstance(read, Record)
    assert (read.name, read.arguments) == (f"{os.mkdir.__module__}.mkdir", ("ran",))
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"no pickle", b"\x80\x04.", b"\x80\x04]\x94r\xff\xff\xff\xff", b"\x80\x04Pid\n.", b"\x80\x04h\x05."],
)
def test_file_that_is_no_pickle_is_one_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "vecnormalize.pkl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"vecnormalize must be a file of VecNormalize\.save, got"):
        read_statistics(file, statistics_name)
