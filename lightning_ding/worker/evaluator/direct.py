"""An evaluation by ``eval``, without a Trainer: its episodes on all ranks, and what is done with its result.

Shapes: P players, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.utils.ranks import rank_and_world_size, sum_over_ranks


def run_sharded(
    run: Callable[[Sequence[int]], tuple[Any, Sequence[int]]], n_episode: int
) -> tuple[NDArray[np.float64], list[int], float]:
    """Run episodes, each on one rank, and return the results of all of them.

    Rank r of W runs the episodes r, r + W, ... All ranks work at the same time and return the same results. A single
    rank would get the same results if ``run`` depends only on the numbers of the episodes. In a Trainer, the datamodule
    distributes the episodes and Lightning joins the results.

    Args:
        run: Function that is called once with the numbers of this rank's episodes, at least one; it returns their
            returns and lengths as the evaluator's ``run`` does.
        n_episode: Number of episodes E over all ranks.

    Returns:
        Returns of the players, shape (P, E), E lengths, in the order of the episodes, and the duration in seconds.
    """
    rank, world_size = rank_and_world_size()
    enough = ">= 1" if world_size == 1 else f"at least one for each of {world_size} ranks"
    require(n_episode >= world_size, "n_episode", enough, n_episode)
    started = perf_counter()
    share = range(n_episode)[rank::world_size]
    rows = np.vstack(run(share)).astype(np.float64)
    table = np.zeros((len(rows), n_episode))
    table[:, share] = rows
    table = sum_over_ranks(torch.from_numpy(table)).numpy()
    return table[:-1], table[-1].astype(int).tolist(), perf_counter() - started


def conclude(
    evaluator: Any,
    episodes: Mapping[str, Any],
    values: Mapping[str, float],
    seconds: float,
    save_ckpt_fn: Callable[[str], Any] | None,
    train_iter: int,
    envstep: int,
    **logged: float,
) -> tuple[bool, dict[str, Any]]:
    """Write and store the results of an evaluation, and save the policy if it is the best so far.

    Args:
        evaluator: The :class:`EpisodeEvaluator`.
        episodes: Results of each episode, with ``eval_episode_length``.
        values: Results of the evaluation, with ``return_mean``.
        seconds: Duration of the evaluation.
        save_ckpt_fn: See :meth:`ISerialEvaluator.eval`.
        train_iter: Updates so far; negative if not known.
        envstep: Environment steps so far.
        logged: Further numbers to write.

    Returns:
        Whether the mean return reached ``stop_value`` after at least one update, and all results.
    """
    n_episode, steps = len(episodes["eval_episode_length"]), sum(episodes["eval_episode_length"])
    speed = {
        "episode_count": n_episode,
        "envstep_count": steps,
        "avg_envstep_per_episode": steps / n_episode,
        "evaluate_time": seconds,
        "avg_time_per_episode": seconds / n_episode,
        "avg_envstep_per_sec": steps / seconds,
    }
    evaluator._log.write({**speed, **values, **logged}, train_iter, envstep)
    evaluator._note_eval(train_iter)
    mean, stop_value = values["return_mean"], evaluator.config.stop_return()
    if mean > evaluator.best_return:
        evaluator.best_return = mean
        if save_ckpt_fn is not None:
            save_ckpt_fn("ckpt_best.ckpt")
    stop = stop_value is not None and mean >= stop_value and train_iter > 0
    return stop, {**episodes, **values, "train_iter": train_iter, "envstep": envstep}
