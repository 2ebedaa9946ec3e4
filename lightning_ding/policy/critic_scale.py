"""The scale of a critic's output, which follows the returns (``learn.value_norm``) and leaves all values as they are.

Papers: PopArt: van Hasselt et al. 2016 (https://arxiv.org/abs/1602.07714); symlog: Hafner et al. 2023, eq. 9
(https://arxiv.org/abs/2301.04104).

Where this differs: the scale (PopArt's mean and standard deviation, or the root mean square) is renewed once a round,
before the updates. It is a moving average in which older returns have at most the weight of 1,024 ones, so a few large
returns are forgotten.

Shapes: S transitions of a rollout, B batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.policy.base.policy import ConfigT, Policy
from lightning_ding.policy.base.rank_statistics import update_over_ranks
from lightning_ding.policy.base.round import Batch
from lightning_ding.rl.value_scales import CriticScale
from lightning_ding.utils.ranks import rank_and_world_size

logger = logging.getLogger(__name__)

SMALLEST_STD = 1e-4  # of returns, for PopArt
RETURNS_KEPT = 1024  # older returns have at most the weight of so many in the scale of the critic


class ScaledCriticPolicy(Policy[ConfigT]):
    """A policy whose critic predicts returns in units of a scale.

    A scale that follows the returns (``value_norm`` true or "popart") changes ``critic_output`` of a network passed as
    ``model``, the last linear layer of its critic, or else the ``nn.Linear`` whose output is the value. If there is
    none, or its weights are computed from others, as pruned ones are, an affine function after the network changes, a
    ``rl.value_scales.CriticScale``.
    """

    config: Any
    _loaded_kind: Any = None  # learn.value_norm of the checkpoint that was loaded last

    def _make_return_statistics(self) -> None:
        """Make the statistics by which the critic's outputs are scaled, unless there are some or none are needed."""
        learn = self.config.learn
        is_used = learn.value_norm or type(learn).value_norm  # a checkpoint of PPO has them with value_norm false too
        if is_used and not hasattr(self, "return_statistics"):
            self.return_statistics = CriticScale()

    def _renew_scale(self, data: Batch) -> Batch:
        """Let the scale of the critic follow the returns of learning data, and return the data in the new units.

        The output of the critic changes with the scale, so all values stay as they are.
        """
        if self.config.learn.value_norm in (False, "symlog"):
            return data
        known = {name: self._returns_of(data[name]) for name in ("value", "return")}
        self._take_in_returns(known["return"], data["obs"])
        return {**data, **{name: self._outputs_for(column) for name, column in known.items()}}

    def _take_in_returns(self, value: Tensor, obs: Any = None) -> None:
        """Add returns, in units of the reward, to the statistics of the critic's scale; no value changes.

        Args:
            value: Returns, shape (S,).
            obs: Some observations, leading axis B, which tell the output layer of a network without ``critic_output``.
        """
        if self.config.learn.value_norm in (False, "symlog"):
            return
        before = self._moments()
        self.return_statistics.forget(RETURNS_KEPT)
        update_over_ranks(self.return_statistics, value)
        self._keep_values(before, self._output_layer(obs))

    def _keep_values(self, before: tuple[Tensor, Tensor], layer: nn.Linear | None) -> None:
        """Change the output of the critic so that it has the same values as with other moments before."""
        if layer is None or self.return_statistics.corrects:
            if not self.return_statistics.corrects and rank_and_world_size()[0] == 0:
                logger.warning(
                    "the last layer of the critic cannot follow the scale of the returns (learn.value_norm), so an "
                    "affine function after it does, and large returns are learned more slowly: end the critic with a "
                    "plain nn.Linear with one output and a bias, or name such a layer critic_output"
                )
            weight, bias = self.return_statistics.correction()
        else:
            weight, bias = layer.weight, layer.bias
        rl.rescale_output(weight, bias, *before, *self._moments())
        torch.clear_autocast_cache()  # it would keep the layer from before

    def _output_layer(self, obs: Any) -> nn.Linear | None:
        """Return the layer whose output is the value; None if it is not known or cannot be changed in place."""
        layer, model = getattr(self.model, "critic_output", None), cast(Any, self.model)
        if layer is None and obs is not None and hasattr(model, "compute_critic"):
            few = nested.index(obs, slice(0, 2))
            with torch.no_grad(), self._in_eval_mode:
                layer = output_layer(self.model, lambda: model.compute_critic(few)["value"])
        return layer if has_own_weights(layer) else None

    def _corrected(self, output: Tensor) -> Tensor:
        """Return the critic's output in its present scale, for the output of the network."""
        if self.config.learn.value_norm in (False, "symlog") or not self.return_statistics.corrects:
            return output
        gain, offset = self.return_statistics.correction()
        return output * gain.to(output) + offset.to(output)

    def _returns_of(self, output: Tensor) -> Tensor:
        kind = self.config.learn.value_norm
        if kind == "symlog":
            return rl.symexp(output)
        if kind is False:
            return output
        mean, scale = self._moments()
        return output * scale + mean

    def _outputs_for(self, value: Tensor) -> Tensor:
        kind = self.config.learn.value_norm
        if kind == "symlog":
            return rl.symlog(value)
        if kind is False:
            return value
        mean, scale = self._moments()
        return (value - mean) / scale

    def _moments(self, kind: Any = None) -> tuple[Tensor, Tensor]:
        """Return the shift and the scale of the critic's output, with the config's ``value_norm`` or another one."""
        statistics = self.return_statistics
        if (kind or self.config.learn.value_norm) == "popart":
            return statistics.mean.float(), statistics.std.clamp(min=SMALLEST_STD).float()
        return torch.zeros_like(statistics.mean, dtype=torch.float), statistics.root_mean_square.float()

    def _state_dict_learn(self) -> dict[str, Any]:
        state, statistics = super()._state_dict_learn(), getattr(self, "return_statistics", None)
        return state if statistics is None else state | {"return_statistics": statistics.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        if "return_statistics" in state:
            self.return_statistics.load_state_dict(state["return_statistics"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the scale of the critic in a checkpoint (Lightning hook)."""
        super().on_load_checkpoint(checkpoint)
        cfg = checkpoint.get("hyper_parameters", {}).get("cfg", {})
        self._loaded_kind = cfg.get("learn", {}).get("value_norm")

    def on_train_start(self) -> None:
        """Keep the values of a checkpoint whose ``value_norm`` was true and is "popart" now, or the other way round."""
        super().on_train_start()
        kinds = (self._loaded_kind, self.config.learn.value_norm)
        if kinds in ((True, "popart"), ("popart", True)):
            self._keep_values(self._moments(kinds[0]), self._output_layer(None))
        self._loaded_kind = None


def has_own_weights(layer: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Return whether a layer is a linear one with weights and biases that may be changed in place.

    The weights of pruned, parametrized, wrapped and quantised layers are computed from others at each call.
    """
    return type(layer) is nn.Linear and all(isinstance(one, nn.Parameter) for one in (layer.weight, layer.bias))


def output_layer(network: nn.Module, run: Callable[[], Tensor]) -> nn.Linear | None:
    """Return the linear layer with one output that a function of a network returns as it is; None if there is none.

    Args:
        network: The network.
        run: Calls the network, and returns one number for each row, such as a view of the output of a layer.
    """
    called: list[tuple[nn.Linear, Tensor, Tensor]] = []  # holds the outputs, so that their memory is not used again

    def keep(layer: nn.Linear, _: Any, output: Tensor) -> None:
        called.append((layer, output, output.clone()))

    candidates = [one for one in network.modules() if has_own_weights(one) and one.out_features == 1]
    hooks = [one.register_forward_hook(keep) for one in candidates]
    try:
        memory = run().untyped_storage().data_ptr()
    finally:
        for hook in hooks:
            hook.remove()
    found = [
        layer
        for layer, output, copy in called
        if output.untyped_storage().data_ptr() == memory and torch.equal(output, copy)  # not changed in place
    ]
    return found[0] if found else None
