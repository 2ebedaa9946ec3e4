"""How a policy acts: its network runs on the envs' observations, normalised, in evaluation mode, without gradient.

Shapes: B batch.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.model.layers import InEvalMode
from lightning_ding.policy.base.normaliser import Normaliser


class ActionSelector:
    """Calls ``_forward_collect`` or ``_forward_eval`` of a policy.

    Args:
        normaliser: Normalises the observations.
    """

    def __init__(self, normaliser: Normaliser) -> None:
        self.precision: Callable[[], AbstractContextManager[None]] = nullcontext
        """Makes the context in which the network runs; see :func:`trainer.build_for_trainer`."""
        self._normaliser = normaliser

    def use(self, model: nn.Module) -> InEvalMode:
        """Switch this network to evaluation while acting; return what switches it while learning, where it matters."""
        self._in_eval_mode = InEvalMode(model)
        return InEvalMode(model, where_it_matters=True)

    def __call__(self, function: Callable[..., Any], obs: Any, device: torch.device | str, /, **kwargs: Any) -> Any:
        """Return the result of ``function`` for observations.

        Args:
            function: Takes B observations as tensors, and ``kwargs``.
            obs: B observations, as arrays or tensors, or ``{env_id: observation}``; the latter gives
                ``{env_id: output}``.
            device: Device of the network.
            kwargs: Further arguments of ``function``.
        """
        ids = list(obs) if isinstance(obs, dict) and obs and isinstance(next(iter(obs)), int) else None
        if not isinstance(obs, (Tensor, np.ndarray)):
            obs = nested.as_dicts(obs)  # observations of a Tuple space are tuples
        if type(obs) is np.ndarray and obs.dtype.char == "f":  # most observations are
            batch: Any = torch.from_numpy(obs)
        else:
            keeps = bool(self._normaliser.paths)
            batch = nested.to_tensor(obs, keeps) if ids is None else nested.stack([obs[i] for i in ids])
        if torch.device(device).type != "cpu":
            batch = nested.to(batch, device)
        with torch.set_grad_enabled(False), self._in_eval_mode, self.precision():  # no_grad() makes 8 calls, not 3
            output = function(self._normaliser.normalise_obs(batch), **kwargs)
        return output if ids is None else {env_id: nested.index(output, row) for row, env_id in enumerate(ids)}


def seed_exploration(seed: int | np.random.SeedSequence) -> np.random.Generator:
    """Return a seeded generator, and seed those of torch, numpy and Python, which an own ``_forward_collect`` may use.

    Args:
        seed: An integer >= 0, or a sequence; different on every rank.
    """
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    of_torch, of_numpy, of_python = sequence.generate_state(11)[8:].tolist()  # the first 8 words are the generator's
    torch.manual_seed(of_torch)
    np.random.seed(of_numpy)
    random.seed(of_python)
    return np.random.default_rng(sequence)


@cache  # finding it out takes some 10 us, in each round
def takes_setting(forward_collect: Callable[..., Any], name: str) -> bool:
    """Return whether a ``_forward_collect`` has an argument of this name, or takes all by ``**kwargs``."""
    parameters = inspect.signature(forward_collect).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
