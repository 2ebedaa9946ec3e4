"""Writes ding_simple_spread.json: what DI-engine's env type ``petting_zoo`` returns for fixed seeds and actions.

Run it with a Python that has mpe2 1.1.1, pettingzoo 1.27 and easydict, beside the source of DI-engine 0.5.3:
``python make_ding_simple_spread.py ding_simple_spread.json PATH_OF_DI_ENGINE``. The env's file is run unchanged; the
names that it imports from ``ding`` and from ``pettingzoo.mpe``, which is now ``mpe2``, are replaced.
"""

from __future__ import annotations

import json
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from easydict import EasyDict

FILE = "dizoo/petting_zoo/envs/petting_zoo_simple_spread_env.py"
SECTIONS: list[dict[str, Any]] = [
    {"n_agent": 3, "n_landmark": 3},
    {"n_agent": 2, "n_landmark": 2, "continuous_actions": True, "act_scale": True, "max_cycles": 4},
    {"n_agent": 3, "n_landmark": 3, "agent_specific_global_state": True},
    {"n_agent": 4, "n_landmark": 4, "agent_obs_only": True},
]
SEED, STEPS = 7, 4


def module(name: str, **content: Any) -> None:
    """Put a module in the place of one that is imported."""
    sys.modules[name] = made = types.ModuleType(name)
    vars(made).update(content)


class Registry:
    """Registers nothing."""

    def register(self, name: str) -> Any:
        return lambda kind: kind


def affine_transform(action: Any, min_val: Any, max_val: Any) -> Any:
    """As in ding.envs.common.common_function: from [-1, 1] to the bounds."""
    return (action + 1) / 2 * (max_val - min_val) + min_val


def parallel_wrapper_fn(wrap: Any, make: Any) -> Any:
    """Return the maker of a parallel env whose reset returns observations alone, as it did."""

    def maker(**arguments: Any) -> Any:
        env = wrap(make)(**arguments)
        reset = env.reset
        env.reset = lambda **given: reset(**given)[0]
        return env

    return maker


def load(folder: Path) -> Any:
    """Return the class of DI-engine's env."""
    from mpe2._mpe_utils import simple_env
    from mpe2.simple_spread import simple_spread
    from pettingzoo.utils import conversions

    timestep = types.SimpleNamespace
    module("ding")
    module("ding.envs", BaseEnv=object, BaseEnvTimestep=lambda *values: timestep(values=values), FrameStackWrapper=None)
    module("ding.torch_utils", to_ndarray=np.asarray, to_list=list)
    module("ding.envs.common")
    module("ding.envs.common.common_function", affine_transform=affine_transform)
    module("ding.utils", ENV_REGISTRY=Registry(), import_module=None)
    module("pettingzoo.mpe")
    module("pettingzoo.mpe._mpe_utils")
    module("pettingzoo.mpe._mpe_utils.simple_env", SimpleEnv=simple_env.SimpleEnv, make_env=simple_env.make_env)
    module("pettingzoo.mpe.simple_spread")
    module("pettingzoo.mpe.simple_spread.simple_spread", Scenario=simple_spread.Scenario)
    conversions_then = types.ModuleType("pettingzoo.utils.conversions")
    wrap = partial(parallel_wrapper_fn, conversions.parallel_wrapper_fn)
    conversions_then.parallel_wrapper_fn = wrap  # type: ignore[attr-defined]
    sys.modules["pettingzoo.utils.conversions"] = conversions_then
    namespace: dict[str, Any] = {"__name__": "ding_env"}
    exec(compile((folder / FILE).read_text(), FILE, "exec"), namespace)
    return namespace["PettingZooEnv"]


def plain(obs: Any) -> Any:
    """Return an observation as lists."""
    return {name: one.tolist() for name, one in obs.items()} if isinstance(obs, dict) else obs.tolist()


def run(kind: Any, section: dict[str, Any]) -> dict[str, Any]:
    """Return the section, the actions, and what the env returns for them."""
    env = kind(EasyDict({"env_family": "mpe", "env_id": "simple_spread_v2", "agent_obs_only": False, **section}))
    env.seed(SEED)
    obs, rewards, dones, actions = [plain(env.reset())], [], [], []
    draw = np.random.RandomState(0)
    for _ in range(STEPS):
        is_box = section.get("continuous_actions", False)
        size = (section["n_agent"], 5) if is_box else (section["n_agent"], 1)
        action = draw.uniform(-1, 1, size).astype(np.float32) if is_box else draw.randint(5, size=size)
        actions.append(action.tolist())
        seen, reward, done, _ = env.step(action).values
        obs.append(plain(seen))
        rewards.append(reward.item())
        dones.append(bool(done))
    return {"section": section, "seed": SEED, "action": actions, "obs": obs, "reward": rewards, "done": dones}


if __name__ == "__main__":
    found = load(Path(sys.argv[2]))
    Path(sys.argv[1]).write_text(json.dumps([run(found, section) for section in SECTIONS]) + "\n")
