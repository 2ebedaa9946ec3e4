"""The policy of a checkpoint and the env of its run, for the commands that use trained policies."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.vector import VectorEnv

from lightning_ding.config import require
from lightning_ding.entry.lightning_cli import CommandParser, policy_class
from lightning_ding.envs.atari import make_atari
from lightning_ding.envs.named import ENVPOOL, JAX_PACKAGES, PETTINGZOO, TEAM_PACKAGES, EnvLike, find_env
from lightning_ding.envs.vector import VectorMode
from lightning_ding.envs.wrapper_names import as_list, for_evaluation, short_name
from lightning_ding.policy import Policy, load_policy
from lightning_ding.policy.base.saved_state import check_imported
from lightning_ding.registry import NotRegisteredError, import_modules
from lightning_ding.zoo import path_of

logger = logging.getLogger(__name__)
NATIVE: VectorMode = "native"
TENSOR: VectorMode = "tensor"
TENSOR_PACKAGES = frozenset({"vmas", *JAX_PACKAGES})
"""The first part of the ids of envs that are batches of tensors alone."""
OWN_ENVS = "lightning_ding.envs"
"""The package of the envs here, whose modules a file may name."""


class EnvOfRun(NamedTuple):
    """The env of a run, by the arguments of :func:`make_vector_env`."""

    env: Any
    wrappers: tuple[Any, ...]
    env_kwargs: dict[str, Any]
    import_names: tuple[str, ...]
    mode: VectorMode = "sync"
    """The mode ``native`` of a run in a native vector env, ``tensor`` of one in envs that have no other; otherwise
    ``sync``, whatever the run had."""

    def num_envs_for(self, episodes: int, num_envs: int) -> int:
        """Return the number of envs for a number of episodes; a native vector env may have a fixed number of envs."""
        return num_envs if self.mode == NATIVE else min(num_envs, episodes)


def load(ckpt: str | Path | Policy[Any], name: str | None = None, import_names: Sequence[str] = ()) -> Policy[Any]:
    """Return the policy of a checkpoint or of a safetensors file, as :func:`load_policy` does, or the given one.

    Modules that the file names are not imported for this, because a file is data.

    Args:
        ckpt: The file, ``zoo:NAME``, or a policy of this program.
        name: Name or dotted path of the policy; None reads it from the file.
        import_names: Modules to import first, which register policies, networks or encoders.

    Raises:
        ValueError: If there is no such file, or it names no policy.
        NotRegisteredError: If the policy, its network or its encoder is of a class that is not registered.
        ImportError: If a module cannot be imported.
    """
    import_modules(import_names)
    if isinstance(ckpt, Policy):
        return ckpt
    ckpt = path_of(ckpt)
    require(ckpt.is_file(), "ckpt", "the path of a checkpoint, or zoo:NAME", str(ckpt))
    with naming_the_option():
        return load_policy(ckpt, None if name is None else policy_class(name))


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Name the option that imports modules in errors of unregistered names."""
    try:
        yield
    except NotRegisteredError as error:
        way = "import_names (--import_names MODULE) imports a module of yours that registers it"
        raise NotRegisteredError(f"{error.args[0]}; {way}") from error


def env_of_run(
    arguments: Mapping[str, Any],
    env_id: EnvLike | None = None,
    evaluation: bool = False,
    trusted: Sequence[str] = (),
) -> EnvOfRun:
    """Return the env of a run.

    Args:
        arguments: Arguments of its datamodule, ``policy.trained_in``, which a file holds; empty without a run.
        env_id: Another env, which is no vector env, with the wrappers of the run. Vector wrappers are left out.
        evaluation: Return the env of evaluations, if the run had another one for them.
        trusted: Modules whose functions and classes the file may name; see :func:`_check_names`.

    Raises:
        ValueError: If neither the run nor ``env_id`` names an env.
        NotRegisteredError: If the file names code that the program has not imported, or that makes no env.
    """
    wrappers = [*for_evaluation(arguments.get("wrappers") or ())]
    name, kwargs = arguments.get("env_id"), arguments.get("env_kwargs")
    if evaluation:
        name, own_kwargs = arguments.get("eval_env_id") or name, arguments.get("eval_env_kwargs")
        kwargs = kwargs if own_kwargs is None else own_kwargs
        wrappers += as_list(arguments.get("eval_wrappers") or ())
    found: Any = env_id or name
    require(bool(found), "env_id", "an env, because the checkpoint names none", None)
    modules = arguments.get("import_names") or ()
    modules = (modules,) if isinstance(modules, str) else tuple(modules)
    with naming_the_option():
        check_imported({"data": {"import_names": modules}})
    _check_names([*wrappers, *([name] if env_id is None else [])], kwargs or {}, trusted)
    is_native = arguments.get("mode") == NATIVE
    if env_id is None:
        is_tensor = arguments.get("mode") == TENSOR and str(found).partition(":")[0] in TENSOR_PACKAGES
        mode = NATIVE if is_native else TENSOR if is_tensor else "sync"
        return EnvOfRun(found, tuple(wrappers), dict(kwargs or {}), modules, mode)
    return EnvOfRun(found, _of_single_envs(wrappers) if is_native else tuple(wrappers), {}, modules)


GAMES_OF_TEAMS = re.compile(rf"{PETTINGZOO}:(mpe2|pettingzoo\.(atari|butterfly|classic|sisl))\.\w+_v\d+")
"""Ids of parallel games in packages of PettingZoo."""
ENV_ARGUMENTS = (
    *("env_id", "eval_env_id", "wrappers", "train_wrappers", "eval_wrappers", "env_kwargs", "eval_env_kwargs"),
)
"""Arguments of a datamodule that describe its envs."""


def check_envs(arguments: Mapping[str, Any], trusted: Sequence[str] = ()) -> None:
    """Check all names of envs and wrappers among arguments of a datamodule that come from a file.

    Args:
        arguments: The arguments.
        trusted: Modules whose functions and classes the file may name; see :func:`_check_names`.

    Raises:
        NotRegisteredError: If the file names code that the program has not imported, or that makes no env.
    """
    with naming_the_option():
        check_imported({"data": {"import_names": list(as_list(arguments.get("import_names") or ()))}})
    given = [arguments.get(name) for name in ENV_ARGUMENTS]
    names = [one for value in given[:5] if value for one in as_list(value)]
    _check_names(names, {"env_kwargs": given[5:]}, trusted)


def modules_of(arguments: Mapping[str, Any]) -> list[str]:
    """Return the imported modules that the arguments of a datamodule name, which the program trusts if it gave them."""
    texts = _texts([arguments.get(name) for name in ENV_ARGUMENTS])
    return sorted({module for text in texts if (module := _module_and_name(text)[0]) in sys.modules})


def _check_names(names: Sequence[Any], env_kwargs: Mapping[str, Any], trusted: Sequence[str]) -> None:
    """Check that the names of envs and wrappers in a file lead to nothing but envs and wrappers that are known here.

    Such a name is a registered id, a short name, a class of envs or wrappers in a module that the program has imported,
    or any object in a module that the user has named. Other objects are code that the file chooses, such as a function
    of Python's own modules. The same holds for the arguments of this package's envs, some of which are names too.

    Raises:
        NotRegisteredError: If a name leads to something else.
    """
    for given in names:
        path = given.get("class_path") if isinstance(given, Mapping) else given
        if not isinstance(path, str) or short_name(given) is not None:
            continue
        is_own = path.startswith((f"{OWN_ENVS}.", f"{PETTINGZOO}:"))
        for text in [path, *(_texts([given, env_kwargs]) if is_own else [])]:
            if not _is_known(text, trusted):
                module = _module_and_name(text)[0]
                raise NotRegisteredError(
                    f"the file makes its env with {text!r}, which is no registered env, no short name of a wrapper and "
                    f"no class of an imported module; --import_names {module} allows what is in that module, if you "
                    "trust it"
                )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in nested data, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for below in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(below)


def _is_known(path: str, trusted: Sequence[str]) -> bool:
    module, name = _module_and_name(path)
    if not module or module in (*trusted, ENVPOOL, *TEAM_PACKAGES) or GAMES_OF_TEAMS.fullmatch(path):
        return True
    if f"{module}.".startswith(f"{OWN_ENVS}.") and find_spec(module) is not None:
        import_module(module)
    if name in gym.registry:  # `module:id`, of which the module registers the id
        return module in sys.modules
    found = getattr(sys.modules.get(module), name, None)
    is_class = isinstance(found, type) and (issubclass(found, (gym.Env, VectorEnv)) or "ParallelEnv" in _bases(found))
    return found is make_atari or is_class


def _bases(kind: type) -> set[str]:
    return {base.__name__ for base in kind.__mro__}


def _module_and_name(path: str) -> tuple[str, str]:
    """Return the module and the object that the name of an env or a wrapper consists of; no module in a plain id."""
    path = path.removeprefix(f"{PETTINGZOO}:")
    module, colon, name = path.rpartition(":")
    return (module, name) if colon or path in gym.registry else path.rpartition(".")[::2]


def as_single(described: EnvOfRun) -> EnvOfRun:
    """Return the env of a run as one that can be made and shown alone.

    Raises:
        ValueError: If the run used a native vector env that is not registered as a single env too, or vector wrappers.
    """
    if described.mode != NATIVE:
        return described
    import_modules(described.import_names)
    env = find_env(described.env)
    is_single = isinstance(env, str) and gym.spec(env).entry_point is not None
    allowed = (
        'a single env, because the vector env or the vector wrappers of this run with mode="native" cannot be shown; '
        "name one with --env_id"
    )
    require(is_single and all(map(short_name, described.wrappers)), "env_id", allowed, described.env)
    return described._replace(mode="sync")


def _of_single_envs(wrappers: Sequence[Any]) -> tuple[Any, ...]:
    """Return the wrappers of a native vector env that single envs have too, which are those with short names."""
    left_out = [one for one in wrappers if short_name(one) is None]
    if left_out:
        logger.warning("the env of --env_id is played without the vector wrappers of the run: %s", left_out)
    return tuple(one for one in wrappers if short_name(one) is not None)


def command_parser(command: str, description: str | None, has_env: bool = True) -> CommandParser:
    """Return a parser for a command whose first argument is a checkpoint, with the options that all of them have.

    Args:
        command: Name of the command.
        description: Text of its ``--help``.
        has_env: Whether the command plays in an env.
    """
    parser = CommandParser(prog=f"lightning-ding {command}", description=description)
    parser.add_argument("ckpt", help="checkpoint of a run, a safetensors file of a policy, or zoo:NAME")
    if has_env:
        parser.add_argument("--env_id", help="another env than that of the run, not a vector env")
    add_policy_options(parser)
    return parser


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which classes the policy of a checkpoint needs."""
    parser.add_argument("--policy", help="name or dotted path of the policy, if the checkpoint does not tell it")
    parser.add_argument(
        "--import_names",
        action="append",
        default=[],
        metavar="MODULE",
        help="module to import first, which registers the policy, its network or its encoder, or has the env of the "
        "run; repeat it for several",
    )
