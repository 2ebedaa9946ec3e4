"""DI-engine's own env types, as gymnasium envs with wrappers.

Each of DI-engine's env types is a function here that reads the entries of the section, and chooses a gymnasium env and
wrappers with the same observations, actions and rewards. Where this differs:

* Policies map their actions to the bounds of the env themselves, so ``act_scale: True`` needs no wrapper.
* Atari and CarRacing give images of bytes, which networks divide by 255, in place of floats. A game is limited to
  108,000 frames, and evaluations press FIRE after each lost life.
* ``norm_obs`` and ``norm_reward`` use statistics of all envs together and clip to [-10, 10]. DI-engine has separate
  statistics in each env and clips observations to [-3, 3].
* Evaluations get the unchanged rewards, so that their returns are those of the game, as in DI-engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from lightning_ding.config import nearest, require
from lightning_ding.di_engine import other_envs
from lightning_ding.di_engine.env_section import EnvSection, current_id
from lightning_ding.registry import ENV_REGISTRY

ATARI = "lightning_ding.envs.make_atari"
OTHER_OBSERVATIONS = {"Humanoid": 348, "HumanoidStandup": 348, "InvertedDoublePendulum": 9, "Reacher": 10}
"""Sizes of the observations of robots for which v5 leaves out numbers that are constant in v2 and v3."""
WITHIN = "actions of the policies are within the bounds of the env"
BEYOND_UNIT = frozenset({"Humanoid", "HumanoidStandup", "InvertedPendulum", "Pusher"})
"""Robots whose actions have other bounds than -1 and 1."""


def translate_known(section: EnvSection, kind: Any, modules: Sequence[str]) -> None:
    """Read the section of one of DI-engine's env types.

    Args:
        section: The section.
        kind: Name of the env type.
        modules: The ``import_names`` of the config, for the error.

    Raises:
        ValueError: If there is no such type, or an entry has a value that cannot be translated.
    """
    found = ENV_TYPES.get(kind) or other_envs.ENV_TYPES.get(kind)
    is_known = found is not None or kind in other_envs.SEVERAL_AGENTS or kind in other_envs.NOT_HERE
    if not is_known:
        hint = nearest(str(kind), [*ENV_TYPES, *ENV_REGISTRY])
        names = sorted([*ENV_TYPES, *other_envs.ENV_TYPES])
        raise ValueError(
            f"env.type must be one of {names}, or a BaseEnv that a module of env.import_names registers in "
            f"lightning_ding.registry.ENV_REGISTRY, got {kind!r} with import_names {list(modules)}; {hint}"
        )
    section.take_common()
    section.num_envs = _count(section, "collector_env_num")
    section.num_eval_envs = _count(section, "evaluator_env_num")
    section.drop("is_train", "it is True for collecting and False for evaluations, as in DI-engine")
    _take_gifs(section)
    if found is None:
        other_envs.use_other(section, kind)
    else:
        found(section)
    norm = section.left.get("norm_obs") or {}
    if norm.get("use_norm") and (norm.get("offline_stats") or {}).get("use_offline_stats"):
        section.take("norm_obs", None)
        section.norm_by_data = True
    for name in sorted(section.left):
        hint = nearest(name, section.known - {"type", "import_names", "manager", "cfg_type"})
        hint = f"; {hint}" if hint.startswith("did") else ""
        section.warnings.append(f"env.{name} has no effect: DI-engine's env type {kind!r} does not read it{hint}")


def _count(section: EnvSection, name: str) -> int:
    number = section.take(name, 1)
    require(isinstance(number, int) and number >= 1, f"env.{name}", "an int >= 1", number)
    return int(number)


def _take_gifs(section: EnvSection) -> None:
    """Read the entries for GIF files, which videos replace."""
    draws, folder = section.take("save_replay_gif", False), section.take("replay_path_gif", None)
    if draws or folder is not None:
        section.warnings.append("env.save_replay_gif has no effect: `eval` with replay_path writes videos as MP4")


def _cartpole(section: EnvSection) -> None:
    section.take_previous_step()
    section.use_fixed_id("cartpole", "CartPole-v0", "CartPole-v1", max_episode_steps=200)
    section.translated.append("env.type 'cartpole' (CartPole-v0) -> CartPole-v1 with episodes of at most 200 steps")


BOX2D = "pip install 'lightning_ding[box2d]'"


def _acrobot(section: EnvSection) -> None:
    section.use_fixed_id("acrobot", "Acrobot-v1", "Acrobot-v1")


def _mountain_car(section: EnvSection) -> None:
    section.use_fixed_id("mountain_car", "MountainCar-v0", "MountainCar-v0")


def _pendulum(section: EnvSection) -> None:
    section.use_fixed_id("pendulum", "Pendulum-v1", "Pendulum-v1")
    is_discrete = not section.take("continuous", True)
    if not _take_act_scale(section, by_policy=not is_discrete):
        section.wrap("UnitActions")
    if is_discrete:
        section.wrap("BinnedActions", bins=11)


def _take_act_scale(section: EnvSection, by_policy: bool = True) -> bool:
    """Return whether actions are scaled from [-1, 1] to the bounds of the env, which policies do themselves."""
    scales = bool(section.take("act_scale", False))
    if scales and by_policy:
        section.scales_actions = True
        section.translated.append(
            "env.act_scale True -> policies map their actions from [-1, 1] to the bounds of the env"
        )
    return scales


def _lunarlander(section: EnvSection) -> None:
    section.need("Box2D", BOX2D)
    section.take_previous_step()
    section.use_id(default="LunarLander-v2")
    _take_act_scale(section)  # the bounds are -1 and 1
    section.drop("action_clip", WITHIN)


def _bipedalwalker(section: EnvSection) -> None:
    section.need("Box2D", BOX2D)
    section.use_fixed_id("bipedalwalker", "BipedalWalker-v3", "BipedalWalker-v3")
    _take_act_scale(section)  # the bounds are -1 and 1
    if section.take("rew_clip", False):
        section.wrap("gymnasium.wrappers.ClipReward", train_only=True, min_reward=-10)


def _carracing(section: EnvSection) -> None:
    section.need("Box2D", BOX2D)
    section.use_id(default="CarRacing-v2", continuous=bool(section.take("continuous", True)))
    _take_act_scale(section)
    section.drop("action_clip", WITHIN)
    section.wrap("ChannelsFirst")


def _taxi(section: EnvSection) -> None:
    section.use_id(default="Taxi-v3", max_episode_steps=section.take("max_episode_steps", 200))
    section.wrap("OneHotObservation", sizes=[25, 5, 4])


def _frozen_lake(section: EnvSection) -> None:
    defaults = {"desc": None, "map_name": "4x4", "is_slippery": True}
    section.use_id(default="FrozenLake-v1", **{name: section.take(name, value) for name, value in defaults.items()})
    section.wrap("OneHotObservation", shift=-1)


def _cliffwalking(section: EnvSection) -> None:
    section.drop("render_mode", "`eval` sets it where it writes videos")
    new = current_id("CliffWalking-v0")
    steps = section.take("max_episode_steps", 300)
    given = section.take("env_id", "CliffWalking")
    if given not in ("CliffWalking", "CliffWalking-v0", new):
        section.warnings.append(f"env.env_id {given!r} has no effect: the env type 'cliffwalking' is always {new!r}")
    section.use(new, max_episode_steps=steps)
    section.wrap("OneHotObservation")


def _mujoco(section: EnvSection) -> None:
    section.need("mujoco", "pip install 'lightning_ding[mujoco]'")
    old = section.left.get("env_id")
    new = section.use_id()
    robot = new.partition("-")[0].removesuffix("TruncatedObs")
    if new != old or "TruncatedObs" in new:
        _adapt_robot(section, robot, without_forces="TruncatedObs" in new)
    section.drop("action_clip", WITHIN)
    if robot in BEYOND_UNIT:
        section.wrap("UnitActions")
    bins = section.take("action_bins_per_branch", None)
    if bins:
        section.wrap("BinnedActions", bins=bins)
    delay = section.take("delay_reward_step", 0)
    if delay > 1:
        section.wrap("DelayedReward", train_only=True, steps=delay)
    for name in ("norm_obs", "norm_reward"):
        _take_norm(section, name)


def _adapt_robot(section: EnvSection, robot: str, without_forces: bool) -> None:
    """Give the current version of a robot the observations that it had."""
    if without_forces:  # envs that DI-engine registers
        parts = ["cfrc_ext", *(("cinert", "cvel", "qfrc_actuator") if robot == "Humanoid" else ())]
        section.translated.append(f"env.env_id {section.env!r} -> {f'{robot}-v5'!r} without forces in observations")
        section.use(f"{robot}-v5", **{f"include_{part}_in_observation": False for part in parts})
    elif robot == "Ant":
        section.translated.append("env.env_id: the 111 observations of Ant-v3 -> those of Ant-v5 and 6 zeros")
        section.wrap("AntContactForces")
    elif robot in OTHER_OBSERVATIONS:
        size = OTHER_OBSERVATIONS[robot]
        section.warnings.append(
            f"env.env_id: {section.env} has {size} observations, because constant ones are left out"
        )


def _take_norm(section: EnvSection, name: str) -> None:
    entries = section.take(name, None) or {}
    if not entries.get("use_norm", False):
        return
    section.options[name] = True
    section.translated.append(f"env.{name}.use_norm -> {name}, with statistics of all envs together")
    for key in sorted(entries.keys() - {"use_norm"}):
        why = ": the policy's discount_factor is used" if key == "reward_discount" else ""
        section.warnings.append(f"env.{name}.{key} has no effect{why}")


def _atari(section: EnvSection) -> None:
    section.need("ale_py", "pip install 'lightning_ding[atari]'")
    section.take_previous_step()
    given = section.take_id(example="PongNoFrameskip-v4")
    game, repeats = _atari_game(section, given)
    stack = section.take("frame_stack", 4)
    require(isinstance(stack, int) and stack >= 1, "env.frame_stack", "an int >= 1", stack)
    section.use(ATARI, game=game, repeat_action_probability=repeats, stack=stack)
    section.eval_kwargs = {"training": False}
    section.translated.append(f"env.env_id {given!r} -> make_atari({game!r}, repeat_action_probability={repeats})")


def _atari_game(section: EnvSection, env_id: str) -> tuple[str, float]:
    """Return the name of a game, and the probability of repeating an action, of which the version decides."""
    found = re.fullmatch(r"(?:ALE/)?(\w+?)(NoFrameskip|Deterministic)?-v([045])", env_id)
    require(found is not None, "env.env_id", "the id of an Atari game, such as 'PongNoFrameskip-v4'", env_id)
    game, kind, version = found.groups()  # type: ignore[union-attr]
    if kind != "NoFrameskip":
        section.warnings.append(
            f"env.env_id {env_id!r}: each action lasts 4 frames here, where DI-engine skips frames twice"
        )
    return game, 0.0 if version == "4" else 0.25


ENV_TYPES: dict[str, Callable[[EnvSection], None]] = {
    "acrobot": _acrobot,
    "atari": _atari,
    "atari_mr": _atari,
    "bipedalwalker": _bipedalwalker,
    "carracing": _carracing,
    "cartpole": _cartpole,
    "cliffwalking": _cliffwalking,
    "frozen_lake": _frozen_lake,
    "lunarlander": _lunarlander,
    "mbmujoco": _mujoco,
    "mbpendulum": _pendulum,
    "mountain_car": _mountain_car,
    "mujoco": _mujoco,
    "pendulum": _pendulum,
    "taxi": _taxi,
}
"""DI-engine's env types. Each function reads the entries that its type has."""
