"""Finding envs and wrappers by name, in Python, YAML files, the command line and distributed runs.

An env is a registered id (``CartPole-v1``), an id with the module that registers it (``my_envs:MyEnv-v0``), the dotted
path of a class or function (``my_envs.MyEnv`` or ``my_envs:MyEnv``), a mapping with ``class_path`` and ``init_args``,
a task of EnvPool (``envpool:Pong-v5``), for ``mode="native"``, an env of gymnax, Brax or MuJoCo
Playground (``gymnax:CartPole-v1``, ``brax:ant``, ``playground:CartpoleBalance``), for ``mode="tensor"``, a
turn-based game of PettingZoo (``pettingzoo:tictactoe_v3``), see :class:`~lightning_ding.envs.game.GameEnv`, or the env
of a team: a parallel game of PettingZoo (``pettingzoo:mpe2.simple_spread_v3``, or a class of one's own), an env of
lbforaging or rware, or of VMAS (``vmas:balance``) for ``mode="tensor"``, see :mod:`lightning_ding.envs.teams`.

A wrapper is a short name (``flatten``), a short name with arguments (``{frame_stack: {stack_size: 4}}``), a dotted path
(``gymnasium.wrappers.FlattenObservation``), or a mapping with ``class_path`` and ``init_args``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym

from lightning_ding.config import closest

if TYPE_CHECKING:
    EnvLike = str | Mapping[str, Any] | Callable[..., Any]
    WrapperLike = str | Mapping[str, Any] | Callable[[Any], Any]
    Wrappers = Sequence[WrapperLike]
    Names = Sequence[str]
else:  # at run time without callables: jsonargparse would instantiate a class path where a callable is allowed
    EnvLike = str | dict[str, Any]
    Wrappers = Sequence[str | dict[str, Any]] | str | dict[str, Any]
    Names = Sequence[str] | str

ENVPOOL, PETTINGZOO = "envpool", "pettingzoo"
"""The first part of the ids of tasks of EnvPool, and of games of PettingZoo."""
JAX_PACKAGES = {"gymnax": "GymnaxEnv", "brax": "BraxEnv", "playground": "PlaygroundEnv"}
"""The first part of the ids of envs of JAX, for ``mode="tensor"``, and the classes that make them."""
TEAM_PACKAGES = ("lbforaging", "rware", "vmas")
"""The first part of the ids of envs of teams."""
Maker = Callable[..., Any]
AN_ENV = (
    "a registered gymnasium id, module:id, the dotted path of a class or function that creates an env, "
    "or a mapping with class_path and init_args"
)
A_WRAPPER = (
    "a short name such as 'frame_stack', {name: {argument: value}}, the dotted path of a class or function that takes "
    "an env, such as 'gymnasium.wrappers.FlattenObservation', or a mapping with class_path and init_args"
)
CLASS_KEYS = ("class_path", "init_args")


def is_batch(env: Any) -> bool:
    """Return whether a value is an object of N envs, rather than a name or a callable that makes one."""
    return not isinstance(env, (str, Mapping, type)) and all(hasattr(env, one) for one in ("num_envs", "reset", "step"))


def find_env(env: EnvLike, name: str = "env_id") -> str | Callable[..., Any]:
    """Return the registered id of an env, or the callable that creates it.

    Args:
        env: Name, mapping or callable as passed by the user. Modules in a name are imported.
        name: Name of the argument in errors.

    Raises:
        ValueError: If there is no such env; the message names the nearest registered id.
        TypeError: If ``env`` is not a name, a mapping or a callable.
        ImportError: If it is a game, and the extra ``pettingzoo`` is not installed.

    Example:
        >>> find_env("CartPole-v1")
        'CartPole-v1'
        >>> find_env("gymnasium.envs.classic_control.CartPoleEnv").__name__
        'CartPoleEnv'
    """
    if not isinstance(env, str):
        if is_batch(env):
            from lightning_ding.envs.tensor.make import given_env

            return functools.partial(given_env, env)
        return _of_team(_find(env, name, AN_ENV, gym.registry))
    prefix, _, game = env.partition(":")
    if prefix == PETTINGZOO:
        from lightning_ding.envs.teams.find import find_pettingzoo

        return find_pettingzoo(game)
    module, _, own = env.rpartition(":")
    if module in TEAM_PACKAGES:
        from lightning_ding.envs.teams.find import find_team

        return find_team(env)
    if module in JAX_PACKAGES:
        from lightning_ding.envs.tensor import jax_envs

        return functools.partial(getattr(jax_envs, JAX_PACKAGES[module]), own)
    if module == ENVPOOL:
        from lightning_ding.envs.envpool import EnvPoolVectorEnv

        return functools.partial(EnvPoolVectorEnv, own)
    if module:
        _import(module, _error(name, AN_ENV, env))
    try:
        gym.spec(own)
    except gym.error.Error as error:
        why = "" if isinstance(error, gym.error.NameNotFound) else f": {error}"  # the error names versions and packages
        if "." in own or module:
            return _of_team(_find(env, name, AN_ENV, gym.registry))
        raise ValueError(f"{_error(name, AN_ENV, env)}{why}{_hint(env, gym.registry)}") from error
    return own


def _of_team(maker: Maker) -> Maker:
    """Return what makes an env of gymnasium: the callable, or the adapter of a class of PettingZoo's parallel envs."""
    kind = maker.func if isinstance(maker, functools.partial) else maker
    if isinstance(kind, type) and not issubclass(kind, (gym.Env, gym.vector.VectorEnv)):
        from lightning_ding.envs.teams.find import team_of_class

        return team_of_class(maker, kind)
    return maker


def find_wrappers(wrappers: Wrappers, name: str = "wrappers") -> tuple[Callable[[Any], Any], ...]:
    """Return the callables for names, mappings or callables of wrappers, or for a single one of these.

    Raises:
        ValueError: If there is no such wrapper, in which case the message names the nearest one, or if a wrapper that
            repeats actions is around one that changes rewards.
        TypeError: If a wrapper is not a name, a mapping or a callable, or does not have these arguments.

    Example:
        >>> find_wrappers(["gymnasium.wrappers.FlattenObservation"])[0].__name__
        'FlattenObservation'
        >>> find_wrappers([{"frame_stack": {"stack_size": 4}}])[0].keywords
        {'wrapper': 'frame_stack', 'arguments': {'stack_size': 4}}
    """
    if isinstance(wrappers, (list, tuple)) and not wrappers:
        return ()
    from lightning_ding.envs.wrapper_names import as_list, check_order

    found = tuple(_find_wrapper(one, name) for one in as_list(wrappers))
    check_order(found, name)
    return found


def find_callable(given: str | Mapping[str, Any] | Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the class or function of a dotted path or of a mapping with ``class_path`` and ``init_args``.

    Raises:
        ValueError: If there is none.
        TypeError: If ``given`` is of another type, or the class does not have these arguments.
    """
    return _find(given, name, "a dotted path, or a mapping with class_path and init_args", ())


def names_of(names: Names) -> tuple[str, ...]:
    """Return the module names in ``import_names``, a list or a single name."""
    return (names,) if isinstance(names, str) else tuple(names)


def _find_wrapper(given: Any, name: str) -> Callable[[Any], Any]:
    from lightning_ding.envs.wrapper_names import BY_NAME, named_wrapper

    known = [*BY_NAME, *(f"gymnasium.wrappers.{one}" for one in gym.wrappers.__all__)]
    if isinstance(given, str) and given in BY_NAME:
        return named_wrapper(given, None, name)
    if isinstance(given, Mapping) and len(given) == 1 and not set(given) & set(CLASS_KEYS):
        ((short, arguments),) = given.items()
        if short in BY_NAME:
            return named_wrapper(short, arguments, name)
        raise ValueError(f"{_error(name, A_WRAPPER, given)}{_hint(str(short), known)}")
    return _find(given, name, A_WRAPPER, known)


def _find(given: Any, name: str, allowed: str, known: Iterable[str]) -> Callable[..., Any]:
    """Return the callable for a dotted path, a mapping with ``class_path``, or a callable itself."""
    wrong = _error(name, allowed, given)
    if isinstance(given, str):
        return _at(given, wrong, known)
    if not isinstance(given, Mapping):
        if not callable(given):
            raise TypeError(wrong)
        return cast(Maker, given)
    path = given.get("class_path")
    if not isinstance(path, str):
        raise ValueError(wrong)
    arguments = {key: value for key, value in given.items() if key not in CLASS_KEYS}
    arguments |= given.get("init_args") or {}  # `--data.env_id.init_args.size 5` is parsed as {"size": 5}
    maker = _at(path, _error(f"{name}.class_path", "a dotted path", path), known)
    try:
        inspect.signature(maker).bind_partial(**arguments)
    except TypeError as error:
        raise TypeError(f"{name}: {path} {error}") from error
    return functools.partial(maker, **arguments) if arguments else maker


def _at(path: str, wrong: str, known: Iterable[str]) -> Callable[..., Any]:
    """Return the callable at a dotted path."""
    module, _, attribute = path.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError(f"{wrong}{_hint(path, known)}")
    home = _import(module, wrong, path, known)
    found = getattr(home, attribute, None)
    if not callable(found):
        public = [f"{module}.{one}" for one in dir(home) if not one.startswith("_")]
        raise ValueError(f"{wrong}: {module!r} has no {attribute!r}{_hint(f'{module}.{attribute}', public)}")
    return cast(Maker, found)


def _import(module: str, wrong: str, path: str = "", known: Iterable[str] = ()) -> Any:
    """Return a module; an error names the one of the ``known`` names that is most like ``path``."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{wrong}{_hint(path, known)}")
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"{wrong}: {error}{_hint(path, known)}") from error  # looking for it takes long


def _error(name: str, allowed: str, given: Any) -> str:
    return f"{name} must be {allowed}, got {given!r}"


def _hint(given: str, known: Iterable[str]) -> str:
    near = closest(given, known)
    return f"; did you mean {near!r}?" if near not in (None, given) else ""
