"""The keys of PPG in DI-engine's configs, from rollouts and from replay."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_ding.di_engine.shared_keys import BUFFER, EVAL_FREQ, Key, eval_freq_key, only, replaced, same, to

_NO_CLIP = Key(needs=lambda _: False, why="DI-engine's PPG does not clip gradients")
_NOT_OF_PPG = (
    "recompute_adv",
    "nstep_return",
    "learn.epoch_per_collect",
    "learn.ppo_param_init",
    "model.share_encoder",
)
_BUFFERS = "other.replay_buffer."
_NOT_OF_PPG_OFFPOLICY = (
    *_NOT_OF_PPG,
    "nstep",
    "learn.value_norm",
    "learn.weight_decay",
    f"{_BUFFERS}replay_buffer_size",
)


def ppg_keys(ppo: Mapping[str, Key]) -> dict[str, Key]:
    """Return the keys of ``ppg``, of which those in ``ppo`` have the same meaning."""
    return {
        **{path: key for path, key in ppo.items() if path not in _NOT_OF_PPG and "lr_scheduler" not in path},
        **dict.fromkeys(("learn.grad_clip_type", "learn.grad_clip_value"), _NO_CLIP),
        **dict.fromkeys(
            ("learn.actor_epoch_per_collect", "learn.critic_epoch_per_collect"), to("learn.epoch_per_collect")
        ),
        **same("learn.aux_freq", "learn.aux_train_epoch", "learn.aux_bc_weight"),
        "model.share_encoder": only(True, why="the actor's second value head always has its encoder"),
        EVAL_FREQ: eval_freq_key("ppg"),
    }


def ppg_offpolicy_keys(ppo: Mapping[str, Key], ppo_offpolicy: Mapping[str, Key]) -> dict[str, Key]:
    """Return the keys of ``ppg_offpolicy``, from those of both kinds of PPO."""
    ppg = ppg_keys(ppo)
    return {
        **{path: key for path, key in ppo_offpolicy.items() if path not in _NOT_OF_PPG_OFFPOLICY},
        **{
            path: ppg[path]
            for path in ("learn.grad_clip_type", "learn.grad_clip_value", "learn.clip_ratio", "model.share_encoder")
        },
        **same("learn.value_weight", "learn.aux_freq", "learn.aux_train_epoch", "learn.aux_bc_weight"),
        **{
            f"{_BUFFERS}policy.{name}": BUFFER[f"{_BUFFERS}{name}"]
            for name in ("replay_buffer_size", "max_use", "max_staleness")
        },
        **{
            f"{_BUFFERS}value.{name}": Key(needs=lambda _: False, why="the critic learns from the actor's buffer")
            for name in ("replay_buffer_size", "max_use", "max_staleness")
        },
        **dict.fromkeys(
            (f"{_BUFFERS}policy.type", f"{_BUFFERS}value.type", f"{_BUFFERS}multi_buffer"),
            replaced("one buffer of the actor and the critic"),
        ),
    }
