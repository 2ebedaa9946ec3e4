"""DI-engine's env types that need another package, and those that do not run here.

A function for each type reads the entries of the section, as those of :mod:`known_envs`. Where this differs: MiniGrid's
episodes are truncated at ``max_step`` and at their own limit, the images of DeepMind's tasks are bytes, and an end of
BitFlip by its number of steps is a truncation.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lightning_ding.config import require
from lightning_ding.di_engine.data_sets import HANDS, env_of_d4rl
from lightning_ding.di_engine.env_section import EnvSection, Need, current_id

MAKERS = "lightning_ding.di_engine.env_makers"
OWN_FUNCTION = "make it in a function of your own, and pass that as env_setting"


def _minigrid(section: EnvSection) -> None:
    env_id = section.take_id("MiniGrid-KeyCorridorS3R3-v0", "MiniGrid-Empty-8x8-v0")
    section.need("minigrid", "pip install 'lightning_ding[minigrid]'")
    if re.search("AKTDT|NoisyTV", env_id):
        section.needs.append(Need("", f"the env {env_id!r} does not run here: it is a part of dizoo; {OWN_FUNCTION}"))
    for name in ("onehot_obs", "move_bonus"):
        found = section.take(name, False)
        require(not found, f"env.{name}", "False: there is no such wrapper here", found)
    section.take_previous_step()
    options = {"flat": bool(section.take("flat_obs", True)), "full": bool(section.take("full_obs", False))}
    steps = section.take("max_step", None)
    section.use(f"{MAKERS}.make_minigrid", name=env_id, **options, **({"max_episode_steps": steps} if steps else {}))
    section.translated.append(f"env.env_id {env_id!r} -> the package minigrid, with {options}")


def _bitflip(section: EnvSection) -> None:
    section.use("lightning_ding.envs.bit_flip.BitFlipEnv", n_bits=section.take("n_bits", 5))
    section.wrap(f"{MAKERS}.FlatGoal")


def _bsuite(section: EnvSection) -> None:
    env_id = section.take_id(example="memory_len/0")
    section.need("bsuite", "pip install 'lightning_ding[bsuite]'")
    section.use(f"{MAKERS}.make_bsuite", bsuite_id=env_id)


def _dmc2gym(section: EnvSection) -> None:
    section.need("dm_control", "pip install 'lightning_ding[dm-control]'")
    domain, task = (section.take(name, None) for name in ("domain_name", "task_name"))
    for name, value in (("domain_name", domain), ("task_name", task)):
        require(isinstance(value, str), f"env.{name}", "a name such as 'cartpole' and 'swingup'", value)
    section.take("env_id", None)
    is_image = bool(section.take("from_pixels", True))
    stack = section.take("frame_stack", 3 if is_image else 1)
    size, grey = section.take("resize", 84), bool(section.take("warp_frame", False))
    height, width = section.take("height", size), section.take("width", size)
    require(height == width, "env.height", f"that of env.width, {width}", height)
    section.drop("channels_first", "images always have their channels first")
    section.drop("scale", "networks divide bytes by 255")
    section.drop("use_act_scale", "actions are in [-1, 1]")
    section.drop("visualize_reward", "it changes videos only")
    for name in ("norm_obs", "norm_reward"):
        entries = section.take(name, None) or {}
        section.options |= {name: True} if entries.get("use_norm", False) else {}
    steps = section.take("frame_skip", 4) * section.take("action_repeat", 1)
    if section.take("clip_rewards", False):
        section.wrap("lightning_ding.envs.rewards.sign_reward", train_only=True)
    pixels = {"pixels": size if grey else height} if is_image else {}
    section.use(f"{MAKERS}.make_dm_control", domain_name=domain, task_name=task, frame_skip=steps, **pixels)
    if is_image and (stack > 1 or grey):
        section.wrap(f"{MAKERS}.GreyStack", stack=stack, grey=grey)
    elif stack > 1:
        section.warnings.append(f"env.frame_stack = {stack} has no effect on states")


def _gym_hybrid(section: EnvSection) -> None:
    env_id = section.take_id("Moving-v0", "Moving-v0")
    require(env_id in ("Moving-v0", "Sliding-v0"), "env.env_id", "'Moving-v0' or 'Sliding-v0'", env_id)
    section.drop("act_scale", "policies map their actions to the bounds of the env")
    section.use(f"{MAKERS}.{env_id.removesuffix('-v0')}")
    section.translated.append(f"env.env_id {env_id!r} -> the env of this package with the same dynamics")


def _pomdp(section: EnvSection) -> None:
    section.need("ale_py", "pip install 'lightning_ding[atari]'")
    given = section.take_id(example="Pong-ramNoFrameskip-v4")
    found = re.fullmatch(r"(?P<game>\w+?)(-ram)?NoFrameskip-v4", given)
    require(found is not None, "env.env_id", "the id of a game's memory, such as 'Pong-ramNoFrameskip-v4'", given)
    require(bool(section.take("use_ram", False)), "env.use_ram", "True: other observations are those of 'atari'", False)
    section.drop("warp_frame", "the memory is no image")
    section.drop("render", "`eval` writes videos")
    options = section.take("pomdp", {}) | {"stack": section.take("frame_stack", 4)}
    game = found["game"]  # type: ignore[index]
    section.use(f"{MAKERS}.make_flawed_ram", game=game, **options)
    section.eval_kwargs = {"training": False}
    section.translated.append(f"env.env_id {given!r} -> the memory of {game}, with noise")


def _procgen(section: EnvSection) -> None:
    section.need("procgen", "pip install procgen, which has wheels for Python 3.10 and earlier")
    game = section.take_id("coinrun", "coinrun")
    controls, start = bool(section.take("control_level", True)), section.take("start_level", 0)
    levels = section.take("num_levels", 0)
    if not controls:
        section.warnings.append(
            "env.control_level = False: a seed chooses the levels of a whole run, not of an episode"
        )
    section.use(f"{MAKERS}.Procgen", game=game, start_level=start if controls else 0, num_levels=levels)


def _d4rl(section: EnvSection) -> None:
    name = section.take_id(example="hopper-medium-v2")
    section.use(env_of_d4rl(name))
    section.dataset = name
    package = "gymnasium_robotics" if name.partition("-")[0] in HANDS else "mujoco"
    extra = "gymnasium-robotics" if package != "mujoco" else "'lightning_ding[mujoco]'"
    section.need(package, f"pip install {extra}")
    section.translated.append(f"env.env_id {name!r} -> evaluations in {section.env!r}, and the data set of that name")
    section.drop("use_act_scale", "actions of the policies are within the bounds of the env")
    section.reward_norm = section.take("reward_norm", None)
    entries = section.take("norm_obs", None) or {}
    if entries.get("use_norm", False):
        is_fixed = bool((entries.get("offline_stats") or {}).get("use_offline_stats", False))
        require(is_fixed, "env.norm_obs.offline_stats.use_offline_stats", "True with a data set", is_fixed)
        section.options["norm_obs"] = True
        section.translated.append("env.norm_obs -> norm_obs, with the statistics of the data set")
    section.take("norm_reward", None)  # of evaluations, which DI-engine leaves as they are


ENV_TYPES: dict[str, Callable[[EnvSection], None]] = {
    "bitflip": _bitflip,
    "bsuite": _bsuite,
    "d4rl": _d4rl,
    "dmc2gym": _dmc2gym,
    "gym_hybrid": _gym_hybrid,
    "minigrid": _minigrid,
    "pomdp": _pomdp,
    "procgen": _procgen,
}
"""Env types of other packages. Each function reads the entries that its type has."""

SEVERAL_AGENTS = (
    "competitive_rl",
    "gfootball-academy",
    "gobigger",
    "ising_model",
    "ising_model_env",
    "ising",
    "mujoco_multi",
    "overcooked",
    "overcooked_game",
    "petting_zoo",
    "petting_zoo_pistonball",
    "slime_volley",
    "smac",
)
"""Env types with several agents."""
NOT_HERE: dict[str, str] = {
    "beergame": "it is a part of dizoo",
    "evogym": "the package evogym needs the body of a robot from a file of dizoo",
    "gfootball": "the package gfootball is made for gym, and compiles its engine when it is installed",
    "gym_pybullet_drones": "the package gym-pybullet-drones is not on PyPI",
    "gym_soccer": "the package gym-soccer is not on PyPI",
    "maze": "it is a part of dizoo",
    "pybullet": "the package pybullet has its envs for gym",
    "rocket": "the package rocket-recycling is not on PyPI",
    "stocks-v0": "it is a part of dizoo, on the package gym-anytrading",
    "tabmwp": "it asks the service of OpenAI for each step",
    "metadrive": "the package metadrive-simulator has no wheel for current Pythons",
    "nethack": "the package nle is made for gym",
    "cityflow": "the package cityflow is not on PyPI",
    "sokoban": "the package gym-sokoban is made for gym",
}
"""Env types that do not run here as they are, and the reasons."""


def use_other(section: EnvSection, kind: str) -> None:
    """Read the section of an env type that does not run here; the run says so when all else has been translated.

    Raises:
        ValueError: If the env has several agents.
    """
    if kind in SEVERAL_AGENTS:
        game = current_id(str(section.take("env_id", kind.replace("petting_zoo_pistonball", "pistonball_v6"))))
        raise ValueError(
            f"env.type must be of a single agent, got the game of several agents {game!r}: DI-engine's policies for "
            "these games are not available here; lightning_ding.envs.PettingZooVectorEnv and the battle collectors run "
            "games of several players"
        )
    text = f"the env {kind!r} does not run here: {NOT_HERE[kind]}; {OWN_FUNCTION}"
    section.needs.append(Need("", text))
    section.use(kind)
    section.left.clear()
