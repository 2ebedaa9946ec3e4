"""Notes of the state that envs share when they are created: attributes of classes, and variables of modules.

A run needs no more than this until it saves the state of its envs; that is in ``state`` and ``surroundings``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from lightning_ding.envs.state import LIBRARIES, attributes, package_of

if TYPE_CHECKING:
    from lightning_ding.envs.state.variables import Variables


class Origin:
    """The variables of a class of envs or wrappers when one of them was first created in this process.

    Args:
        layer: The new env or wrapper.
    """

    def __init__(self, layer: Any) -> None:
        self.attributes = sorted(attributes(layer))
        """Names of the attributes of the env."""
        self._kind = type(layer)
        are_of_libraries = all(package_of(base.__module__) in LIBRARIES for base in self._kind.__mro__)
        values = {} if are_of_libraries else {label: one.value for label, one in self.variables.all().items()}
        self.fingerprints: dict[str, bytes] = {}
        self.copies: dict[str, Any] = {}
        """Encodings of the values that are small."""
        if values:
            from lightning_ding.envs.state.values import copies, fingerprint

            self.fingerprints = {label: fingerprint(value) for label, value in values.items()}
            self.copies = {label: coded for label, value in values.items() for coded in copies(value, label)}

    @functools.cached_property
    def variables(self) -> Variables:
        """The variables; there are none if the class and its bases are of libraries."""
        from lightning_ding.envs.state.variables import Variables

        return Variables(self._kind)


origins: dict[type, Origin] = {}


def note_origins(layers: Iterable[Any]) -> None:
    """Remember what new envs and wrappers share; later changes of it are part of their state."""
    for layer in layers:
        if "ale_py" in sys.modules:
            from lightning_ding.envs.state.ale import watch_ale

            watch_ale(layer)
        if type(layer) not in origins:
            origins[type(layer)] = Origin(layer)


def layers_of(env: VectorEnv) -> list[Any]:
    """Return a vector env, its wrappers, its envs and their wrappers, and what these name as ``layers_within``."""
    *wrappers, core = chain(env)
    layers = [*wrappers, core, *(layer for one in envs_in(core) for layer in chain(one))]
    return [*layers, *(inner for layer in layers for inner in getattr(layer, "layers_within", ()))]


def envs_in(core: Any) -> Sequence[Any]:
    """Return the envs whose states are read one by one."""
    return core.envs if isinstance(core, SyncVectorEnv) and not has_state_dict(core) else ()


def chain(env: Any) -> Iterator[Any]:
    """Yield an env and everything that it wraps, outermost first."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env


def has_state_dict(layer: Any) -> bool:
    """Return whether an env or wrapper saves its state itself."""
    return callable(getattr(layer, "state_dict", None)) and callable(getattr(layer, "load_state_dict", None))
