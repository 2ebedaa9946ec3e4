"""Batches of transitions as the sequences that policies with memory or with contexts learn from."""

from __future__ import annotations

from typing import Any

import torch

from lightning_ding import nested
from lightning_ding.utils.modes import IS_FIRST, STATE
from tests.algorithms.table import real_steps

OF_SEQUENCES = ("IS", "priority")


def to_sequences(policy: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return B sequences, each made of one transition of a batch; that of another policy unchanged.

    Observations and rewards grow from step to step, and an episode may terminate at the last real one. The last step of
    every second sequence is padding.
    """
    if hasattr(policy.config, "context_len"):
        return to_sub_sequences(policy, batch)
    learns_from_sequences = hasattr(policy.model, "first_state") or hasattr(policy.model, "plan_value")
    if not learns_from_sequences or "mask" in batch:
        return batch
    length = policy._sequence_length() if hasattr(policy, "_sequence_length") else policy.sample_options["sequence"]
    size, number = len(batch["reward"]), policy.config.model.action_shape
    obs = nested.stack([nested.apply(lambda x: x + 0.1 * t, batch["obs"]) for t in range(length)])  # noqa: B023
    last = nested.apply(lambda x: x.unsqueeze(0), batch["next_obs"])
    place, mask = torch.arange(length).unsqueeze(1), real_steps(length, size)
    first = nested.leaves(batch["obs"])[0].flatten(1).sum(1, keepdim=True)
    state = 0.1 * first.expand(size, getattr(policy.model, "state_size", 1)).clone()
    steps = {
        "obs": obs,
        "next_obs": nested.concatenate([nested.index(obs, slice(1, None)), last]),
        "action": (batch["action"] + place.view(-1, *[1] * batch["action"].ndim)) % number,
        "reward": batch["reward"] * (1 + place) / length,
        "terminated": batch["terminated"] & (place == mask.sum(0) - 1),
        "mask": mask,
        "intrinsic_reward": batch["reward"].abs() * (1 + place),
    }
    steps |= {"is_expert": batch["is_expert"]} if "is_expert" in batch else {}
    memory = {STATE: state, IS_FIRST: batch["reward"] > 0, "priority": torch.ones(size)}
    return {**steps, **memory, **{name: batch[name] for name in OF_SEQUENCES if name in batch}}


def to_sub_sequences(policy: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return B sub-sequences of episodes for a policy with contexts, each made of one transition of a batch.

    Observations grow from step to step, returns to go fall, and the last step of every second one is padding.
    """
    length, size = policy.config.context_len, len(batch["reward"])
    place = torch.arange(length).unsqueeze(1)
    return {
        "obs": nested.stack([nested.apply(lambda x: x + 0.1 * t, batch["obs"]) for t in range(length)]),  # noqa: B023
        "action": torch.stack([batch["action"]] * length),
        "return_to_go": batch["reward"] - place,
        "timestep": place.expand(length, size).clone(),
        "mask": real_steps(length, size),
    }


def with_memory(policy: Any, rollout: dict[str, Any]) -> dict[str, Any]:
    """Return a rollout with the columns of a policy with memory; that of a policy without memory unchanged."""
    if not hasattr(policy.model, "first_state"):
        return rollout
    env_id, episode_id = rollout["env_id"].tolist(), rollout["episode_id"].tolist()
    pairs = list(zip(env_id, episode_id, strict=True))
    is_first = [pair not in pairs[:row] for row, pair in enumerate(pairs)]
    state = policy.model.first_state(len(env_id)) + torch.arange(len(env_id)).unsqueeze(1) / len(env_id)
    mark = torch.tensor(is_first)
    return {**rollout, STATE: state.masked_fill(mark.unsqueeze(1), 0.0), IS_FIRST: mark}
