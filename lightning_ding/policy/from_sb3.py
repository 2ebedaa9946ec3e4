"""Policies of Stable-Baselines3 and its contrib package: ``model.zip`` as a policy that acts and learns here.

Networks compute the same greedy actions. The target network and SAC's temperature are those of the file; optimizers,
counters and replay data start anew, as the file holds no replay data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor, nn

from lightning_ding.config import deep_merge, require
from lightning_ding.policy.base.policy import Policy
from lightning_ding.policy.base.running_statistics import statistics_name
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.sb3.archive import read_archive
from lightning_ding.sb3.model import Spaces, translate_model
from lightning_ding.sb3.statistics import read_statistics

logger = logging.getLogger(__name__)


def load_sb3_policy(
    path: str | Path,
    vecnormalize: str | Path | None = None,
    *,
    spaces: Spaces | None = None,
    algorithm: str | None = None,
    cfg: Mapping[str, Any] | None = None,
) -> Policy[Any]:
    """Return the policy of a ``model.zip`` of Stable-Baselines3 or its contrib package, on the CPU.

    Only tensors and JSON of the file are read; no pickle in it is. The hyper-parameters that the file shows become the
    policy's config, so training continues with them; a warning names those that it does not show.

    Args:
        path: The file, of PPO, A2C, DQN, QR-DQN, SAC, TD3, DDPG, TQC, CrossQ, RecurrentPPO or MaskablePPO.
        vecnormalize: File that ``VecNormalize.save`` wrote, for a model that was trained with it; it is not unpickled
            either.
        spaces: Observation and action space of the model's env; None reads them off the file.
        algorithm: Name of the algorithm, such as ``"TD3"``; None reads it off the file.
        cfg: Entries of the policy's config in place of those of the file, such as ``{"learn": {"batch_size": 64}}``.

    Raises:
        ValueError: If the file is no such model, or the model has something that there is not here, such as a features
            extractor of the user; the message names it, and what to do.
        TypeError: If the policy does not support the spaces.
    """
    model = translate_model(read_archive(path), obs_shape, algorithm, spaces)
    policy: Policy[Any] = POLICY_REGISTRY.get(model.policy)(deep_merge(model.cfg, cfg or {}))
    policy.build(*model.spaces)
    policy.has_loaded_weights = True
    _copy(model.tensors, policy.model, path)
    target = getattr(policy, "target_model", None)
    if target is not None:
        _copy(model.tensors | model.target, target, path)
    if model.log_temperature is not None and policy.config.learn.auto_alpha:
        _set_temperature(policy, model.log_temperature)
    if vecnormalize is not None:
        _set_statistics(policy, vecnormalize)
    elif model.was_normalised:
        logger.warning(
            "%s was trained with a VecNormalize, whose statistics it does not hold: pass the file that its save() "
            "wrote as vecnormalize, or the policy acts on other observations than in training",
            path,
        )
    for note in model.notes:
        logger.warning("not translated from %s: %s", path, note)
    return policy.eval()


@torch.no_grad()
def _copy(tensors: Mapping[str, Tensor], network: nn.Module, path: str | Path) -> None:
    """Copy tensors into a network.

    Raises:
        ValueError: If one is missing or left over, or has another shape; nothing is copied.
    """
    expected = network.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted({name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name)})
    listed = "; ".join(f"{name}: {shapes.get(name)} here, {found.get(name)} there" for name in wrong[:3])
    if wrong:
        raise ValueError(f"the network of {str(path)!r} does not fit {type(network).__name__}: {listed}")
    network.load_state_dict({name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()})


@torch.no_grad()
def _set_temperature(policy: Any, logarithm: Tensor) -> None:
    value = logarithm if policy.config.learn.log_space else logarithm.exp()
    policy.temperature.copy_(value.reshape(()))


def _set_statistics(policy: Policy[Any], vecnormalize: str | Path) -> None:
    """Give a policy the statistics of a VecNormalize.

    Raises:
        ValueError: If they are not those of its observations.
    """
    assert policy.env_spaces is not None
    space = policy.env_spaces[0]
    is_wrapped = isinstance(space, Dict) and set(space.spaces) == {"observation", "action_mask"}  # a dict for the mask

    def name_of(keys: tuple[str, ...]) -> str:
        return statistics_name(("observation",) if is_wrapped and not keys else keys)

    statistics = read_statistics(vecnormalize, name_of)
    parts: dict[str, Any] = dict(space.spaces) if isinstance(space, Dict) else {"": space}
    for key, shape in statistics.shapes.items():
        part = parts.get("observation" if is_wrapped and not key else key)
        fits = isinstance(part, Box) and part.dtype.kind == "f" and part.shape == shape
        allowed = f"statistics of floats of the observation space {space} (not of single frames of a stack)"
        require(fits, f"the observations {key!r} of {str(vecnormalize)!r}".replace(" ''", ""), allowed, shape)
    policy.normaliser.load_state_dict(statistics.tensors)
