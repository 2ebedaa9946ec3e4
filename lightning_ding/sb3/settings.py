"""Hyper-parameters of Stable-Baselines3 and its contrib package as settings of the policies and datamodules here.

A value that is not given has the default of the algorithm there. ``n_steps`` and ``train_freq`` count the steps of each
env there, ``collect.n_sample`` those of all envs. A learning rate ``lin_x`` falls linearly from x to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_ding.config import require

FIRST = {"n_envs": 1}
ON_POLICY = {
    **FIRST,
    **{"gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "use_sde": False},
    **{"sde_sample_freq": -1, "normalize_advantage": True},
}
CLIPPED = {**ON_POLICY, "learning_rate": 3e-4, "n_epochs": 10, "clip_range": 0.2, "clip_range_vf": None}
OFF_POLICY = {
    **FIRST,
    **{"buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256, "gamma": 0.99, "train_freq": 1},
    **{"gradient_steps": 1, "n_steps": 1},
}
Q_LEARNING = {
    **OFF_POLICY,
    **{"batch_size": 32, "tau": 1.0, "train_freq": 4, "target_update_interval": 10_000},
    **{"exploration_initial_eps": 1.0},
}
SOFT = {**OFF_POLICY, "ent_coef": "auto", "target_entropy": "auto", "use_sde": False, "sde_sample_freq": -1}
DETERMINISTIC = {**OFF_POLICY, "learning_rate": 1e-3, "tau": 0.005}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {**CLIPPED, "n_steps": 2048, "batch_size": 64, "target_kl": None},
    "recurrent_ppo": {**CLIPPED, "n_steps": 128, "batch_size": 128, "target_kl": None},
    "a2c": {
        **ON_POLICY,
        **{"learning_rate": 7e-4, "n_steps": 5, "gae_lambda": 1.0, "normalize_advantage": False},
        **{"use_rms_prop": True, "rms_prop_eps": 1e-5},
    },
    "dqn": {
        **Q_LEARNING,
        **{"learning_rate": 1e-4, "exploration_fraction": 0.1, "exploration_final_eps": 0.05, "max_grad_norm": 10},
    },
    "qrdqn": {
        **Q_LEARNING,
        **{"learning_rate": 5e-5, "exploration_fraction": 0.005, "exploration_final_eps": 0.01, "max_grad_norm": None},
    },
    "sac": {**SOFT, "learning_rate": 3e-4, "tau": 0.005, "target_update_interval": 1},
    "tqc": {
        **SOFT,
        **{"learning_rate": 3e-4, "tau": 0.005, "target_update_interval": 1, "top_quantiles_to_drop_per_net": 2},
    },
    "crossq": {**SOFT, "learning_rate": 1e-3, "policy_delay": 3},
    "td3": {**DETERMINISTIC, "policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5},
    "ddpg": DETERMINISTIC,
}
"""Defaults of the algorithms there (Stable-Baselines3 2.9.2), by the names of the policies here."""
WITH_SDE = ("ppo", "a2c", "sac", "tqc")
"""Policies with state-dependent noise."""
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "optimize_memory_usage": (False,),
    "use_sde_at_warmup": (False,),
    "rollout_buffer_class": (None,),
    "rollout_buffer_kwargs": (None, {}),
    "replay_buffer_class": (None,),
    "replay_buffer_kwargs": (None, {}),
    "sde_sample_freq": (-1,),
    "use_sde": (False,),
    "supported_action_spaces": (),
}
"""Values of arguments that have no equivalent here and change nothing."""


class Settings:
    """The settings that hyper-parameters are translated to, and what has no equivalent.

    Args:
        policy: Name of the policy here.
        given: Hyper-parameters by their names there.

    Example:
        >>> settings = translate("dqn", {"learning_rate": "lin_1e-3", "colour": "red"})
        >>> settings.policy["learn"]["lr_scheduler"], settings.without
        ({'type': 'linear'}, {'colour': 'no such argument is known'})
    """

    def __init__(self, policy: str, given: Mapping[str, Any]) -> None:
        self.name = policy
        self.policy: dict[str, Any] = {}
        """The config of the policy."""
        self.data: dict[str, Any] = {}
        """Arguments of the datamodule."""
        self.without: dict[str, str] = {}
        """Given hyper-parameters without an equivalent, each with the reason."""
        self.given = dict(given)
        self._left = {**DEFAULTS[policy], **given}

    def take(self, key: str) -> Any:
        """Return a hyper-parameter, and treat it as translated."""
        return self._left.pop(key)

    def has(self, key: str) -> bool:
        """Return whether a hyper-parameter is given, or has a default, and is not translated yet."""
        return key in self._left

    def set(self, path: str, value: Any) -> None:
        """Set an entry of the policy's config, such as ``learn.batch_size``."""
        section = self.policy
        *parents, last = path.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value

    def leave(self, key: str, reason: str) -> None:
        """Note that a hyper-parameter has no equivalent."""
        self._left.pop(key, None)
        self.without[key] = reason

    def finish(self) -> None:
        """Note everything that was not translated, unless it changes nothing."""
        for key, value in list(self._left.items()):
            if value not in WITHOUT_EFFECT.get(key, ()) and key in self.given:
                self.leave(key, "no such argument is known" if key not in WITHOUT_EFFECT else "there is none here")


def translate(policy: str, given: Mapping[str, Any]) -> Settings:
    """Return the settings for hyper-parameters of an algorithm.

    Args:
        policy: Name of the policy here, a key of ``DEFAULTS``.
        given: Hyper-parameters by their names there; others have the defaults of the algorithm there.
    """
    settings = Settings(policy, given)
    settings.data["num_envs"] = settings.take("n_envs")
    settings.set("discount_factor", settings.take("gamma"))
    for rule in (RULES[policy], _noise_of_states):
        rule(settings)
    settings.finish()
    return settings


def _rate(settings: Settings, *names: str) -> None:
    """Set learning rates, and their schedule."""
    value, is_falling = _schedule(settings.take("learning_rate"))
    for name in names:
        settings.set(f"learn.{name}", value)
    settings.set("learn.lr_scheduler", {"type": "linear" if is_falling else "constant"})


def _schedule(value: Any) -> tuple[float, bool]:
    """Return the first value of a schedule, and whether it falls linearly to 0.

    Raises:
        ValueError: If it is neither a number nor ``lin_x``.
    """
    if isinstance(value, str):
        kind, _, number = value.partition("_")
        require(kind == "lin" and bool(number), "a schedule", "a number, or lin_ and a number", value)
        return float(number), True
    return float(value), False


def _on_policy(settings: Settings) -> None:
    size = settings.take("n_steps") * settings.data["num_envs"]
    _rate(settings, "learning_rate")
    settings.set("collect.n_sample", size)
    settings.set("collect.gae_lambda", settings.take("gae_lambda"))
    settings.set("learn.adv_norm", settings.take("normalize_advantage"))
    settings.set("learn.value_norm", False)
    settings.set("learn.entropy_weight", float(settings.take("ent_coef")))
    settings.set("learn.grad_clip_norm", _positive(settings.take("max_grad_norm")))


def _positive(value: Any) -> float | None:
    return None if value is None else float(value)


def _ppo(settings: Settings) -> None:
    _on_policy(settings)
    settings.set("recompute_adv", False)
    settings.set("learn.batch_size", settings.take("batch_size"))
    settings.set("learn.epoch_per_collect", settings.take("n_epochs"))
    settings.set("learn.value_weight", 2 * settings.take("vf_coef"))  # of half the squared error
    value, is_falling = _schedule(settings.take("clip_range"))
    settings.set("learn.clip_ratio", value)
    settings.set("learn.clip_ratio_scheduler", {"type": "linear" if is_falling else "constant"})
    clip = settings.take("clip_range_vf")
    if isinstance(clip, str):
        settings.leave("clip_range_vf", "the clipping of values has no schedule here")
    else:
        settings.set("learn.value_clip", None if clip is None or clip < 0 else float(clip))
    limit = settings.take("target_kl")
    settings.set("learn.target_kl", None if limit is None else 1.5 * limit)  # there, of a minibatch


def _a2c(settings: Settings) -> None:
    _on_policy(settings)
    settings.set("learn.value_weight", settings.take("vf_coef"))
    kind, eps = settings.take("use_rms_prop"), settings.take("rms_prop_eps")
    settings.set("learn.optimizer", {"type": "rmsprop", "eps": eps} if kind else {"type": "adam", "eps": 1e-5})


def _off_policy(settings: Settings) -> None:
    settings.set("nstep", settings.take("n_steps"))
    settings.set("learn.batch_size", settings.take("batch_size"))
    settings.set("random_collect_size", settings.take("learning_starts"))
    settings.set("other.replay_buffer.replay_buffer_size", settings.take("buffer_size"))
    steps, updates, envs = settings.take("train_freq"), settings.take("gradient_steps"), settings.data["num_envs"]
    if isinstance(steps, (list, tuple)):
        number, unit = steps
        if unit == "episode":
            settings.leave("train_freq", "rounds end after a number of steps here, not with an episode")
        steps = number if unit == "step" else 1
    settings.set("collect.n_sample", steps * envs)
    settings.set("learn.update_per_collect", steps * envs if updates < 0 else updates)
    _replay(settings)


def _replay(settings: Settings) -> None:
    """Translate the class of the replay buffer."""
    kind = settings.take("replay_buffer_class") if settings.has("replay_buffer_class") else None
    options = dict(settings.take("replay_buffer_kwargs") or {}) if settings.has("replay_buffer_kwargs") else {}
    if kind is not None and str(kind).rpartition(".")[2].rstrip("'>") == "HerReplayBuffer":
        strategy = str(options.pop("goal_selection_strategy", "future")).lower().rpartition(".")[2]
        settings.set("other.replay_buffer.type", "her")
        settings.set("other.replay_buffer.her_strategy", strategy)
        settings.set("other.replay_buffer.her_replay_k", options.pop("n_sampled_goal", 4))
    elif kind is not None:
        settings.leave("replay_buffer_class", f"there is no {kind} here")
    for key in ("online_sampling", "max_episode_length", "copy_info_dict", "handle_timeout_termination"):
        options.pop(key, None)  # goals are always drawn with the minibatch, and time limits always bootstrap
    if options:
        settings.leave("replay_buffer_kwargs", f"{', '.join(options)} of the replay buffer")


def _q_learning(settings: Settings) -> None:
    steps, envs = settings._left["train_freq"], settings.data["num_envs"]
    _rate(settings, "learning_rate")
    _off_policy(settings)
    settings.set("learn.double_q", False)
    settings.set("learn.grad_clip_norm", _positive(settings.take("max_grad_norm")))
    calls = max(settings.take("target_update_interval") // envs, 1)  # steps of all envs between two copies
    per_call = steps if isinstance(steps, int) else 1
    tau, updates = settings.take("tau"), settings.policy["learn"]["update_per_collect"]
    settings.set("learn.target_update_freq", max(round(calls / per_call * updates), updates, 1))
    if tau != 1:
        settings.leave("tau", "copies of the target network move it by a part after every update only")
    start, end = settings.take("exploration_initial_eps"), settings.take("exploration_final_eps")
    share = settings.take("exploration_fraction")
    moves = {"decay": share, "unit": "budget"} if start != end and share > 0 else {}
    settings.set("other.eps", {"start": start if share > 0 else end, "end": end, **moves})


def _qrdqn(settings: Settings) -> None:
    batch_size = settings._left["batch_size"]
    _q_learning(settings)
    settings.set("learn.optimizer", {"eps": 0.01 / batch_size})


def _soft(settings: Settings) -> None:
    coefficient, entropy = settings.take("ent_coef"), settings.take("target_entropy")
    learned = isinstance(coefficient, str) and coefficient.startswith("auto")
    _rate(settings, "learning_rate_q", "learning_rate_policy", *(["learning_rate_alpha"] if learned else []))
    _off_policy(settings)
    settings.set("learn.auto_alpha", learned)
    first = coefficient.partition("_")[2] or 1.0 if isinstance(coefficient, str) else coefficient
    settings.set("learn.alpha", float(first))
    if entropy != "auto" and learned:
        settings.set("learn.target_entropy", float(entropy))


def _sac(settings: Settings) -> None:
    _soft(settings)
    _target(settings)
    settings.set("model.last_layer_init", None)


def _tqc(settings: Settings) -> None:
    _soft(settings)
    _target(settings)
    settings.set("learn.dropped_quantiles", settings.take("top_quantiles_to_drop_per_net"))


def _crossq(settings: Settings) -> None:
    _soft(settings)
    settings.set("learn.actor_update_freq", settings.take("policy_delay"))
    settings.set("learn.target_theta", None)


def _target(settings: Settings) -> None:
    settings.set("learn.target_theta", settings.take("tau"))
    interval = settings.take("target_update_interval") if settings.has("target_update_interval") else 1
    if interval != 1:
        settings.leave("target_update_interval", "the target networks move after every update here")


def _ddpg(settings: Settings) -> None:
    _rate(settings, "learning_rate_actor", "learning_rate_critic")
    _off_policy(settings)
    _target(settings)
    settings.set("model.last_layer_init", None)
    kind = settings.take("noise_type") if settings.has("noise_type") else None
    size = settings.take("noise_std") if settings.has("noise_std") else 0.0
    settings.set("collect.noise_sigma", float(size) if kind else 0.0)
    settings.set("collect.noise_type", "ou" if kind is not None and "ornstein" in kind else "gauss")


def _td3(settings: Settings) -> None:
    _ddpg(settings)
    settings.set("learn.actor_update_freq", settings.take("policy_delay"))
    size, bound = settings.take("target_policy_noise"), settings.take("target_noise_clip")
    settings.set("learn.noise", bool(size and bound))
    if size and bound:
        settings.set("learn.noise_sigma", size)
        settings.set("learn.noise_range", {"min": -bound, "max": bound})


def _noise_of_states(settings: Settings) -> None:
    """Translate the arguments of state-dependent noise, in policies that have it."""
    if settings.name not in WITH_SDE:
        if settings.given.get("use_sde"):
            settings.leave("use_sde", f"{settings.name} has no state-dependent noise here")
            settings.leave("sde_sample_freq", "as use_sde") if "sde_sample_freq" in settings.given else None
        return
    use_sde, interval = settings.take("use_sde"), settings.take("sde_sample_freq")
    if use_sde:
        settings.set("model.use_sde", True)
        settings.set("collect.sde_sample_freq", interval if interval > 0 else None)


RULES: dict[str, Callable[[Settings], None]] = {
    "ppo": _ppo,
    "recurrent_ppo": _ppo,
    "a2c": _a2c,
    "dqn": _q_learning,
    "qrdqn": _qrdqn,
    "sac": _sac,
    "tqc": _tqc,
    "crossq": _crossq,
    "td3": _td3,
    "ddpg": _ddpg,
}
"""The translation of each algorithm, by the name of the policy here."""
