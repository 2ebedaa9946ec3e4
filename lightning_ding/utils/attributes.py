"""The attributes of a policy that workers and datamodules read, and the adapter of foreign policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.modes import is_unknown_attribute
from lightning_ding.utils.progress import Progress


class PolicyAttributes:
    """The attributes of a policy that workers and datamodules read, by default values of its ``config``.

    An algorithm overrides them with class attributes or properties. The method ``_get_<name>`` of a subclass of
    :class:`Policy` has the same effect.
    """

    acts_on_reward: ClassVar[bool] = False
    """Whether ``forward`` takes the rewards of the previous steps as ``reward``."""
    demonstrations: ClassVar[str] = "optional"
    """Whether a datamodule must, can or must not have demonstrations."""
    has_memory: ClassVar[bool] = False
    """Whether the policy has a recurrent state of each env."""
    stores_memory: ClassVar[bool] = False
    """Whether its transitions have that state, in columns that the policy learns from."""
    on_policy: ClassVar[bool] = False
    """Whether the policy learns from its newest data only."""
    config: Any
    device: Any
    progress: Progress

    @property
    def batch_forward(self) -> Callable[[Any], Any] | None:
        """Function of a batch of supervised learning; None for ``forward`` of the eval mode."""
        return None

    @property
    def batch_size(self) -> int:
        """Transitions of a minibatch."""
        return int(self._needed("batch_size", "learn"))

    @property
    def collect_data(self) -> bool:
        """Whether a collector of several policies keeps the transitions of this one."""
        return bool(vars(self).get("_collect_data", True))

    @property
    def discount_factor(self) -> float:
        """The discount factor gamma."""
        return cast(float, self._needed("discount_factor"))

    @property
    def keeps_double(self) -> bool:
        """Whether observations of double precision are stored as such."""
        return False

    @property
    def keeps_noise(self) -> bool:
        """Whether the noise of its actions belongs to an env."""
        return bool(self._setting("use_sde", "model"))

    @property
    def module(self) -> Any:
        """The policy itself."""
        return self

    @property
    def n_episode(self) -> int | None:
        """Episodes of a round on each rank; None if transitions are counted."""
        return cast("int | None", self._setting("n_episode", "collect"))

    @property
    def n_sample(self) -> int | None:
        """Transitions of a round on each rank; None if episodes are counted, or nothing is collected."""
        return cast("int | None", self._setting("n_sample", "collect"))

    @property
    def nstep(self) -> int:
        """Steps of the returns that a buffer sums."""
        return int(self._setting("nstep") or 1)

    @property
    def pretraining_updates(self) -> int:
        """Updates from demonstrations only, before the first collection."""
        return 0

    @property
    def priority(self) -> bool:
        """Whether a buffer draws by priority."""
        return bool(self._setting("priority"))

    @property
    def random_collect_size(self) -> int:
        """Transitions with random actions at the start of a run."""
        return int(self._setting("random_collect_size") or 0)

    @property
    def sample_options(self) -> dict[str, Any]:
        """Arguments of a replay buffer's ``sample``."""
        return {"n_step": self.nstep, "discount_factor": self.discount_factor}

    @property
    def unroll_len(self) -> int:
        """Steps of a training sample."""
        return int(self._setting("unroll_len", "collect") or 1)

    @property
    def update_per_collect(self) -> int:
        """Updates of a round."""
        return int(self._needed("update_per_collect", "learn"))

    def monitored(self, name: str) -> Any:
        """Return the value of a metric that the learn mode's ``monitor_vars`` names; None if there is none."""
        try:
            return cast(Any, self).get_attribute(name)
        except (NotImplementedError, KeyError) as error:
            if is_unknown_attribute(error, name):
                return None
            raise

    def dataset_columns(self, dataset: Any, reward: Any) -> dict[str, Any]:
        """Return the further columns that learning from a data set needs, from the data set and its rewards."""
        return {}

    def _setting(self, name: str, section: str | None = None) -> Any:
        """Return a value of the config; None if there is no such section or key."""
        return getattr(self.config if section is None else getattr(self.config, section, None), name, None)

    def _needed(self, name: str, section: str | None = None) -> Any:
        """Return ``_<name>`` or a value of the config.

        Raises:
            NotImplementedError: If there is neither.
        """
        value = vars(self).get(f"_{name}", self._setting(name, section))
        if value is None:
            path = name if section is None else f"{section}.{name}"
            raise NotImplementedError(
                f"{type(self).__name__} has no attribute {name!r} for workers: set {path} in its config, or add a "
                f"method _get_{name}"
            )
        return value


NAMES = frozenset(name for name in vars(PolicyAttributes) if not name.startswith("_")) - {"monitored"}


def policy_of(mode: Any) -> PolicyAttributes:
    """Return the policy of a mode. Any other object gets an adapter, which reads with its ``get_attribute``."""
    for one in (mode, getattr(getattr(mode, "get_attribute", None), "__self__", None)):
        if isinstance(one, PolicyAttributes):
            return one
    return cast(PolicyAttributes, foreign("by_env").ByName(mode))
