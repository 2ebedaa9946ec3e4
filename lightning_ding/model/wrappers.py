"""Wrappers of networks that choose actions or keep a target, for policy classes with a dict ``config``.

A wrapper is no module: it passes everything but its own methods to the network. Epsilon is drawn for each observation,
random numbers are torch's, and the network's output is not changed in place.

Shapes: B batch, N choices, A dimensions of a continuous action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_ding.config import nearest, require
from lightning_ding.rl import masked


class ModelWrapper:
    """Passes every call and attribute to a network.

    Args:
        model: The network, or another wrapper.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._model, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the network."""
        return self._model.forward(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what ``forward`` returns."""
        return self.forward(*args, **kwargs)

    def reset(self, *args: Any, **kwargs: Any) -> None:
        """Reset what is wrapped, if it can be."""
        if hasattr(self._model, "reset"):
            self._model.reset(*args, **kwargs)


class SampleWrapper(ModelWrapper):
    """Adds ``action`` to the output of a network.

    Args:
        model: The network, or another wrapper.
        choose: Function of the output's ``logit``, with the mask applied, and of the arguments that it needs.
        options: Names of these arguments, which ``forward`` takes by keyword.
    """

    def __init__(self, model: Any, choose: Callable[..., Any], options: tuple[str, ...] = ()) -> None:
        super().__init__(model)
        self._choose, self._options = choose, options

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the output of the network, with ``action``.

        Raises:
            TypeError: If an argument that the choice needs is missing.
        """
        missing = [name for name in self._options if name not in kwargs]
        if missing:
            raise TypeError(f"forward needs the argument {missing[0]!r} for the choice of actions")
        options = {name: kwargs.pop(name) for name in self._options}
        output = self._model.forward(*args, **kwargs)
        logit, mask = output["logit"], output.get("action_mask")
        if isinstance(logit, (list, tuple)):
            masks = [None] * len(logit) if mask is None else mask
            logit = [masked(one, legal) for one, legal in zip(logit, masks, strict=True)]
        elif isinstance(logit, Tensor):
            logit = masked(logit, mask)
        return {**output, "logit": logit, "action": self._choose(logit, **options)}


def _each(choose: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a choice of an action for each tensor of a list, or for one tensor."""

    def chosen(logit: Any, **options: Any) -> Any:
        if isinstance(logit, Tensor):
            return choose(logit, **options)
        return [choose(one, **options) for one in logit]

    return chosen


def _argmax(logit: Tensor) -> Tensor:
    return logit.argmax(-1)


def _multinomial(logit: Tensor) -> Tensor:
    return torch.multinomial(logit.flatten(0, -2).softmax(-1), 1).view(logit.shape[:-1])


def _random(logit: Tensor) -> Tensor:
    """Return uniform choices among those that are not masked."""
    return _multinomial(torch.where(logit == -torch.inf, logit, 0.0))


def _epsilon(choose: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def chosen(logit: Tensor, eps: float) -> Tensor:
        is_random = torch.rand(logit.shape[:-1], device=logit.device) < eps
        return torch.where(is_random, _random(logit), choose(logit))

    return chosen


def _gaussian(logit: Mapping[str, Tensor]) -> Tensor:
    return torch.normal(logit["mu"], logit["sigma"])


class ActionNoise(ModelWrapper):
    """Adds Gaussian noise to the ``action`` of a network, and clips it.

    Args:
        model: The network, or another wrapper.
        noise_type: Only ``"gauss"``.
        noise_kwargs: ``mu``, 0 by default, and ``sigma``, 1 by default.
        noise_range: ``min`` and ``max`` of the noise; None for no limit.
        action_range: ``min`` and ``max`` of the action with noise; None for no limit.

    Raises:
        ValueError: If there is no such noise.
    """

    def __init__(
        self,
        model: Any,
        noise_type: Literal["gauss"] = "gauss",
        noise_kwargs: Mapping[str, float] | None = None,
        noise_range: Mapping[str, float] | None = None,
        action_range: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(model)
        allowed = "'gauss'; DDPGPolicy has Ornstein-Uhlenbeck noise"
        require(noise_type == "gauss", "noise_type", allowed, noise_type)
        self._mean, self._sigma = (noise_kwargs or {}).get("mu", 0.0), (noise_kwargs or {}).get("sigma", 1.0)
        self._noise_range, self._action_range = noise_range, action_range

    def forward(self, *args: Any, sigma: float | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the output of the network, with noise in ``action`` if it has one; ``sigma`` replaces that so far."""
        self._sigma = self._sigma if sigma is None else sigma
        output = self._model.forward(*args, **kwargs)
        if "action" not in output:  # of a critic
            return dict(output)
        noise = self._mean + self._sigma * torch.randn_like(output["action"])
        action = output["action"] + _clipped(noise, self._noise_range)
        return {**output, "action": _clipped(action, self._action_range)}


def _clipped(value: Tensor, limits: Mapping[str, float] | None) -> Tensor:
    return value if limits is None else value.clamp(limits["min"], limits["max"])


class TargetNetwork(ModelWrapper):
    """A target network, which follows another network.

    Args:
        model: The target network, a copy of the other one.
        update_type: ``"assign"`` copies the weights at every ``freq``-th update; ``"momentum"`` moves them by the share
            ``theta`` at each.
        update_kwargs: ``freq``, >= 1, or ``theta``, in (0, 1].

    Raises:
        ValueError: If there is no such update, or its argument is missing.
    """

    def __init__(
        self, model: Any, update_type: Literal["assign", "momentum"], update_kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__(model)
        require(update_type in ("assign", "momentum"), "update_type", "'assign' or 'momentum'", update_type)
        name = "freq" if update_type == "assign" else "theta"
        require(name in update_kwargs, "update_kwargs", f"a mapping with {name!r} for {update_type!r}", update_kwargs)
        self._is_copied, self._amount = update_type == "assign", update_kwargs[name]
        self._update_count = 0

    @torch.no_grad()
    def update(self, state_dict: Mapping[str, Tensor], direct: bool = False) -> None:
        """Follow the weights of the other network.

        Args:
            state_dict: Weights of the other network.
            direct: Whether to copy them in any case, and to count from 0.
        """
        if direct or (self._is_copied and (self._update_count + 1) % self._amount == 0):
            self._model.load_state_dict(state_dict, strict=True)
        elif not self._is_copied:
            for name, parameter in self._model.named_parameters():
                parameter.lerp_(state_dict[name], self._amount)
        self._update_count = 0 if direct else self._update_count + 1

    def reset(self, *args: Any, target_update_count: int | None = None, **kwargs: Any) -> None:
        """Set the number of updates so far, if it is given, and reset what is wrapped."""
        self._update_count = self._update_count if target_update_count is None else target_update_count
        super().reset(*args, **kwargs)


def _sampler(choose: Callable[..., Any], *options: str) -> Callable[..., SampleWrapper]:
    return lambda model: SampleWrapper(model, choose, options)


def _noise(model: Any, action_range: Any = "unit", **options: Any) -> ActionNoise:
    limits = {"min": -1.0, "max": 1.0} if action_range == "unit" else action_range
    return ActionNoise(model, action_range=limits, **options)


WRAPPERS: dict[str, Callable[..., ModelWrapper]] = {
    "base": ModelWrapper,
    "argmax_sample": _sampler(_each(_argmax)),
    "multinomial_sample": _sampler(_each(_multinomial)),
    "eps_greedy_sample": _sampler(_each(_epsilon(_argmax)), "eps"),
    "eps_greedy_multinomial_sample": _sampler(_each(_epsilon(_multinomial)), "eps"),
    "deterministic_sample": _sampler(lambda logit: logit["mu"]),
    "reparam_sample": _sampler(_gaussian),
    "action_noise": _noise,
    "target": TargetNetwork,
}
"""Wrappers by their documented names."""


def model_wrap(model: Any, wrapper_name: str, **kwargs: Any) -> ModelWrapper:
    """Return a network in a wrapper.

    Args:
        model: The network, or a wrapper of one.
        wrapper_name: One of ``WRAPPERS``.
        **kwargs: Further arguments of the wrapper; see :class:`ActionNoise` and :class:`TargetNetwork`.

    Raises:
        ValueError: If there is no such wrapper.

    Example:
        >>> from lightning_ding.model import DQN
        >>> model = model_wrap(DQN(obs_shape=3, action_shape=2), wrapper_name="eps_greedy_sample")
        >>> model.forward(torch.zeros(5, 3), eps=0.1)["action"].shape
        torch.Size([5])
    """
    if wrapper_name not in WRAPPERS:
        raise ValueError(f"there is no wrapper {wrapper_name!r}; {nearest(str(wrapper_name), WRAPPERS)}")
    return WRAPPERS[wrapper_name](model, **kwargs)
