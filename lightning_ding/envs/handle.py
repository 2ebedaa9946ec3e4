"""Access to the envs of a run in every mode, with settings that new env processes and resumed runs get too.

A setting is an attribute, a call of a method, or options of resets. The last one of each name counts. As text they are
in checkpoints and travel with published weights.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.envs.sync import JoinedInfos
from lightning_ding.envs.vector import SEPARATE_ENVS
from lightning_ding.utils.protocols import EnvAccess

Kind = Literal["attribute", "method", "reset_options"]
ALLOWED = "None, a bool, a number, a string or a NumPy array of numbers, or a list, tuple or dict of these"
MARKS = {"array", "tuple", "dict"}


class Setting(NamedTuple):
    """One setting."""

    kind: Kind
    name: str
    """Name of the attribute or method; "" for the options of resets."""
    value: Any
    """Value, or a list or tuple with a value for each env; for a method the list of its positional and the dict of its
    keyword arguments; or the options."""


class EnvSettings:
    """Settings in the order in which they were last set.

    Example:
        >>> settings = EnvSettings()
        >>> settings.add(Setting("attribute", "level", 1))
        >>> settings.add(Setting("attribute", "level", 2))
        >>> settings.text
        '[["attribute", "level", 2]]'
        >>> [one.value for one in settings.update('[["attribute", "level", 3]]')]
        [3]
    """

    def __init__(self) -> None:
        self._coded: dict[tuple[Kind, str], str] = {}

    def __iter__(self) -> Iterator[Setting]:
        for (kind, name), coded in self._coded.items():
            yield Setting(kind, name, _decode(json.loads(coded)))

    def __contains__(self, setting: Setting) -> bool:
        """Return whether the last setting of its name has the same value."""
        return self._coded.get(setting[:2]) == json.dumps(_encode(setting.value, setting.name))

    def add(self, setting: Setting) -> None:
        """Add a setting, which replaces that of the same name; one with the same value keeps its place.

        Raises:
            ValueError: If its value is not plain data.
        """
        if setting not in self:
            self._coded.pop(setting[:2], None)
            self._coded[setting[:2]] = json.dumps(_encode(setting.value, setting.name))

    @property
    def text(self) -> str:
        """All settings as JSON."""
        return json.dumps([[kind, name, json.loads(coded)] for (kind, name), coded in self._coded.items()])

    def update(self, text: str, keeps_own: bool = False) -> list[Setting]:
        """Add settings from a text, and return those that are new or have another value than before.

        Args:
            text: A value of :attr:`text`; "" for none.
            keeps_own: Whether a setting of the same name is kept.
        """
        given = [Setting(kind, name, _decode(coded)) for kind, name, coded in json.loads(text or "[]")]
        changed = [one for one in given if one not in self and not (keeps_own and one[:2] in self._coded)]
        for setting in changed:
            self.add(setting)
        return changed


class EnvHandle(EnvAccess):
    """Calls methods, reads attributes and makes settings in the training or evaluation envs of a run.

    ``trainer.datamodule.training_envs()`` and ``evaluation_envs()`` return one. Settings are made by :meth:`set_attr`,
    :meth:`configure` and :meth:`set_reset_options`; the last one of each name counts. They are repeated in every env
    that is made later: those of a fit that has not started yet, a new process in place of a failed one, and the envs of
    a resumed run, whose checkpoint contains them even if it cannot contain the state of the envs. Their values are
    therefore plain data: None, booleans, numbers, strings, NumPy arrays, and lists, tuples and dicts of these.

    Envs are set between two rounds, for example in a callback, and not while they step. An attribute or a method is
    effective immediately, also in running episodes; options of resets are effective from the next episode of each env.
    Under DDP, every rank has its own envs, so every rank must make the same settings.

    In a distributed run, the envs of the learner's ``training_envs()`` are those of all collectors. They get settings
    together with the next published weights, before the first episode if a collector starts later. There, ``call`` and
    ``get_attr`` raise, and each setting has one value for all envs.

    A native vector env is one object for all its envs: ``call`` and ``get_attr`` return a tuple with one value unless
    the vector env has these methods itself, a setting has one value, and there are no options of resets.

    Args:
        name: "training" or "evaluation", for errors.
        is_remote: Whether the envs are in the collectors of a distributed run.

    Example:
        >>> from lightning_ding.envs import make_vector_env
        >>> envs = EnvHandle("training")
        >>> envs.set_attr("gravity", 5.0)
        >>> envs.bind(make_vector_env("CartPole-v1", num_envs=2))
        >>> envs.get_attr("gravity")
        (5.0, 5.0)
    """

    def __init__(self, name: str, is_remote: bool = False) -> None:
        super().__init__("they are made when a fit or an evaluation begins")
        self._name, self._is_remote = name, is_remote
        self._env: VectorEnv | None = None
        self._settings = EnvSettings()

    @override
    def __len__(self) -> int:
        return len(self._local())

    @override
    def __getitem__(self, place: Any) -> Any:
        return self._local()[place]

    # ------------------------------------------------------------------ for users

    @override
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the result of a method of each env, or the attribute if it is none.

        A new env process or a resumed run does not get the call again; use :meth:`configure` for methods that set
        something.

        Raises:
            RuntimeError: If there are no envs now, or they are in other processes of a distributed run.
            AttributeError: If the envs have no such attribute; an ``EnvProcessError`` with ``mode="async"``.
        """
        env = self._require_env()
        core: Any = env.unwrapped
        if callable(getattr(core, "call", None)):
            return tuple(core.call(name, *args, **kwargs))
        found = getattr(_layer_with(env, name), name)
        return (found(*args, **kwargs) if callable(found) else found,)

    @override
    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env.

        Raises:
            RuntimeError: If there are no envs now, or they are in other processes of a distributed run.
            AttributeError: If the envs have no such attribute; an ``EnvProcessError`` with ``mode="async"``.
        """
        env = self._require_env()
        core: Any = env.unwrapped
        if callable(getattr(core, "get_attr", None)):
            return tuple(core.get_attr(name))
        return (getattr(_layer_with(env, name), name),)

    @override
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, now and in new envs.

        Args:
            name: Name of an attribute that the env or one of its wrappers has.
            values: List or tuple with a value for each env, or one value for all.

        Raises:
            ValueError: If a value is not plain data, or their number is wrong.
            AttributeError: If the envs have no such attribute.
        """
        self._set(Setting("attribute", name, values))

    @override
    def configure(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each env that sets something, now and in new envs, where its last call is repeated.

        Raises:
            ValueError: If an argument is not plain data.
            AttributeError: If the envs have no such method; an ``EnvProcessError`` with ``mode="async"``.
        """
        self._set(Setting("method", name, [list(args), kwargs]))

    @override
    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        """Pass options to all following resets of each env, also to those after the end of an episode.

        Args:
            options: Options by name, which replace the previous ones; None for none.

        Raises:
            ValueError: If a value is not plain data, or ``mode`` is "native".
        """
        options = dict(options or {})
        require("reset_mask" not in options, "options", "without 'reset_mask', which is part of each reset", options)
        self._set(Setting("reset_options", "", options))

    # ------------------------------------------------------------------ for the datamodule

    @property
    def text(self) -> str:
        """The settings as text."""
        return self._settings.text

    def bind(self, env: VectorEnv | None) -> None:
        """Use a vector env from now on and make the settings in it; None after its end."""
        self._env = env
        for setting in self._settings if env is not None else ():
            apply_setting(env, setting)

    def load(self, text: str, keeps_own: bool = False) -> None:
        """Make the settings of a text; with ``keeps_own`` only those of names that are not set yet."""
        for setting in self._settings.update(text, keeps_own):
            if self._env is not None:
                apply_setting(self._env, setting)

    def make_newer(self, text: str) -> None:
        """Make the settings again that differ from those of a text, at which the state of the envs was saved."""
        earlier = EnvSettings()
        earlier.update(text)
        for setting in self._settings:
            if setting not in earlier:
                apply_setting(self._env, setting)

    # ------------------------------------------------------------------ helpers

    def _set(self, setting: Setting) -> None:
        setting = plain_copy(setting)
        if self._is_remote and setting.kind == "attribute":
            allowed = "one value for all envs of a distributed run, such as a NumPy array"
            require(not isinstance(setting.value, (list, tuple)), "values", allowed, setting.value)
        if self._env is not None:
            apply_setting(self._env, setting)
        self._settings.add(setting)

    def _local(self) -> Any:
        """Return the env objects of this process."""
        return getattr(self._env.unwrapped, "envs", ()) if self._env is not None else ()

    def _require_env(self) -> VectorEnv:
        if self._is_remote:
            raise RuntimeError(
                f"the {self._name} envs are in the collectors of a distributed run, which get set_attr, configure and "
                "set_reset_options together with the next weights, and give no answer"
            )
        if self._env is None:
            raise self._refusal()
        return self._env


class EnvHandles:
    """The access of a datamodule to its envs; each of both is made when it is first used.

    Args:
        envs: The envs that are in use, by their names; the datamodule adds and removes them.
    """

    def __init__(self, envs: dict[str, VectorEnv] | None = None) -> None:
        self._envs: dict[str, VectorEnv] = {} if envs is None else envs

    @functools.cached_property
    def training(self) -> EnvAccess:
        """The access to the envs that are collected in."""
        return self._made("training")

    @functools.cached_property
    def evaluation(self) -> EnvAccess:
        """The access to the envs of evaluations."""
        return self._made("evaluation")

    @property
    def text(self) -> str:
        """All settings as text; "" if there are none."""
        texts = {name: one.text for name, one in self._handles().items()}
        return json.dumps(texts) if any(text != "[]" for text in texts.values()) else ""

    def load(self, text: str, keeps_own: bool = False) -> None:
        """Make the settings of a text, see :meth:`EnvHandle.load`."""
        for name, below in json.loads(text or "{}").items():
            getattr(self, name)
            if name in self._handles():
                self._handles()[name].load(below, keeps_own)

    def make_newer(self, text: str) -> None:
        """Make the settings again that differ from those of a text, see :meth:`EnvHandle.make_newer`."""
        texts = json.loads(text or "{}")
        for name, one in self._handles().items():
            one.make_newer(texts.get(name, ""))

    def bind(self, name: Literal["training", "evaluation"], env: VectorEnv) -> None:
        """Use a vector env from now on and make the settings in it."""
        self._envs[name] = env
        if name in self._handles():
            self._handles()[name].bind(env)

    def close(self) -> None:
        """Release the envs; the settings are kept for those that are made next."""
        self._envs.clear()
        for one in self._handles().values():
            one.bind(None)

    def _made(self, name: str) -> EnvAccess:
        handle = EnvHandle(name)
        handle.bind(self._envs.get(name))
        return handle

    def _handles(self) -> dict[str, Any]:
        """Return the handles that were made, without the access of a run that has no such envs."""
        found = {}
        for name in ("training", "evaluation"):
            if type(vars(self).get(name)) not in (type(None), EnvAccess):
                found[name] = getattr(self, name)
        return found


def settings_of(text: str, is_evaluation: bool) -> str:
    """Return the part of :attr:`EnvHandles.text` for training or evaluation envs."""
    return str(json.loads(text or "{}").get("evaluation" if is_evaluation else "training", ""))


def apply_setting(env: Any, setting: Setting) -> None:
    """Make a setting in a vector env.

    Raises:
        ValueError: If a native vector env cannot have it, or the number of values is wrong.
        AttributeError: If the envs have no such attribute.
    """
    core, (kind, name, value) = env.unwrapped, setting
    if kind == "reset_options":
        has_options = isinstance(core, JoinedInfos)
        allowed = '"sync" or "async" for options of resets, because a native vector env resets its envs itself'
        require(has_options, "mode", allowed, "native" if isinstance(core, VectorEnv) else type(core).__name__)
        core.set_reset_options(value)
    elif kind == "method":
        if isinstance(core, JoinedInfos):
            core.configure(name, *value[0], **value[1])
        elif callable(getattr(core, "call", None)):
            core.call(name, *value[0], **value[1])
        else:
            getattr(_layer_with(env, name), name)(*value[0], **value[1])
    elif callable(getattr(core, "set_attr", None)):
        _check_has(core, name)
        core.set_attr(name, value)
    else:
        allowed = "one value, such as a NumPy array, because this native vector env has no set_attr for single envs"
        require(not isinstance(value, (list, tuple)), "values", allowed, value)
        setattr(_layer_with(env, name), name, value)


def _check_has(core: Any, name: str) -> None:
    """Raise ``AttributeError`` if separate envs lack an attribute, which ``set_attr`` would add to a wrapper."""
    if callable(getattr(core, "has_attr", None)):  # in other processes
        has_all = core.has_attr(name)
    else:
        has_all = not isinstance(core, SEPARATE_ENVS) or all(core.call("has_wrapper_attr", name))
    if not has_all:
        raise AttributeError(f"the envs have no attribute {name!r} to set; an env defines its settings when it is made")


def _layer_with(env: Any, name: str) -> Any:
    """Return the native vector env, or the outermost of its wrappers, that has an attribute of this name."""
    layer = env
    while isinstance(layer, VectorWrapper) and name not in vars(layer) and not hasattr(type(layer), name):
        layer = layer.env
    if not hasattr(layer, name):
        raise AttributeError(f"the native vector env {type(layer).__name__} has no attribute {name!r}")
    return layer


def plain_copy(setting: Setting) -> Setting:
    """Return a setting as other envs get it later.

    Raises:
        ValueError: If its value is not plain data.
    """
    return setting._replace(value=_decode(json.loads(json.dumps(_encode(setting.value, setting.name)))))


def _encode(value: Any, name: str) -> Any:
    """Return a value as JSON: containers that JSON does not have are dicts with one of ``MARKS``."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return {"array": value.tolist(), "dtype": value.dtype.str, "is_scalar": isinstance(value, np.generic)}
    if type(value) in (list, tuple):
        items = [_encode(one, name) for one in value]
        return items if type(value) is list else {"tuple": items}
    if type(value) is dict and all(type(key) is str for key in value):
        coded = {key: _encode(below, name) for key, below in value.items()}
        return {"dict": coded} if MARKS & coded.keys() else coded
    what = f"the value of {name}" if name else "the value of an option"
    raise ValueError(
        f"{what} must be {ALLOWED}, with strings as keys, because checkpoints contain it, got {value!r}; for other "
        "values use call(), which is not repeated in new envs"
    )


def _decode(coded: Any) -> Any:
    if isinstance(coded, list):
        return [_decode(one) for one in coded]
    if not isinstance(coded, dict):
        return coded
    if "array" in coded:
        array = np.array(coded["array"], dtype=coded["dtype"])
        return array[()] if coded["is_scalar"] else array
    if "tuple" in coded:
        return tuple(_decode(one) for one in coded["tuple"])
    return {key: _decode(below) for key, below in coded.get("dict", coded).items()}
