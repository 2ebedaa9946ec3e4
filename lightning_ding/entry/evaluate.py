"""The command ``evaluate``: the returns of a trained policy, with statistics and a confidence interval.

    lightning-ding evaluate runs/dqn/version_0/checkpoints/best.ckpt --episodes 100
    lightning-ding evaluate best.ckpt --info_keys laps --info_keys cost=sum
    lightning-ding evaluate best.ckpt --episodes 100 --stochastic --seed 1 --json > returns.json

The env is that of the run's evaluations. Each episode has a seed of its number and ``--seed``, so the result does not
depend on the number of envs. It does for a run with ``mode="native"``, because the envs of its vector env have one
random stream. ``--json`` prints the return and the length of every episode as well.

Shapes: E episodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.entry.lightning_cli import in_one_line
from lightning_ding.entry.trained import command_parser, env_of_run, load
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.vector import MODES, AutoresetName
from lightning_ding.policy import Policy
from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker import InteractionSerialEvaluator
from lightning_ding.worker.episodes import InfoKeys, info_statistics, mean_infos

RESAMPLES = 10_000
"""Resamples of the bootstrap."""


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or checkpoint."""
    parser = command_parser("evaluate", __doc__)
    parser.add_argument("--episodes", type=int, default=100, help="whole episodes to play")
    parser.add_argument("--stochastic", action="store_true", help="explore as in training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes and of the exploration")
    parser.add_argument("--num_envs", type=int, default=8, help="envs that are played at the same time")
    parser.add_argument("--max_episode_steps", type=int, help="env steps after which an episode is cut off")
    parser.add_argument(
        "--info_keys",
        action="append",
        metavar="NAME[=STATISTIC]",
        help="number in the info of the env to show, with last (default), mean, sum or max over the steps of an "
        "episode; repeat it for several; without it, those of the run",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = vars(parser.parse_args(list(arguments)[1:]))
    as_json, asked = options.pop("json"), options.pop("info_keys")
    if asked is not None:
        pairs = [one.partition("=") for one in asked]
        options["info_keys"] = {name: statistic or "last" for name, _, statistic in pairs}
    found = in_one_line(lambda: evaluate(**options))
    print(json.dumps(found) if as_json else as_text(found))


def evaluate(
    ckpt: str | Path | Policy[Any],
    episodes: int = 100,
    stochastic: bool = False,
    seed: int = 0,
    num_envs: int = 8,
    max_episode_steps: int | None = None,
    env_id: str | None = None,
    policy: str | None = None,
    import_names: Sequence[str] = (),
    info_keys: InfoKeys | None = None,
) -> dict[str, Any]:
    """Play whole episodes with the policy of a checkpoint, and return their statistics.

    Args:
        ckpt: Checkpoint of a run, a safetensors file of a policy, or a policy that was trained in this program.
        episodes: Number of episodes E, >= 1.
        stochastic: Explore as in training; otherwise act as in evaluations.
        seed: Seed of the episodes and of the exploration, >= 0.
        num_envs: Number of envs, >= 1.
        max_episode_steps: Env steps after which an episode is cut off, >= 1; None for no limit but that of the env,
            which is the only choice for a native vector env.
        env_id: Env to play; None means that of the run's evaluations.
        policy: Name or dotted path of the policy; None reads it from the checkpoint.
        import_names: Modules to import first, which register the policy, its network or its encoder, or have the env
            and the wrappers of the run.
        info_keys: Numbers in the info of the env to return, as in a datamodule; None means those of the run.

    Returns:
        The statistics of :func:`statistics`; ``returns`` and ``lengths`` of the E episodes; ``length_mean``,
        ``env_id``, ``policy``, ``stochastic``, ``seed`` and ``env_step``, the env steps of the training. ``infos`` has
        the E numbers of each name, None where the env gave none, and ``info_means`` their means: those of ``info_keys``
        and, if the env gives ``info["is_success"]``, ``success_rate``.

    Raises:
        ValueError: If an argument is out of its range, the checkpoint names no policy or no env, or the policy does
            not fit the env.
        TypeError: If the policy does not support the spaces of the env.
    """
    for name, number in (("episodes", episodes), ("num_envs", num_envs)):
        require(number >= 1, name, ">= 1", number)
    require(seed >= 0, "seed", ">= 0", seed)
    loaded = load(ckpt, policy, import_names)
    of_run = info_statistics(loaded.trained_in.get("info_keys", ()))
    keys = of_run if info_keys is None else info_statistics(info_keys)
    described = env_of_run(loaded.trained_in, env_id, evaluation=True, trusted=import_names)
    autoreset: AutoresetName | None = "disabled" if MODES[described.mode].has_separate_envs else None
    count = described.num_envs_for(episodes, num_envs)
    env = make_vector_env(num_envs=count, autoreset=autoreset, **described._asdict())
    try:
        loaded.build(env.single_observation_space, env.single_action_space)
        loaded.seed(np.random.SeedSequence([seed, 1]))
        config = {"n_episode": episodes, "max_episode_steps": max_episode_steps}
        evaluator = InteractionSerialEvaluator(config, env, way_of_acting(loaded, stochastic), seed=seed)
        evaluator.info_keys = keys
        evaluator.info_check.seen.update(of_run)  # training has found out about these
        returns, lengths = evaluator.run(range(episodes), number=0)
    finally:
        env.close()
    run = {"env_id": str(described.env), "policy": type(loaded).__name__, "env_step": loaded.progress.env_step}
    settings = {"stochastic": stochastic, "seed": seed}
    measured = {"length_mean": float(np.mean(lengths)), "returns": returns, "lengths": lengths}
    infos = {name: np.array(values) for name, values in evaluator.infos_of(range(episodes)).items()}
    means = mean_infos(infos)
    measured |= {"infos": {name: _plain(infos[name]) for name in means}}
    measured |= {"info_means": {name: _plain([mean])[0] for name, mean in means.items()}}
    return {**run, **settings, **statistics(returns, seed), **measured}


def _plain(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON has them, without NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def way_of_acting(policy: Policy[Any], stochastic: bool) -> EvalMode:
    """Return the eval mode of a policy, or with ``stochastic`` one that acts as the collect mode does.

    Raises:
        ValueError: If the policy does not explore.
    """
    explores = type(policy)._forward_collect is not Policy._forward_collect
    require(
        explores or not stochastic, "stochastic", f"False for {type(policy).__name__}, which only acts greedily", True
    )
    greedy, exploring = policy.eval_mode, policy.collect_mode
    return greedy._replace(forward=exploring.forward, reset=exploring.reset) if stochastic else greedy


def statistics(returns: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """Return statistics of returns.

    Args:
        returns: Returns of E episodes, E >= 1.
        seed: Seed of the bootstrap.

    Returns:
        ``episodes`` E; ``mean``, ``std``, ``median``, ``min`` and ``max``; ``iqm``, the interquartile mean, which is
        the mean without the lowest and the highest E // 4 returns (Agarwal et al. 2021,
        https://arxiv.org/abs/2108.13264); ``mean_ci95``, the 95 % interval of the mean by the percentile bootstrap
        with 10,000 resamples (Efron 1979, https://doi.org/10.1214/aos/1176344552).

    Example:
        >>> found = statistics([0.0, 1.0, 2.0, 9.0])
        >>> found["mean"], found["median"], found["iqm"], found["min"], found["max"]
        (3.0, 1.5, 1.5, 0.0, 9.0)
    """
    numbers = np.sort(np.asarray(returns, np.float64))
    cut = len(numbers) // 4
    found = {"mean": numbers.mean(), "std": numbers.std(), "median": np.median(numbers), "min": numbers[0]}
    found |= {"max": numbers[-1], "iqm": numbers[cut : len(numbers) - cut].mean()}
    low, high = np.quantile(resampled_means(numbers, seed), [0.025, 0.975])
    plain = {name: float(value) for name, value in found.items()}
    return {"episodes": len(numbers), **plain, "mean_ci95": [float(low), float(high)]}


def resampled_means(numbers: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the means of ``RESAMPLES`` samples with replacement of numbers, shape (E,)."""
    rng, size = np.random.default_rng(seed), len(numbers)
    return np.array([numbers[rng.integers(size, size=size)].mean() for _ in range(RESAMPLES)])


def as_text(found: dict[str, Any]) -> str:
    """Return the statistics as lines to print."""
    low, high = found["mean_ci95"]
    way = "stochastic" if found["stochastic"] else "deterministic"
    lines = [
        f"{found['policy']} in {found['env_id']}, {found['episodes']} {way} episodes, seed {found['seed']}",
        f"return: mean {found['mean']:.2f} (95 % interval {low:.2f} to {high:.2f}), std {found['std']:.2f}",
        f"        median {found['median']:.2f}, interquartile mean {found['iqm']:.2f}, "
        f"min {found['min']:.2f}, max {found['max']:.2f}",
        f"length: mean {found['length_mean']:.1f} env steps",
    ]
    for name, mean in found["info_means"].items():
        known = sum(value is not None for value in found["infos"][name])
        some = "" if known == found["episodes"] else f" ({known} of {found['episodes']} episodes)"
        lines.append(f"{name}: {'no episode gave a number' if mean is None else f'mean {mean:.4g}{some}'}")
    return "\n".join(lines)
