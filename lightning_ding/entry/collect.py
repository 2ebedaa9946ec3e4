"""The command ``collect``: play episodes with a policy, and write them as a data set for offline training.

    lightning-ding collect runs/sac_pendulum/version_0/checkpoints/last.ckpt --out pendulum.npz --episodes 500
    lightning-ding collect best.ckpt --out demos/pendulum-v0 --episodes 20 --greedy
    lightning-ding collect --random --env_id CartPole-v1 --out random.npz
    lightning-ding collect best.ckpt --out ranked.npz --episodes 20 --greedy --noise 1 0.5 0

``--out`` is a path that ends in .npz, or the id of a new Minari data set such as pendulum/sac-v0 (extra ``minari``).
The env is that of the checkpoint's run. Without ``--greedy`` the policy explores as in training.
With ``--noise`` a share of its actions is random, and so many episodes are played for each share: trajectories for the
reward model ``drex``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules import Dataset, save_dataset
from lightning_ding.datamodules.dataset_files import check_target
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line, policy_class
from lightning_ding.entry.trained import EnvOfRun, add_policy_options, env_of_run, load, naming_the_option
from lightning_ding.envs import Pausable, make_vector_env
from lightning_ding.envs.vector import MODES
from lightning_ding.policy import Policy
from lightning_ding.policy.random import random_collect_mode
from lightning_ding.registry import import_modules
from lightning_ding.utils.modes import CollectMode
from lightning_ding.utils.protocols import return_text
from lightning_ding.worker import create_serial_collector


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or checkpoint."""
    options = _parser().parse_args(list(arguments)[1:])
    data = in_one_line(lambda: collect(**vars(options)))
    found = data.statistics()
    print(f"written: {options.out}, {found.episodes} episodes, {found.transitions} transitions")
    mean, least, most = map(return_text, (found.return_mean, found.return_min, found.return_max))
    print(f"mean return: {mean}, from {least} to {most}")


def _parser() -> CommandParser:
    parser = CommandParser(prog="lightning-ding collect", description=__doc__)
    parser.add_argument("ckpt", nargs="?", help="checkpoint of a run")
    parser.add_argument("--out", required=True, help="path of an .npz file, or id of a new Minari data set")
    parser.add_argument(
        "--episodes", "--n_episode", dest="n_episode", type=int, default=100, help="whole episodes to play"
    )
    parser.add_argument("--greedy", action="store_true", help="act as in evaluations, without exploration")
    parser.add_argument("--random", action="store_true", help="take random actions, without a checkpoint")
    parser.add_argument("--noise", type=float, nargs="+", default=[], help="shares of random actions, falling")
    parser.add_argument("--env_id", help="another env than that of the run, or the env of --random")
    add_policy_options(parser)
    parser.add_argument("--num_envs", type=int, default=8, help="envs that are played at the same time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the envs and of the exploration")
    return parser


def collect(
    ckpt: str | Path | Policy[Any] | None = None,
    out: str = "",
    n_episode: int = 100,
    greedy: bool = False,
    random: bool = False,
    env_id: str | None = None,
    policy: str | None = None,
    num_envs: int = 8,
    seed: int = 0,
    import_names: Sequence[str] = (),
    noise: Sequence[float] = (),
    n_sample: int = 0,
) -> Dataset:
    """Play whole episodes with the policy of a checkpoint, write them, and return them.

    Args:
        ckpt: Checkpoint of a run, or a policy that was trained in this program; None with ``random``.
        out: Path that ends in ``.npz``, or id of a new Minari data set.
        n_episode: Number of episodes, >= 1.
        greedy: Act as in evaluations, without exploration.
        random: Take random actions.
        env_id: Env to play; None means that of the run, with its wrappers and arguments.
        policy: Name or dotted path of the policy; None reads it from the checkpoint.
        num_envs: Number of envs, >= 1.
        seed: Seed of envs and exploration, >= 0.
        import_names: Modules to import first, which register the policy, its network or its encoder, or have the env
            and the wrappers of the run.
        noise: Shares of random actions, from the largest to the smallest, in [0, 1]; ``n_episode`` episodes are
            written for each of them, in this order. Empty means none.
        n_sample: Least number of transitions; as many episodes as this takes are added.

    Raises:
        ValueError: If an argument is out of its range, the checkpoint names no policy or no env, the policy acts on
            rewards, or there is a data set of that name.
        ImportError: If the extra ``minari`` is needed and not installed.
    """
    for name, number in (("n_episode", n_episode), ("num_envs", num_envs)):
        require(number >= 1, name, ">= 1", number)
    require(seed >= 0, "seed", ">= 0", seed)
    require((ckpt is None) == random, "ckpt", "a checkpoint, or None with random actions", ckpt)
    require(not (greedy and random), "greedy", "False with random actions", greedy)
    check_noise("noise", noise)
    require(not (noise and random), "noise", "left out with random actions", noise)
    require(not (noise and n_sample), "n_sample", "left out with noise, which counts episodes", n_sample)
    check_target(out)
    import_modules(import_names)
    if policy is not None:
        with naming_the_option():
            _check_acts_alone(policy_class(policy))
    found = None if ckpt is None else load(ckpt, policy, import_names)
    arguments = {} if found is None else found.trained_in
    env = _make_env(env_of_run(arguments, env_id, trusted=import_names), num_envs, n_episode, seed)
    seeds = np.random.SeedSequence([seed, 1])
    try:
        if found is None:
            mode, name = random_collect_mode(env.single_action_space, seeds), "random"
        else:
            _check_acts_alone(type(found))
            found.build(env.single_observation_space, env.single_action_space)
            found.seed(seeds)
            mode, name = found.collect_mode, type(found).__name__
            mode = greedy_mode(found) if greedy else mode
        if noise:
            episodes = play_with_noise(mode, env, n_episode, noise, seed)
        else:
            episodes = play_episodes(mode, env, n_episode, n_sample)
        save_dataset(episodes, out, _Played(env, arguments, env_id), name)
        columns = nested.concatenate_arrays([{key: one[key] for key in COLUMNS} for one in episodes])
        return Dataset(columns, env.single_observation_space, env.single_action_space)
    finally:
        env.close()


COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class _Played:
    """One of the envs that were played, as a writer of data sets reads it."""

    def __init__(self, env: gym.vector.VectorEnv, arguments: Mapping[str, Any], env_id: str | None) -> None:
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        name = env_id or arguments.get("env_id")
        self.spec = gym.spec(name) if isinstance(name, str) and name in gym.registry else None


def greedy_mode(policy: Policy[Any]) -> CollectMode:
    """Return the collect mode with the actions and the memory of the eval mode."""
    greedy = policy.eval_mode
    return policy.collect_mode._replace(forward=lambda obs, **_: greedy.forward(obs), reset=greedy.reset)


def _make_env(described: EnvOfRun, num_envs: int, n_episode: int, seed: int) -> gym.vector.VectorEnv:
    count, seeds = described.num_envs_for(n_episode, num_envs), np.random.SeedSequence([seed, 0])
    if MODES[described.mode].has_separate_envs:
        described = described._replace(wrappers=(*described.wrappers, Pausable))
    return make_vector_env(num_envs=count, seed=seeds, **described._asdict())


def _check_acts_alone(policy: type[Policy[Any]]) -> None:
    allowed = "one that acts on observations alone; this one needs the rewards of an evaluation"
    require(not getattr(policy, "acts_on_reward", False), "policy", allowed, policy.__name__)


def play_episodes(
    mode: CollectMode, env: gym.vector.VectorEnv, n_episode: int, n_sample: int = 0
) -> list[dict[str, Any]]:
    """Return ``n_episode`` whole episodes, and more until they have ``n_sample`` transitions."""
    collector: Any = create_serial_collector(
        {"type": "episode"}, env=env, policy=mode._replace(process_transition=_step)
    )
    with torch.no_grad():
        episodes: list[dict[str, Any]] = collector.collect(n_episode)
        while sum(len(one["reward"]) for one in episodes) < n_sample:
            episodes += collector.collect(n_episode)
    return episodes


def check_noise(name: str, noise: Sequence[float]) -> None:
    """Check that shares of random actions fall from one to the next, and are in [0, 1].

    Raises:
        ValueError: Naming the argument, if not.
    """
    falls = all(before > after for before, after in pairwise(noise)) and all(0 <= share <= 1 for share in noise)
    require(falls, name, "falling shares in [0, 1], such as 1 0.5 0", noise)


def play_with_noise(
    mode: CollectMode, env: gym.vector.VectorEnv, n_episode: int, noise: Sequence[float], seed: int
) -> list[dict[str, Any]]:
    """Return whole episodes in which a share of the actions is random, ``n_episode`` for each share in its order."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 2]))
    player = random_collect_mode(env.single_action_space, np.random.SeedSequence([seed, 3]))
    episodes = list[dict[str, Any]]()
    for share in noise:

        def forward(obs: Any, share: float = share, **given: Any) -> dict[str, Any]:
            output, drawn = mode.forward(obs, **given), player.forward(obs)["action"]
            replaced = torch.from_numpy(rng.random(nested.length(drawn)) < share)
            return {**output, "action": _mixed(output["action"], drawn, replaced)}

        episodes += play_episodes(mode._replace(forward=forward), env, n_episode)
    return episodes


def _mixed(action: Any, drawn: Any, replaced: torch.Tensor) -> Any:
    """Return actions of B envs, those of some envs replaced by drawn ones."""
    if isinstance(action, dict):
        return {name: _mixed(part, drawn[name], replaced) for name, part in action.items()}
    own = torch.as_tensor(action).cpu()
    rows = replaced.view(-1, *[1] * (own.ndim - 1))
    return torch.where(rows, torch.as_tensor(drawn).to(own.dtype), own)


def _step(obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
    """Return the columns of a step, with the action as the env counts it."""
    names = ("reward", "next_obs", "terminated", "truncated")
    return {"obs": obs, "action": output["action"], **{name: getattr(timestep, name) for name in names}}
