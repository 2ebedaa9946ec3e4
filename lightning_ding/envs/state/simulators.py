"""The state of simulators that is not plain data: MuJoCo's ``MjModel`` and ``MjData``, and ALE's emulator.

MuJoCo's integration state defines the future of a simulation. Envs also read quantities that the last step has derived,
such as the positions of bodies, which is why all arrays of numbers are saved. Integers of the model are compared only:
the simulator uses them as addresses in its memory.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np

from lightning_ding.envs.state.ale import is_ale, load_ale, read_ale
from lightning_ding.envs.state.memo import NotPlainError

State = dict[str, Any]
RENDERING = "gymnasium.envs.mujoco.mujoco_rendering"
"""The module of gymnasium's renderer, which does not influence the simulation."""
ASSETS = ("mesh_", "tex_", "hfield_", "skin_", "bvh_", "oct_", "key_")
"""Beginnings of the names of large arrays of a model, which hardly any env changes."""


def is_simulator(value: Any) -> bool:
    """Return whether a value is a simulator whose state can be read."""
    return _is_mujoco(value) or is_ale(value)


def is_rendering(value: Any) -> bool:
    """Return whether a value only renders a simulator."""
    return type(value).__module__ == RENDERING


def simulator_name(value: Any) -> str:
    """Return the name of a simulator's class."""
    return "ALEInterface" if is_ale(value) else type(value).__name__


def simulator_parts(value: Any) -> State:
    """Return the simulators within a simulator, by the names of their entries in its state."""
    return {"model": value.model} if type(value).__name__ == "MjData" and _is_mujoco(value) else {}


def read_simulator(value: Any, path: str) -> State:
    """Return the state of a simulator: plain data, and the simulators within it.

    Raises:
        NotPlainError: If its state cannot be read.
    """
    return _read_mujoco(value, path) if _is_mujoco(value) else read_ale(value, path)


def load_simulator(value: Any, name: str, state: State, path: str) -> None:
    """Restore what ``read_simulator`` returned for a simulator of the class ``name``.

    Raises:
        NotPlainError: If the state belongs to a different simulator.
    """
    if simulator_name(value) != name:
        raise NotPlainError(f"{path} was a {name} when saved, got {type(value).__name__}")
    load = _load_mujoco if _is_mujoco(value) else load_ale
    load(value, state, path)


def _is_mujoco(value: Any) -> bool:
    """Return whether a value is an ``MjModel`` or ``MjData``."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(value, (mujoco.MjModel, mujoco.MjData))


def _read_mujoco(value: Any, path: str) -> State:
    """Return the state of an ``MjModel`` or ``MjData``, which may contain the ``MjModel``.

    Raises:
        NotPlainError: If the simulation has parts that cannot be read, or the version of MuJoCo is too old.
    """
    if type(value).__name__ == "MjModel":
        floats, options = _changeable(value)
        return {"floats": floats, "options": options, "rest": _checksum_of_rest(value)}
    mujoco = sys.modules["mujoco"]
    if not hasattr(mujoco, "mj_getState") or not hasattr(value, "model"):
        raise NotPlainError(f"{path} is a simulation of MuJoCo {mujoco.__version__}, which cannot return its state")
    model = value.model
    if model.nplugin:
        raise NotPlainError(f"{path} is a simulation with plugins of MuJoCo")
    if int(model.opt.enableflags) & int(getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", 0)):
        raise NotPlainError(f"{path} is a simulation of MuJoCo in which bodies can sleep")
    return {"model": model, "integration": _integration(value), "derived": _derived(value)}


def _load_mujoco(value: Any, state: State, path: str) -> None:
    """Restore what ``_read_mujoco`` returned; a model in the state was restored before.

    Raises:
        NotPlainError: If the state belongs to another model.
    """
    if "rest" in state:
        _load_model(value, state, path)
        return
    mujoco = sys.modules["mujoco"]
    now, arrays = _integration(value), _derived(value)
    is_same = arrays.keys() == state["derived"].keys() and all(
        array.shape == state["derived"][name].shape for name, array in arrays.items()
    )
    if now.shape != state["integration"].shape or not is_same:
        raise NotPlainError(f"{path} was a simulation of another model, or of another version of MuJoCo")
    _set_integration(value, state["integration"])
    mujoco.mj_forward(value.model, value)  # contacts, for envs that read them before a step
    for name, array in arrays.items():
        array[...] = state["derived"][name]
    _set_integration(value, state["integration"])


def _derived(data: Any) -> State:
    """Return the arrays of floating-point numbers that steps derive, by name; a file sets no others, see above."""
    return {name: getattr(data, name) for name in _floats(sys.modules["mujoco"].MjData(data.model))}


def _integration(data: Any) -> Any:
    mujoco = sys.modules["mujoco"]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(data.model, kind))
    mujoco.mj_getState(data.model, data, state, kind)
    return state


def _set_integration(data: Any, state: Any) -> None:
    mujoco = sys.modules["mujoco"]
    mujoco.mj_setState(data.model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)


def _floats(value: Any) -> dict[str, Any]:
    """Return the arrays of floating-point numbers in a struct of MuJoCo, by name.

    In a new ``MjData``, arrays whose size changes from step to step are empty, and are left out.
    """
    return {name: one for name, one in _arrays(value).items() if one.dtype.kind == "f" and one.size}


def _arrays(value: Any) -> dict[str, Any]:
    found = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: one for name, one in found.items() if isinstance(one, np.ndarray)}


def _changeable(model: Any) -> tuple[State, State]:
    """Return the arrays of numbers and the options of a model that an env may change, by name."""
    floats = {name: one for name, one in _floats(model).items() if not name.startswith(ASSETS)}
    options = {name: getattr(model.opt, name) for name in dir(model.opt) if not name.startswith("_")}
    return floats, {name: one for name, one in options.items() if isinstance(one, (float, np.ndarray))}


def _checksum_of_rest(model: Any) -> int:
    """Return a checksum of everything in a model that ``_changeable`` does not return."""
    floats, options = _changeable(model)
    checksum = 0
    for name, array in _arrays(model).items():
        content = b"" if name in floats else np.ascontiguousarray(array).tobytes()
        checksum = zlib.crc32(f"{name} {array.shape}".encode() + content, checksum)
    for name in dir(model.opt):
        value = getattr(model.opt, name)
        if name not in options and isinstance(value, int):
            checksum = zlib.crc32(f"{name} {value}".encode(), checksum)
    return checksum


def _load_model(model: Any, state: State, path: str) -> None:
    floats, options = _changeable(model)
    if state["rest"] != _checksum_of_rest(model) or state["floats"].keys() != floats.keys():
        raise NotPlainError(f"{path} was another model when saved, or one of another version of MuJoCo")
    for name, array in floats.items():
        array[...] = state["floats"][name]
    for name, old in options.items():
        if isinstance(old, np.ndarray):
            old[...] = state["options"][name]
        else:
            setattr(model.opt, name, float(state["options"][name]))
