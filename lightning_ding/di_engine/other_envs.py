"""DI-engine's env types that need another package, and those that do not run here.

A function for each type reads the entries of the section, as those of :mod:`known_envs`. Where this differs: MiniGrid's
episodes are truncated at ``max_step`` and at their own limit, the images of DeepMind's tasks are bytes, and an end of
BitFlip by its number of steps is a truncation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lightning_ding.config import require
from lightning_ding.di_engine.data_sets import HANDS, env_of_d4rl
from lightning_ding.di_engine.env_section import EnvSection, Need

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
    if not section.take("with_goals", False):  # hindsight replay needs them
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


def _petting_zoo(section: EnvSection) -> None:
    section.need("mpe2", "pip install mpe2")
    given = section.take_id("simple_spread_v2", "simple_spread_v2")
    require(given.startswith("simple_spread"), "env.env_id", "'simple_spread_v2' with env.type 'petting_zoo'", given)
    section.take("env_family", "mpe")
    number = section.take("n_agent", 3)
    landmarks = section.take("n_landmark", number)
    require(landmarks == number, "env.n_landmark", f"{number}, as env.n_agent, which the game has", landmarks)
    kwargs = {"n_agent": number, "max_cycles": section.take("max_cycles", 25)}
    kwargs |= {name: True for name in ("continuous_actions", "agent_obs_only") if section.take(name, False)}
    section.use("lightning_ding.di_engine.team_envs.SimpleSpread", **kwargs)
    section.translated.append(f"env.env_id {given!r} -> simple_spread_v3 of the package mpe2, with {kwargs}")
    section.drop("agent_specific_global_state", "networks see what an agent sees beside the global state themselves")
    section.drop("act_scale", "policies map their actions from [-1, 1] to the bounds of the env")


def _pistonball(section: EnvSection) -> None:
    section.need("pettingzoo", "pip install 'lightning_ding[pettingzoo]'")
    section.need("pymunk", "pip install pymunk")
    given = section.take_id("pistonball_v6", "pistonball_v6")
    require(given == "pistonball_v6", "env.env_id", "'pistonball_v6'", given)
    section.take("env_family", "butterfly")
    number = section.take("n_pistons", 20)
    kwargs = {"n_pistons": number, "max_cycles": section.take("max_cycles", 125)}
    kwargs |= {"continuous": bool(section.take("continuous_actions", False))}
    kwargs |= {"global_state": "none"} if section.take("agent_obs_only", False) else {}
    section.use("pettingzoo:pettingzoo.butterfly.pistonball_v6", individual_rewards=False, **kwargs)
    section.wrap("lightning_ding.envs.rewards.scale_reward", train_only=True, scale=1 / (50 * number))
    section.translated.append(f"env.env_id {given!r} -> the game of pettingzoo, with {kwargs}; images are bytes")
    section.drop("channel_first", "networks find the axis of the channels")
    section.drop("agent_specific_global_state", "networks see what an agent sees beside the global state themselves")
    section.drop("act_scale", "policies map their actions from [-1, 1] to the bounds of the env")


def _mujoco_multi(section: EnvSection) -> None:
    given = section.take("scenario", None)
    known = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "Reacher", "Swimmer", "Walker2d")
    robot = str(given).partition("-")[0]
    allowed = f"the id of one of {', '.join(known)}, such as 'Ant-v2', or 'coupled_half_cheetah'"
    is_coupled = robot == "coupled_half_cheetah"
    require(robot in known or is_coupled, "env.scenario", allowed, given)
    section.need("gymnasium_robotics", "pip install gymnasium-robotics 'lightning_ding[mujoco]'")
    kwargs: dict[str, Any] = {"scenario": "CoupledHalfCheetah" if is_coupled else robot}
    nearest = section.take("agent_obsk", None)
    require(
        isinstance(nearest, int), "env.agent_obsk", "an int >= 0 with mamujoco_v1, where None is one agent", nearest
    )
    kwargs |= {"agent_conf": section.take("agent_conf", None), "agent_obsk": nearest}
    kwargs |= {"global_categories": []}  # in DI-engine, agents do not see the place of the robot
    limit = section.take("episode_limit", 1000)
    kwargs |= {} if is_coupled else {"max_episode_steps": limit}
    require(not is_coupled or limit == 1000, "env.episode_limit", "1000, the limit of CoupledHalfCheetah", limit)
    shared = {"team_reward": "mean", "individual_rewards": False}  # each agent gets the reward of the robot
    section.use("pettingzoo:gymnasium_robotics.envs.multiagent_mujoco.mamujoco_v1", **shared, **kwargs)
    section.translated.append(f"env.scenario {given!r} -> mamujoco_v1 of the package gymnasium-robotics, with {kwargs}")
    section.drop("add_agent_id", "networks know the agents by model.agent_id")
    for name in ("agent_obsk_agents", "obs_add_global_pos", "k_categories", "global_categories"):
        found = section.take(name, None)
        require(not found, f"env.{name}", "left out: mamujoco_v1 has other arguments for it", found)


ENV_TYPES: dict[str, Callable[[EnvSection], None]] = {
    "bitflip": _bitflip,
    "bsuite": _bsuite,
    "d4rl": _d4rl,
    "dmc2gym": _dmc2gym,
    "gym_hybrid": _gym_hybrid,
    "minigrid": _minigrid,
    "mujoco_multi": _mujoco_multi,
    "petting_zoo": _petting_zoo,
    "petting_zoo_pistonball": _pistonball,
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
    "overcooked",
    "overcooked_game",
    "slime_volley",
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
    "smac": "the package smac is not on PyPI, and needs StarCraft II",
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
        game = str(section.take("env_id", kind))
        raise ValueError(
            f"env.type must be of a single agent or of a team, got the game of several agents {game!r}, which is not "
            "here; a parallel env of PettingZoo is the env of a team, and lightning_ding.envs.PettingZooVectorEnv and "
            "the battle collectors run games of several players"
        )
    text = f"the env {kind!r} does not run here: {NOT_HERE[kind]}; {OWN_FUNCTION}"
    section.needs.append(Need("", text))
    section.use(kind)
    section.left.clear()
