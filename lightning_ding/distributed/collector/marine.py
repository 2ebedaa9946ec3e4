"""Collecting and evaluating in games of two players."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.distributed.collector.base import BaseParallelCollector
from lightning_ding.distributed.config import EnvConfig
from lightning_ding.distributed.transport import Message
from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.envs.named import find_env
from lightning_ding.policy.random import random_collect_mode, random_eval_mode
from lightning_ding.registry import PARALLEL_COLLECTOR_REGISTRY, import_modules
from lightning_ding.worker import BattleInteractionSerialEvaluator, BattleSampleSerialCollector

RANDOM = "random"  # policy id of a player that moves at random
MAX_FAULTS = 100  # faults of a game in a row without a finished episode


@PARALLEL_COLLECTOR_REGISTRY.register("marine")
class MarineParallelCollector(BaseParallelCollector):
    """Collects or evaluates in games of the main player against an opponent.

    ``env.env_id`` is the path of a function that makes a PettingZoo env. Players that learn get newer weights during
    the task, and their transitions are sent in one message; two players with the same policy share one network. The
    weights of other players are loaded once. A task with one policy plays against a random player. Arguments as of the
    base class.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._result = {"wins": 0, "draws": 0, "losses": 0}

    @override
    def get_finish_info(self) -> Message:
        opponent = (*self.config.policy_update_path, RANDOM)[1]
        return {**super().get_finish_info(), "result": dict(self._result), "opponent": opponent}

    @override
    def _setup(self, seeds: list[np.random.SeedSequence]) -> None:
        config = self.config
        require(config.env.mode == "sync", "env.mode", '"sync" in games', config.env.mode)
        for name in ("wrappers", "train_wrappers", "eval_wrappers", "eval_env_id", "eval_env_kwargs"):
            given = getattr(config.env, name)
            require(not given, f"env.{name}", "empty in games", given)
        num_envs = config.env.evaluator_env_num if config.eval_flag else config.env.collector_env_num
        max_faults = MAX_FAULTS if config.env_fault == "drop" else 0
        self._env = env = PettingZooVectorEnv(
            find_game(config.env), num_envs, rotate_seats=True, seed=seeds[0], max_faults=max_faults
        )
        paths, flags = list(config.policy_update_path), list(config.policy_update_flag)
        if len(paths) == 1:
            paths, flags = [*paths, RANDOM], [*flags, False]
        require(len(paths) == env.num_players, "policy_update_path", f"{env.num_players} policies", paths)
        known: dict[tuple[str, bool], Any] = {}
        for path, learns, seed in zip(paths, flags, seeds[1].spawn(len(paths)), strict=True):
            if (path, learns) not in known:
                known[path, learns] = self._make_player(path, learns, seed)
        modes = [known[path, learns] for path, learns in zip(paths, flags, strict=True)]
        if config.eval_flag:
            seed_of_games = int(seeds[2].generate_state(1)[0])
            self._evaluator = BattleInteractionSerialEvaluator(self._limit, env=env, policy=modes, seed=seed_of_games)
        else:
            self._collector = BattleSampleSerialCollector({"env_fault": config.env_fault}, env=env, policy=modes)

    @override
    def _transitions(self, found: Any) -> Any:
        data, games = found
        self._count_results([game["eval_episode_return"] for game in games[0]])
        return nested.concatenate_arrays([of_player for of_player in data if of_player is not None])

    @override
    def _own_returns(self, returns: Any) -> list[float]:
        self._count_results(returns[0])
        return list(returns[0])

    def _make_player(self, path: str, learns: bool, seed: np.random.SeedSequence) -> Any:
        """Return the mode of a player, and register the weights that it needs."""
        evaluates = self.config.eval_flag
        if path == RANDOM:
            require(not learns, "policy_update_flag", "false for a random player", learns)
            make = random_eval_mode if evaluates else random_collect_mode
            return make(self._env.single_action_space, seed)
        mode = self._add_policy(path, seed, is_renewed=learns)
        if not evaluates:
            mode.set_attribute("collect_data", learns)
        return mode

    def _count_results(self, returns: list[float]) -> None:
        for value in returns:
            self._result["wins" if value > 0 else "losses" if value < 0 else "draws"] += 1


def find_game(env: EnvConfig) -> Callable[[], Any]:
    """Return the function that makes the PettingZoo env of a config.

    Raises:
        ValueError: If there is no such function.
        TypeError: If the function does not accept the arguments.
        ImportError: If a module of ``import_names`` cannot be imported.
    """
    import_modules(env.import_names)
    found = find_env(env.env_id, "env.env_id")
    require(callable(found), "env.env_id", "the path of a function that makes a PettingZoo env", env.env_id)
    return functools.partial(cast("Callable[..., Any]", found), **env.env_kwargs)
