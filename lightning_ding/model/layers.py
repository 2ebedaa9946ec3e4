"""How networks are switched to evaluation mode.

All outputs that are not differentiated are computed in evaluation mode. In training mode, a batch norm normalises by
its batch and a dropout leaves out units, so the values of two batches could not be compared: targets and advantages
would be differences of numbers on different scales.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from torch import nn

from lightning_ding.utils.private_api import has_forward_hooks

NEUTRAL: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Flatten),
        *(nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm),
        *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.MaxPool2d, nn.AvgPool2d),
        *(nn.LSTM, nn.GRU),  # unless they have dropout
    }
)
"""Classes of torch whose output is the same in training and in evaluation mode."""
OWN = "lightning_ding.model."
"""Modules of classes defined here do not depend on the mode themselves, only through the layers that they hold."""


def depends_on_mode(module: nn.Module) -> bool:
    """Return whether the output of a module, apart from those inside it, may depend on its mode.

    It may for all classes that are not known here, such as those of users, and for modules with hooks.
    """
    kind = type(module)
    is_known = kind in NEUTRAL or kind.__module__.startswith(OWN)
    has_dropout = isinstance(module, nn.RNNBase) and module.dropout > 0
    return not is_known or has_dropout or has_forward_hooks(module)


class InEvalMode:
    """A reusable context manager that switches a network to evaluation and back; it may be entered again inside.

    ``nn.Module.train`` sets an attribute of each module through a slow path, twice for each step of the envs; on a
    small network that took a fifth of the collection time. ``train`` is only called on modules that override it.

    Args:
        model: The network; modules that are added to it later are not switched.
        where_it_matters: Leave out modules whose output does not depend on the mode, so that nothing is done for a
            network without others.

    Example:
        >>> model = nn.Sequential(nn.Dropout())
        >>> with InEvalMode(model):
        ...     model[0].training
        False
        >>> model[0].training
        True
    """

    def __init__(self, model: nn.Module, where_it_matters: bool = False) -> None:
        self.model = model
        """The network."""
        self._plain, self._others = list[nn.Module](), list[nn.Module]()
        for module in model.modules():
            if not where_it_matters or depends_on_mode(module):
                (self._plain if type(module).train is nn.Module.train else self._others).append(module)
        self.matters = bool(self._plain or self._others)
        """Whether there is a module to switch."""
        self._before: list[tuple[list[nn.Module], list[bool]]] = []  # of each entry: switched, and modes of the others

    @property
    def context(self) -> AbstractContextManager[None]:
        """This object, or nothing to enter if there is no module to switch: compilers do not enter this class."""
        return self if self.matters else nullcontext()

    def __enter__(self) -> None:
        if not self.matters:
            return
        switched = [module for module in self._plain if module.training]
        for module in switched:
            module.__dict__["training"] = False
        self._before.append((switched, [module.training for module in self._others]))
        for module in self._others:
            module.train(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.matters:
            return
        switched, others_were = self._before.pop()
        for module in switched:
            module.__dict__["training"] = True
        for module, was_training in zip(self._others, others_were, strict=True):
            module.train(was_training)
