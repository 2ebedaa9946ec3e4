"""Models of Stable-Baselines3 and its contrib package, and the actions that they take.

Run ``python tests/sb3/make_models.py`` where both packages are installed, to write ``models.json`` and ``actions.npz``:
what the zip files hold as JSON, without its pickles, the shapes of their weights, and the greedy actions for
``OBSERVATIONS`` observations. The weights are those of ``formula``, so they need not be stored.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

FOLDER = Path(__file__).parent
OBSERVATIONS, STEPS = 1000, 40
VECTOR, IMAGE = spaces.Box(-2, 2, (3,), np.float32), spaces.Box(0, 255, (2, 36, 36), np.uint8)
BYTES = spaces.Box(0, 255, (4,), np.uint8)
WIDE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
MIXED = spaces.Dict([("speed", VECTOR), ("gear", spaces.Discrete(3)), ("bits", spaces.MultiBinary(2))])
SEEING = spaces.Dict([("speed", VECTOR), ("image", IMAGE)])
SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "ppo_box": (VECTOR, WIDE),
    "ppo_discrete": (VECTOR, spaces.Discrete(4)),
    "ppo_multi_discrete": (spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([3, 2])),
    "ppo_multi_binary": (BYTES, spaces.MultiBinary(3)),
    "ppo_image": (IMAGE, spaces.Discrete(4)),
    "ppo_dict": (MIXED, spaces.Discrete(4)),
    "ppo_seeing": (SEEING, WIDE),
    "ppo_sde": (VECTOR, WIDE),
    "a2c": (VECTOR, spaces.Discrete(4)),
    "maskable": (VECTOR, spaces.Discrete(4)),
    "maskable_dict": (MIXED, spaces.MultiDiscrete([3, 2])),
    "recurrent": (VECTOR, spaces.Discrete(4)),
    "recurrent_shared": (BYTES, WIDE),
    "dqn": (VECTOR, spaces.Discrete(4)),
    "dqn_one_hot": (spaces.Discrete(5), spaces.Discrete(4)),
    "dqn_image": (IMAGE, spaces.Discrete(4)),
    "dqn_dict": (MIXED, spaces.Discrete(4)),
    "qrdqn": (VECTOR, spaces.Discrete(4)),
    "sac": (VECTOR, WIDE),
    "sac_dict": (MIXED, WIDE),
    "sac_sde": (VECTOR, WIDE),
    "td3": (VECTOR, WIDE),
    "ddpg": (VECTOR, WIDE),
    "tqc": (VECTOR, WIDE),
    "crossq": (VECTOR, WIDE),
}
"""The spaces of each model."""


def formula(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor of a name: waves that depend on it, positive for variances, smaller for more inputs."""
    if not dtype.is_floating_point:
        return torch.full(shape, 7, dtype=dtype)
    size = int(np.prod(shape))
    wave = np.sin(np.arange(1, size + 1) * 1.7 + sum(map(ord, name)) * 0.37) + np.cos(np.arange(size) ** 2 * 0.11)
    values = wave * 2.5 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else wave * 0.1
    if name.endswith(("ra_var", "scale")):
        values = 1.5 + 0.5 * np.sin(wave)
    return torch.from_numpy(values.reshape(shape)).to(dtype)


def observations(space: spaces.Space[Any], number: int) -> Any:
    """Return observations of a space, the same on every machine."""
    if isinstance(space, spaces.Dict):
        return {name: observations(part, number) for name, part in space.spaces.items()}
    shape = (number, *(space.shape or ()))
    wave = np.sin(np.arange(int(np.prod(shape))) * 0.713 + np.arange(int(np.prod(shape))) ** 2 * 0.0137).reshape(shape)
    unit = (wave + 1) / 2
    if isinstance(space, spaces.Discrete):
        return np.minimum((unit * space.n).astype(np.int64), space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.minimum((unit * space.nvec).astype(np.int64), space.nvec - 1)
    if isinstance(space, spaces.MultiBinary):
        return (unit > 0.5).astype(np.int8)
    assert isinstance(space, spaces.Box)
    return (space.low + unit * (space.high - space.low)).astype(space.dtype)


def masks(space: spaces.Space[Any], number: int) -> Any:
    """Return masks with a legal action in each dimension."""
    sizes = space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) else [int(space.n)]  # type: ignore[attr-defined]
    columns = []
    for size in sizes:
        mask = np.sin(np.arange(number * size) * 0.91).reshape(number, size) > 0
        mask[np.arange(number), np.arange(number) % size] = True
        columns.append(mask)
    return np.concatenate(columns, 1)


def write_zip(path: Path, data: dict[str, Any], weights: dict[str, Any], variables: dict[str, Any]) -> Path:
    """Write what the packages write, as far as it is read."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", json.dumps(data))
        for name, content in (("policy.pth", weights), ("pytorch_variables.pth", variables)):
            buffer = io.BytesIO()
            torch.save(content, buffer)
            archive.writestr(name, buffer.getvalue())
    return path


class Spaces(gym.Env[Any, Any]):
    """An env with these spaces, for models that are not trained."""

    def __init__(self, name: str) -> None:
        self.observation_space, self.action_space = SPACES[name]


def makers() -> dict[str, Callable[[Any], Any]]:
    """Return a function from an env to a model, by the names in ``SPACES``."""
    import sb3_contrib as contrib
    import stable_baselines3 as sb3
    from stable_baselines3.common.noise import NormalActionNoise

    lists, short = {"net_arch": {"pi": [8, 6], "vf": [7]}}, {"net_arch": [8, 6]}
    relu = {"activation_fn": torch.nn.ReLU}
    small = {"features_extractor_kwargs": {"features_dim": 6}}
    seeing = {"features_extractor_kwargs": {"cnn_output_dim": 6}}
    noise = NormalActionNoise(np.zeros(2), np.full(2, 0.25))
    lstm = {"lstm_hidden_size": 5, "net_arch": {"pi": [6], "vf": [4]}}
    shared = {**lstm, "n_lstm_layers": 2, "shared_lstm": True, "enable_critic_lstm": False}
    sde = {"log_std_init": -1.5, "use_expln": True}
    replay = {"buffer_size": 10, "device": "cpu"}

    def ppo(policy: str, **options: Any) -> Callable[[Any], Any]:
        return lambda env: sb3.PPO(policy, env, n_steps=8, batch_size=4, device="cpu", **options)

    def recurrent(**options: Any) -> Callable[[Any], Any]:
        return lambda env: contrib.RecurrentPPO(
            "MlpLstmPolicy", env, n_steps=8, device="cpu", policy_kwargs={**options}
        )

    def masked(policy: str, env: Any) -> Any:
        return contrib.MaskablePPO(policy, env, n_steps=8, batch_size=4, device="cpu", policy_kwargs={**short})

    return {
        "ppo_box": ppo("MlpPolicy", policy_kwargs={**lists, **relu}, learning_rate=2e-4, clip_range=0.3),
        "ppo_discrete": ppo("MlpPolicy", policy_kwargs={"net_arch": {"pi": [], "vf": [5]}}),
        "ppo_multi_discrete": ppo("MlpPolicy", policy_kwargs={**short}),
        "ppo_multi_binary": ppo("MlpPolicy", policy_kwargs={**lists}),
        "ppo_image": ppo("CnnPolicy", policy_kwargs={**small}),
        "ppo_dict": ppo("MultiInputPolicy", policy_kwargs={**lists}),
        "ppo_seeing": ppo("MultiInputPolicy", policy_kwargs={**seeing, **lists, "share_features_extractor": False}),
        "ppo_sde": ppo("MlpPolicy", use_sde=True, sde_sample_freq=4, policy_kwargs={**short, **sde}),
        "a2c": lambda env: sb3.A2C("MlpPolicy", env, device="cpu", policy_kwargs={**short}),
        "maskable": lambda env: masked("MlpPolicy", env),
        "maskable_dict": lambda env: masked("MultiInputPolicy", env),
        "recurrent": recurrent(**lstm),
        "recurrent_shared": recurrent(**shared),
        "dqn": lambda env: sb3.DQN("MlpPolicy", env, policy_kwargs={**short}, **replay),
        "dqn_one_hot": lambda env: sb3.DQN("MlpPolicy", env, policy_kwargs={**short}, **replay),
        "dqn_image": lambda env: sb3.DQN("CnnPolicy", env, policy_kwargs={**small, "net_arch": [5, 5]}, **replay),
        "dqn_dict": lambda env: sb3.DQN("MultiInputPolicy", env, policy_kwargs={**short}, **replay),
        "qrdqn": lambda env: contrib.QRDQN("MlpPolicy", env, policy_kwargs={**short, "n_quantiles": 3}, **replay),
        "sac": lambda env: sb3.SAC("MlpPolicy", env, policy_kwargs={"net_arch": {"pi": [8, 6], "qf": [7]}}, **replay),
        "sac_dict": lambda env: sb3.SAC("MultiInputPolicy", env, policy_kwargs={**short}, ent_coef=0.1, **replay),
        "sac_sde": lambda env: sb3.SAC("MlpPolicy", env, use_sde=True, policy_kwargs={**short, **sde}, **replay),
        "td3": lambda env: sb3.TD3("MlpPolicy", env, policy_kwargs={**short}, action_noise=noise, **replay),
        "ddpg": lambda env: sb3.DDPG("MlpPolicy", env, policy_kwargs={**short}, **replay),
        "tqc": lambda env: contrib.TQC("MlpPolicy", env, policy_kwargs={**short, "n_quantiles": 3}, **replay),
        "crossq": lambda env: contrib.CrossQ("MlpPolicy", env, policy_kwargs={**short}, **replay),
    }


def actions_of(model: Any, name: str) -> Any:
    """Return the greedy actions of a model of the packages, (steps, batch, ...) of one with memory."""
    space, action_space = SPACES[name]
    obs = observations(space, OBSERVATIONS)
    if name.startswith("maskable"):
        return model.predict(obs, deterministic=True, action_masks=masks(action_space, OBSERVATIONS))[0]
    if not name.startswith("recurrent"):
        return model.predict(obs, deterministic=True)[0]
    rows, state = obs.reshape(STEPS, -1, *obs.shape[1:]), None
    found = []
    for step, row in enumerate(rows):
        starts = np.full(len(row), step == 0)
        action, state = model.predict(row, state, starts, deterministic=True)
        found.append(action)
    return np.stack(found)


def without_pickles(data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a file without pickles and docstrings."""

    def short(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        own = ("__module__", "_shape", "_sigma")
        kept = {key: one for key, one in value.items() if key in own or not key.startswith("_")}
        kept = {key: one for key, one in kept.items() if len(str(one)) < 1000}
        return {**kept, **({":serialized:": ""} if ":serialized:" in value else {})}

    return {key: short(value) for key, value in data.items() if key not in ("system_info", "rollout_buffer_class")}


def write_statistics(file: Path) -> Any:
    """Write statistics of the observations of ``ppo_box``, and return its actions for normalised ones."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: Spaces("ppo_box")]), gamma=0.9, epsilon=1e-3)
    env.obs_rms.mean, env.obs_rms.var = np.array([0.5, -0.25, 0.0]), np.array([0.04, 4.0, 1.0])
    env.obs_rms.count, env.ret_rms.var = 100.0, np.array(9.0)
    env.save(str(file))
    model = makers()["ppo_box"](env)
    state = model.policy.state_dict()
    model.policy.load_state_dict({key: formula(key, tuple(x.shape), x.dtype) for key, x in state.items()})
    return model.predict(env.normalize_obs(observations(VECTOR, OBSERVATIONS)), deterministic=True)[0]


def main() -> None:
    """Write the files."""
    models: dict[str, Any] = {}
    actions: dict[str, Any] = {}
    for name, make in makers().items():
        model = make(Spaces(name))
        state = model.policy.state_dict()
        model.policy.load_state_dict({key: formula(key, tuple(x.shape), x.dtype) for key, x in state.items()})
        file = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp") / f"{name}.zip"
        model.save(file)
        with zipfile.ZipFile(file) as archive:
            data = without_pickles(json.loads(archive.read("data")))
        file.unlink()
        shapes = {key: [*x.shape] if x.dtype == torch.float32 else [*x.shape, "int"] for key, x in state.items()}
        last = {x.data_ptr(): key for key, x in state.items() if x.numel()}  # of tensors with several names
        same = {key: last[x.data_ptr()] for key, x in state.items() if last.get(x.data_ptr(), key) != key}
        actions[name], is_soft = actions_of(model, name), getattr(model, "ent_coef_optimizer", None) is not None
        models[name] = {"data": data, "shapes": shapes, "same": same, "is_soft": is_soft}
    actions["normalised"] = write_statistics(FOLDER / "vecnormalize.pkl")
    (FOLDER / "models.json").write_text(json.dumps(models, separators=(",", ":")) + "\n")
    np.savez_compressed(FOLDER / "actions.npz", **actions)


if __name__ == "__main__":
    main()
