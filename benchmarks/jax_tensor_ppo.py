"""PPO in gymnax's CartPole as one jitted JAX function, in the form of PureJaxRL."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.compare import Result
from benchmarks.workload import PPOWorkload


class Transition(NamedTuple):
    """One step of N envs."""

    obs: Any
    action: Any
    log_prob: Any
    reward: Any
    done: Any
    value: Any


def run(w: PPOWorkload) -> Result:
    """Train once to compile and once more, and return the seconds of the second time, env steps and updates."""
    import jax

    train, rounds = make_train(w)
    jitted = jax.jit(train)
    began = time.perf_counter()
    jax.block_until_ready(jitted(jax.random.key(0)))
    compiled, began_cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(jitted(jax.random.key(1)))
    seconds = time.perf_counter() - compiled
    updates = rounds * w.epochs * w.rollout // w.batch_size
    times = {"compile_seconds": compiled - began - seconds}
    times["cpu_ms_a_round"] = 1e3 * (time.process_time() - began_cpu) / rounds
    return {"seconds": seconds, **times, "env_steps": rounds * w.rollout, "updates": updates}


def make_train(w: PPOWorkload) -> tuple[Any, int]:  # noqa: C901 - it is one function for the compiler
    """Return the function that trains from a random key, and the number of its rounds."""
    import gymnax
    import jax
    import jax.numpy as jnp
    import optax

    env, env_params = gymnax.make(w.env_id)
    rounds = w.env_steps // w.rollout
    minibatches = w.rollout // w.batch_size
    rate = optax.linear_schedule(w.learning_rate, 0.0, rounds * w.epochs * minibatches)
    optimizer = optax.chain(optax.clip_by_global_norm(w.grad_norm), optax.adam(rate, eps=w.adam_epsilon))

    def init_mlp(key: Any, outputs: int, gain: float) -> Any:
        sizes = (4, *w.hidden, outputs)
        layers = []
        for place, (width_in, width_out) in enumerate(pairwise(sizes)):
            key, own = jax.random.split(key)
            scale = gain if place == len(sizes) - 2 else 2**0.5
            layers.append((jax.nn.initializers.orthogonal(scale)(own, (width_in, width_out)), jnp.zeros(width_out)))
        return layers

    def mlp(layers: Any, x: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = jnp.tanh(x @ weight + bias)
        return x @ layers[-1][0] + layers[-1][1]

    def env_step(carry: Any, _: Any) -> Any:
        params, state, obs, key = carry
        key, for_action, for_env = jax.random.split(key, 3)
        logits = jax.nn.log_softmax(mlp(params["actor"], obs))
        action = jax.random.categorical(for_action, logits)
        log_prob = jnp.take_along_axis(logits, action[:, None], 1)[:, 0]
        value = mlp(params["critic"], obs)[:, 0]
        keys = jax.random.split(for_env, w.num_envs)
        stepped = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, env_params)
        next_obs, state, reward, done = stepped[0], stepped[1], stepped[2], stepped[3] | stepped[4]
        return (params, state, next_obs, key), Transition(obs, action, log_prob, reward, done, value)

    def advantages(data: Transition, last_value: Any) -> Any:
        def back(carry: Any, row: Transition) -> Any:
            advantage, next_value = carry
            delta = row.reward + w.gamma * next_value * (1 - row.done) - row.value
            advantage = delta + w.gamma * w.gae_lambda * (1 - row.done) * advantage
            return (advantage, row.value), advantage

        return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), data, reverse=True, unroll=16)[1]

    def loss_of(params: Any, batch: Any) -> Any:
        data, advantage, returns = batch
        logits = jax.nn.log_softmax(mlp(params["actor"], data.obs))
        log_prob = jnp.take_along_axis(logits, data.action[:, None], 1)[:, 0]
        value = mlp(params["critic"], data.obs)[:, 0]
        near = data.value + jnp.clip(value - data.value, -w.clip_ratio, w.clip_ratio)
        value_loss = 0.5 * jnp.maximum((value - returns) ** 2, (near - returns) ** 2).mean()
        ratio = jnp.exp(log_prob - data.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - w.clip_ratio, 1 + w.clip_ratio)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
        return policy_loss + w.value_weight * value_loss - w.entropy_weight * entropy

    def update(carry: Any, batch: Any) -> Any:
        params, state = carry
        loss, gradient = jax.value_and_grad(loss_of)(params, batch)
        changes, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, changes), state), loss

    def one_round(carry: Any, _: Any) -> Any:
        params, optimizer_state, state, obs, key = carry
        (params, state, obs, key), data = jax.lax.scan(env_step, (params, state, obs, key), None, w.num_steps)
        advantage = advantages(data, mlp(params["critic"], obs)[:, 0])
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (data, advantage, advantage + data.value))

        def one_pass(carry: Any, _: Any) -> Any:
            params, optimizer_state, key = carry
            key, own = jax.random.split(key)
            order = jax.random.permutation(own, w.rollout)
            parts = jax.tree.map(lambda x: x[order].reshape(minibatches, -1, *x.shape[1:]), flat)
            (params, optimizer_state), loss = jax.lax.scan(update, (params, optimizer_state), parts)
            return (params, optimizer_state, key), loss.mean()

        carry, _ = jax.lax.scan(one_pass, (params, optimizer_state, key), None, w.epochs)
        return (*carry[:2], state, obs, carry[2]), data.done.mean()

    def train(key: Any) -> Any:
        key, of_actor, of_critic, of_env = jax.random.split(key, 4)
        params = {"actor": init_mlp(of_actor, 2, 0.01), "critic": init_mlp(of_critic, 1, 1.0)}
        keys = jax.random.split(of_env, w.num_envs)
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)
        carry = (params, optimizer.init(params), state, obs, key)
        return jax.lax.scan(one_round, carry, None, rounds)

    return train, rounds
