"""The models in ``models.json``, as zip files made on the spot, and the actions of the packages for them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.sb3.make_models import FOLDER, OBSERVATIONS, SPACES, formula, masks, observations, write_zip


@cache
def models() -> dict[str, Any]:
    """Return what is stored of each model."""
    found: dict[str, Any] = json.loads((FOLDER / "models.json").read_text())
    return found


def weights_of(name: str) -> dict[str, torch.Tensor]:
    """Return the state dict of a model's policy."""
    shapes, same = models()[name]["shapes"].items(), models()[name]["same"]
    kinds = {key: torch.int64 if shape[-1:] == ["int"] else torch.float32 for key, shape in shapes}
    sizes = {key: tuple(size for size in shape if size != "int") for key, shape in shapes}
    return {key: formula(same.get(key, key), size, kinds[key]) for key, size in sizes.items()}


def make_zip(name: str, folder: Path, **changes: Any) -> Path:
    """Write the zip file of a model, with other entries of its JSON."""
    stored = models()[name]
    variables = {"log_ent_coef": torch.tensor([-1.25])} if stored["is_soft"] else {}
    return write_zip(folder / f"{name}.zip", {**stored["data"], **changes}, weights_of(name), variables)


def expected(name: str) -> Any:
    """Return the actions of the packages for the observations of :func:`inputs`."""
    with np.load(FOLDER / "actions.npz") as actions:
        return actions[name]


def inputs(name: str) -> Any:
    """Return the observations of a model, with a mask as the policy here gets it."""
    space, action_space = SPACES[name]
    obs = observations(space, OBSERVATIONS)
    if not name.startswith("maskable"):
        return obs
    mask = masks(action_space, OBSERVATIONS).astype(np.int8)
    return {**(obs if isinstance(obs, dict) else {"observation": obs}), "action_mask": mask}
