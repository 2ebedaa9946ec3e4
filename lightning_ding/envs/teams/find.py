"""Finding the envs of teams by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lightning_ding.envs.game import GameEnv, find_game
from lightning_ding.envs.teams.parallel import PARALLEL, ParallelTeam, is_parallel, module_of
from lightning_ding.envs.teams.tuples import TupleTeam

Maker = Callable[..., Any]


def find_pettingzoo(game: str) -> Maker:
    """Return what makes the env of a game: of a team for a parallel one, and otherwise of one of its players.

    Args:
        game: Name of a turn-based game, a module with ``parallel_env``, or the dotted path of a class or function. A
            class of parallel envs and a function that is called ``parallel_env`` make the env of a team.

    Raises:
        ImportError: If the extra ``pettingzoo`` is not installed.
        ValueError: If there is no such game.
    """
    is_path = "." in game or ":" in game
    if is_path and module_of(game) is not None:
        return functools.partial(ParallelTeam, game)
    try:
        found = find_game(game)
    except ValueError as error:
        if not is_path:
            raise
        raise ValueError(f"{error}, and no module with {PARALLEL}") from error
    is_team = is_path and (game.endswith(PARALLEL) or (isinstance(found, type) and is_parallel(found)))
    return functools.partial(ParallelTeam if is_team else GameEnv, game)


def find_team(env: str) -> Maker:
    """Return what makes an env of ``lbforaging``, ``rware`` or ``vmas``, by its id.

    Raises:
        ImportError: If the package is not installed.
        ValueError: If it has no such env.
    """
    package, _, name = env.partition(":")
    if package == "vmas":
        from lightning_ding.envs.teams import vmas

        vmas.module_of(name)
        return functools.partial(vmas.VmasTeam, name)
    from lightning_ding.envs.teams.tuples import check_id

    check_id(env)
    return functools.partial(TupleTeam, env)


def team_of_class(maker: Maker, kind: type) -> Maker:
    """Return what makes an env of gymnasium from what makes an object of a class: its adapter, for a parallel env."""
    return functools.partial(ParallelTeam, maker) if is_parallel(kind) else maker
