"""The ring storage against a plain list of everything that was ever pushed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.worker.buffer.storage import RingStorage

Event = tuple[int, str]  # env, and what happens there

NUM_ENVS = 4
EVENTS = st.tuples(st.integers(0, NUM_ENVS - 1), st.sampled_from(["go", "go", "terminate", "truncate", "gap"]))
PUSHES = st.lists(st.lists(EVENTS, max_size=14), min_size=1, max_size=8)
QUICK = settings(max_examples=120, deadline=None, derandomize=True)


@dataclass
class PushedList:
    """The model: a list of transitions, and envs that produce them.

    An observation is ``[env, episode, step]``, so no two of them are equal. A "gap" is a step that is not pushed.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=lambda: [[env_id, 0, 0] for env_id in range(NUM_ENVS)])

    def play(self, events: list[Event]) -> dict[str, Any]:
        """Return the transitions of some events as a batch, after appending them to the list."""
        new = [row for env_id, what in events if (row := self._happen(env_id, what)) is not None]
        self.rows += new
        return {
            "obs": np.array([row["obs"] for row in new], dtype=np.float32).reshape(-1, 3),
            "next_obs": np.array([row["next_obs"] for row in new], dtype=np.float32).reshape(-1, 3),
            "reward": np.array([row["reward"] for row in new], dtype=np.float32),
            "terminated": np.array([row["terminated"] for row in new], dtype=bool),
            "truncated": np.array([row["truncated"] for row in new], dtype=bool),
            "env_id": np.array([row["env_id"] for row in new], dtype=np.int64),
        }

    def _happen(self, env_id: int, what: str) -> dict[str, Any] | None:
        place = self.places[env_id]
        obs = tuple(place)
        place[2] += 1
        row = {"obs": obs, "next_obs": tuple(place), "env_id": env_id, "reward": float(sum(obs[1:]) + 1)}
        if what in ("terminate", "truncate"):
            place[1:] = [place[1] + 1, 0]
        return None if what == "gap" else row | {"terminated": what == "terminate", "truncated": what == "truncate"}

    def window(self, index: int, n_step: int, discount_factor: float) -> dict[str, Any]:
        """Return the n-step transition from ``index`` on, by walking the list."""
        row = first = self.rows[index]
        total, discount = 0.0, 1.0
        for _ in range(n_step):
            total += discount * row["reward"]
            discount *= discount_factor
            last, behind = row, self.rows[index + 1 :]
            following = [(i, other) for i, other in enumerate(behind) if other["env_id"] == row["env_id"]]
            if row["terminated"] or row["truncated"] or not following or following[0][1]["obs"] != row["next_obs"]:
                break
            index, row = index + 1 + following[0][0], following[0][1]
        return last | {"obs": first["obs"], "reward": total, "discount": discount}


def kept_rows(storage: RingStorage) -> Any:
    """Return the rows in use, the oldest first."""
    return (storage.tail - storage.count + np.arange(storage.count)) % storage.capacity


def assert_holds_the_newest(storage: RingStorage, model: PushedList, n_step: int = 1, discount: float = 0.5) -> None:
    got = storage.gather(kept_rows(storage), n_step, discount)
    kept = range(len(model.rows) - storage.count, len(model.rows))
    expected = [model.window(index, n_step, discount) for index in kept]
    for name in expected[0] if expected else ():
        # Sums of at most four halved integers: exact in float32.
        np.testing.assert_array_equal(got[name].numpy(), [row[name] for row in expected], err_msg=name)


# ------------------------------------------------------------------ what comes out is what went in


@QUICK
@given(capacity=st.integers(1, 20), pushes=PUSHES)
def test_storage_holds_the_newest_transitions_as_they_were_pushed(capacity: int, pushes: list[list[Event]]) -> None:
    storage, model = RingStorage(capacity), PushedList()

    for events in pushes:
        storage.push(model.play(events))

        assert storage.push_count == len(model.rows)
        assert storage.count == min(len(model.rows), capacity)
        assert_holds_the_newest(storage, model)


@QUICK
@given(capacity=st.integers(1, 20), pushes=PUSHES, n_step=st.integers(2, 4))
def test_storage_sums_the_rewards_that_a_walk_through_the_list_finds(
    capacity: int, pushes: list[list[Event]], n_step: int
) -> None:
    storage, model = RingStorage(capacity), PushedList()

    for events in pushes:
        storage.push(model.play(events))

        assert_holds_the_newest(storage, model, n_step)


@QUICK
@given(capacity=st.integers(1, 20), before=PUSHES, after=PUSHES)
def test_storage_resumed_from_a_saved_state_equals_an_uninterrupted_one(
    capacity: int, before: list[list[Event]], after: list[list[Event]]
) -> None:
    original, restored, model = RingStorage(capacity), RingStorage(capacity), PushedList()
    for events in before:
        original.push(model.play(events))
    state = original.state_dict()
    original.push(model.play([(0, "go")] * 3))  # the state is a copy
    model.rows = model.rows[:-3]
    model.places[0][2] -= 3

    restored.load_state_dict(state)
    for events in after:
        restored.push(model.play(events))

    assert restored.push_count == len(model.rows)
    assert_holds_the_newest(restored, model, n_step=3)


@QUICK
@given(values=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=6))
def test_storage_keeps_observations_right_where_many_are_equal(values: list[list[int]]) -> None:
    """Whether a follower is found is then a matter of chance, but never what is read."""
    storage, rows = RingStorage(7), []
    for chunk in values:
        obs, next_obs = np.array(chunk[:-1], dtype=np.uint8), np.array(chunk[1:], dtype=np.uint8)[::-1]
        storage.push({"obs": obs, "next_obs": next_obs, "env_id": np.arange(len(obs)) % 2})
        rows += list(zip(obs.tolist(), next_obs.tolist(), strict=True))

    got = storage.gather(kept_rows(storage), 1, 1.0)

    assert list(zip(got["obs"].tolist(), got["next_obs"].tolist(), strict=True)) == rows[-storage.count :]


def test_storage_needs_no_env_id_to_keep_observations() -> None:
    storage, model = RingStorage(5), PushedList()
    for _ in range(3):
        batch = model.play([(0, "go"), (1, "go"), (0, "terminate")])
        del batch["env_id"]
        storage.push(batch)

    got = storage.gather(kept_rows(storage), 1, 1.0)

    assert got["next_obs"].tolist() == [list(row["next_obs"]) for row in model.rows[-5:]]


def test_storage_takes_columns_without_observations() -> None:
    storage = RingStorage(3)
    for start in (0, 2):
        storage.push({"value": np.arange(start, start + 2)})

    assert storage.gather(kept_rows(storage), 1, 1.0)["value"].tolist() == [1, 2, 3]


# ------------------------------------------------------------------ examples with numbers


def episode(rewards: list[float], ending: str, env_id: int = 0, start: int = 0) -> dict[str, Any]:
    """Return an episode's transitions; observations count from ``start``."""
    steps = np.arange(start, start + len(rewards), dtype=np.float32)[:, None]
    is_last = np.arange(len(rewards)) == len(rewards) - 1
    return {
        "obs": steps,
        "next_obs": steps + 1,
        "reward": np.array(rewards, dtype=np.float32),
        "terminated": is_last & (ending == "terminated"),
        "truncated": is_last & (ending == "truncated"),
        "env_id": np.full(len(rewards), env_id),
    }


def test_storage_raises_gamma_to_the_length_of_each_window() -> None:
    storage = RingStorage(10)
    storage.push(episode([1, 2, 4, 8], "terminated"))

    got = storage.gather(np.arange(4), n_step=3, discount_factor=0.5)

    # 1 + 2/2 + 4/4; 2 + 4/2 + 8/4; 4 + 8/2; 8
    assert got["reward"].tolist() == [3, 6, 8, 8]
    assert got["discount"].tolist() == [0.125, 0.125, 0.25, 0.5]
    assert got["next_obs"][:, 0].tolist() == [3, 4, 4, 4]
    assert got["terminated"].tolist() == [False, True, True, True]


def test_storage_bootstraps_from_the_true_final_observation_of_a_truncated_episode() -> None:
    storage = RingStorage(10)
    storage.push(episode([1, 2], "truncated"))
    storage.push(episode([100], "terminated", start=50))

    got = storage.gather(np.arange(2), n_step=3, discount_factor=0.5)

    assert got["reward"].tolist() == [2, 2]  # 1 + 2/2; 2
    assert got["terminated"].tolist() == [False, False]
    assert got["truncated"].tolist() == [True, True]
    assert got["next_obs"][:, 0].tolist() == [2, 2]


def test_storage_stops_at_a_step_whose_follower_is_not_there_yet() -> None:
    storage = RingStorage(10)
    storage.push(episode([1, 2], "running"))

    before = storage.gather(np.arange(2), n_step=2, discount_factor=0.5)
    storage.push(episode([4], "running", start=2))
    after = storage.gather(np.arange(2), n_step=2, discount_factor=0.5)

    assert (before["reward"].tolist(), before["discount"].tolist()) == ([2, 2], [0.25, 0.5])  # 1 + 2/2; 2
    assert (after["reward"].tolist(), after["discount"].tolist()) == ([2, 4], [0.25, 0.25])  # 1 + 2/2; 2 + 4/2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (episode([1], "running"), episode([100], "running", env_id=1, start=1)),  # begins with what env 0 announced
        (episode([1], "truncated"), episode([100], "running", start=1)),  # the next episode begins where this ended
    ],
)
def test_storage_does_not_follow_into_another_env_or_episode(first: dict[str, Any], second: dict[str, Any]) -> None:
    storage = RingStorage(10)
    storage.push(first)
    storage.push(second)

    assert storage.gather(np.array([0]), n_step=2, discount_factor=1.0)["reward"].tolist() == [1]


def test_storage_gathers_rows_of_any_shape() -> None:
    storage = RingStorage(10)
    storage.push(episode([1, 2, 4, 8], "terminated") | {"action": np.arange(4)})

    got = storage.gather(np.array([[0, 1, 2], [3, 3, 0]]), n_step=2, discount_factor=0.5)

    assert got["reward"].tolist() == [[2, 4, 8], [8, 8, 2]]  # 1 + 2/2, 2 + 4/2, 4 + 8/2, 8
    assert got["next_obs"][..., 0].tolist() == [[2, 3, 4], [4, 4, 2]]
    assert got["action"].tolist() == [[0, 1, 2], [3, 3, 0]]  # of the first step of a window


def test_storage_keeps_nested_observations_together() -> None:
    storage = RingStorage(4)
    for start in (0, 3):
        steps = np.arange(start, start + 3)
        obs = {"image": steps.astype(np.uint8), "more": {"speed": steps / 2}}
        next_obs = {"image": (steps + 1).astype(np.uint8), "more": {"speed": (steps + 1) / 2}}
        storage.push({"obs": obs, "next_obs": next_obs, "env_id": np.zeros(3, dtype=int)})

    got = storage.gather(kept_rows(storage), 1, 1.0)

    assert got["obs"]["image"].tolist() == [2, 3, 4, 5]
    assert got["obs"]["more"]["speed"].tolist() == [1, 1.5, 2, 2.5]
    assert got["next_obs"]["image"].tolist() == [3, 4, 5, 6]
    assert got["next_obs"]["more"]["speed"].tolist() == [1.5, 2, 2.5, 3]


def test_storage_links_nested_observations_only_if_all_leaves_are_equal() -> None:
    storage = RingStorage(4)
    flags = {"terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool), "env_id": np.zeros(1, int)}
    for obs, other in [((0, 0), (1, 1)), ((1, 2), (2, 3))]:  # announced (1, 1), came (1, 2)
        names = ("a", "b")
        storage.push(
            {
                "obs": {name: np.array([value]) for name, value in zip(names, obs, strict=True)},
                "next_obs": {name: np.array([value]) for name, value in zip(names, other, strict=True)},
                "reward": np.ones(1),
                **flags,
            }
        )

    got = storage.gather(np.array([0]), n_step=2, discount_factor=1.0)

    assert got["reward"].tolist() == [1]
    assert got["next_obs"]["b"].tolist() == [1]


# ------------------------------------------------------------------ memory


def image_steps(start: int, amount: int, num_envs: int) -> dict[str, Any]:
    """Return ``amount`` vector steps of ``num_envs`` envs that never end, with 84 x 84 pictures."""
    step = np.repeat(np.arange(start, start + amount), num_envs)
    env_id = np.tile(np.arange(num_envs), amount)
    pictures = [np.broadcast_to((s * num_envs + env_id)[:, None, None], (len(step), 84, 84)) for s in (step, step + 1)]
    return {
        "obs": pictures[0].astype(np.uint8),
        "next_obs": pictures[1].astype(np.uint8),
        "reward": np.ones(len(step)),
        "env_id": env_id,
    }


def test_storage_keeps_each_observation_once() -> None:
    storage = RingStorage(200)
    for start in range(0, 60, 10):
        storage.push(image_steps(start, 10, num_envs=4))  # 240 transitions: the ring wraps

    others = 200 * (4 + 8 + 8)  # reward, env_id, link
    assert storage.nbytes <= 1.1 * 200 * 84 * 84 + others


def test_storage_keeps_bytes_as_bytes() -> None:
    storage = RingStorage(8)
    storage.push(image_steps(0, 2, num_envs=4))

    got = storage.gather(np.arange(8), 1, 1.0)

    assert got["obs"].dtype == got["next_obs"].dtype == torch.uint8
    assert got["next_obs"][:, 0, 0].tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


def test_storage_halves_floats_of_eight_bytes() -> None:
    storage = RingStorage(2)
    storage.push({"reward": np.array([0.1, 0.2])})

    assert storage.gather(np.arange(2), 1, 1.0)["reward"].dtype == torch.float32


def test_storage_uses_the_slots_of_what_is_gone_again() -> None:
    storage = RingStorage(4)
    for start in range(10):
        storage.push(episode([1, 1], "terminated", start=100 * start))  # needs one spare slot an episode

    # Four rows of obs, reward, two flags, env_id and link, and the final observations of two episodes.
    assert storage.nbytes == 4 * (4 + 4 + 2 + 8 + 4) + 2 * 4


def test_storage_says_how_many_bytes_it_needs() -> None:
    storage = RingStorage(100)
    storage.push(episode([1, 2, 3], "terminated"))

    assert storage.nbytes == 3 * (4 + 4 + 2 + 8 + 4) + 4  # three rows of obs, reward, flags, env_id, link; one slot


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(("first", "second"), [(np.int64, np.float32), (np.uint8, np.float32), (bool, np.int64)])
def test_storage_refuses_numbers_that_its_columns_cannot_hold(first: Any, second: Any) -> None:
    storage = RingStorage(4)
    storage.push({"reward": np.zeros(1, dtype=first)})

    with pytest.raises(ValueError, match=f"reward must be .*{np.dtype(first)}, got {np.dtype(second)}"):
        storage.push({"reward": np.full(1, 0.5).astype(second)})


@pytest.mark.parametrize(("column", "value"), [(np.int8, 300), (np.uint8, -1), (np.int32, 2**40)])
def test_storage_refuses_an_integer_that_would_become_another_one(column: Any, value: int) -> None:
    storage = RingStorage(4)
    storage.push({"reward": np.zeros(1, dtype=column)})

    with pytest.raises(ValueError, match=f"reward must be of a type that fits {np.dtype(column)}, got int64"):
        storage.push({"reward": np.array([value])})
    storage.push({"reward": np.array([7])})

    assert storage.gather(np.arange(2), 1, 1.0)["reward"].tolist() == [0, 7]


def test_storage_follows_observations_that_are_not_a_number() -> None:
    storage = RingStorage(4)
    obs = np.array([[0.0, np.nan], [1.0, np.nan], [2.0, np.nan], [3.0, np.nan]])
    ends = {"terminated": np.zeros(3, dtype=bool), "truncated": np.zeros(3, dtype=bool)}
    step = {"obs": obs[:-1], "next_obs": obs[1:], "reward": np.ones(3), "env_id": np.zeros(3, dtype=int), **ends}
    storage.push({name: column[:2] for name, column in step.items()})
    storage.push({name: column[2:] for name, column in step.items()})

    assert storage.gather(np.arange(3), 3, 1.0)["reward"].tolist() == [3, 2, 1]


@pytest.mark.parametrize(("first", "second"), [(np.float32, np.int64), (np.float32, np.float64), (np.int64, np.int32)])
def test_storage_takes_numbers_that_its_columns_can_hold(first: Any, second: Any) -> None:
    storage = RingStorage(4)
    storage.push({"reward": np.zeros(1, dtype=first)})

    storage.push({"reward": np.ones(1, dtype=second)})

    assert storage.gather(np.arange(2), 1, 1.0)["reward"].tolist() == [0, 1]


@pytest.mark.parametrize("data", [{"robot/arm": np.zeros(1)}, {"obs": {"robot/arm": np.zeros(1)}}])
def test_storage_refuses_names_that_would_come_out_nested(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="without '/', got 'robot/arm'"):
        RingStorage(4).push(data)


def test_storage_is_as_it_was_after_it_refused() -> None:
    storage, model = RingStorage(4), PushedList()
    storage.push(model.play([(0, "go"), (1, "go")]))
    with pytest.raises(ValueError, match="obs must have the shape"):
        storage.push(model.play([(0, "go")]) | {"obs": np.zeros((1, 5))})
    model.rows.pop()

    assert storage.push_count == 2
    assert_holds_the_newest(storage, model, n_step=2)


def test_storage_takes_its_form_from_the_first_batch_that_it_did_not_refuse() -> None:
    storage = RingStorage(4)
    with pytest.raises(ValueError, match="next_obs must have the shape"):
        storage.push({"obs": np.zeros((1, 3)), "next_obs": np.zeros((1, 2))})

    storage.push({"value": np.array([5])})

    assert storage.gather(np.array([0]), 1, 1.0)["value"].tolist() == [5]


@pytest.mark.parametrize("missing", ["env_id", "reward", "terminated", "truncated"])
def test_storage_refuses_windows_over_transitions_that_do_not_say_enough(missing: str) -> None:
    storage = RingStorage(4)
    batch = episode([1, 2], "running")
    del batch[missing]
    storage.push(batch)

    with pytest.raises(ValueError, match=f"n_step must be 1 .* without .*{missing}"):
        storage.gather(np.array([0]), n_step=2, discount_factor=1.0)


# ------------------------------------------------------------------ state


def test_storage_state_survives_torch_save_without_pickle(tmp_path: Any) -> None:
    storage, model = RingStorage(6), PushedList()
    for _ in range(3):
        storage.push(model.play([(0, "go"), (1, "terminate"), (2, "go")]))
    torch.save(storage.state_dict(), tmp_path / "state.pt")

    restored = RingStorage(6)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    assert_holds_the_newest(restored, model, n_step=2)


def test_storage_state_contains_only_rows_in_use() -> None:
    storage = RingStorage(1000)
    storage.push(episode([1, 2, 3], "terminated"))

    tensors = storage.state_dict()["tensors"]

    assert max(len(tensor) for tensor in tensors.values()) == 3


def test_mistakes_are_named() -> None:
    storage = RingStorage(4)
    storage.push(episode([1], "running"))
    with pytest.raises(ValueError, match=r"must hold \['env_id', .*'truncated'\], got \['action', 'env_id'"):
        storage.push(episode([1], "running") | {"action": np.array([1])})
    storage = RingStorage(4)
    storage.push({"obs": {"a": np.zeros(1)}, "next_obs": {"a": np.zeros(1)}})
    with pytest.raises(ValueError, match=r"must hold \['next_obs/a'\], got \['next_obs/b'\]"):
        storage.push({"obs": {"a": np.zeros(1)}, "next_obs": {"b": np.zeros(1)}})
    storage = RingStorage(4)
    storage.push({"value": np.zeros((1, 3))})
    with pytest.raises(ValueError, match=r"value must have the shape \(3,\), got \(2,\)"):
        storage.push({"value": np.zeros((1, 2))})
    with pytest.raises(ValueError, match=r"next_obs must have the shape \(3,\), got \(2,\)"):
        RingStorage(4).push({"obs": np.zeros((1, 3)), "next_obs": np.zeros((1, 2))})
    with pytest.raises(ValueError, match=r"next_obs must be .*uint8, got float32"):
        RingStorage(4).push({"obs": np.zeros(1, np.uint8), "next_obs": np.zeros(1)})
    with pytest.raises(ValueError, match=r"the same leading axis, got the sizes \{'reward': 2, 'action': 3\}"):
        RingStorage(4).push({"reward": np.zeros(2), "action": np.zeros(3)})
    with pytest.raises(ValueError, match=r"the same leading axis, got the sizes \{'reward': -1\}"):
        RingStorage(4).push({"reward": 1.0})
    with pytest.raises(ValueError, match="at least one entry"):
        RingStorage(4).push({})
    storage = RingStorage(4)
    batch = episode([1, 2], "running")
    storage.push({name: column for name, column in batch.items() if name not in ("obs", "next_obs")})
    with pytest.raises(ValueError, match=r"n_step must be 1 .* without obs and next_obs"):
        storage.gather(np.array([0]), n_step=2, discount_factor=1.0)
    with pytest.raises(ValueError, match="replay_buffer_size must be 5, as in the saved state, got 4"):
        RingStorage(4).load_state_dict(RingStorage(5).state_dict())


def test_storage_takes_another_form_after_it_was_cleared() -> None:
    storage = RingStorage(4)
    storage.push(episode([1, 2, 3], "terminated"))

    storage.clear()
    storage.push({"value": np.arange(2)})

    assert (storage.count, storage.push_count) == (2, 2)
    assert list(storage.gather(np.arange(2), 1, 1.0)) == ["value"]


# ------------------------------------------------------------------ the usual batch


def vector_step(obs: Any, next_obs: Any, **columns: Any) -> dict[str, Any]:
    env_id = np.arange(len(obs))
    return {"obs": obs, "next_obs": next_obs, "reward": np.ones(len(obs), np.float32), "env_id": env_id, **columns}


def test_observations_of_equal_bytes_and_different_types_are_not_taken_for_equal() -> None:
    storage = RingStorage(8)
    storage.push(vector_step(np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)))
    as_integers = np.ones((2, 1), np.float32).view(np.int32)  # 1065353216

    storage.push(vector_step(as_integers, as_integers))

    drawn = storage.gather(np.arange(4), 1, 1.0)
    assert drawn["next_obs"].flatten().tolist() == [1, 1, 1065353216, 1065353216]
    assert drawn["obs"].flatten().tolist() == [0, 0, 1065353216, 1065353216]


@pytest.mark.parametrize("episode_id", [[7, 8], [7, 9]])
def test_vector_step_is_linked_only_within_an_episode(episode_id: list[int]) -> None:
    storage = RingStorage(8)
    zeros = np.zeros((2, 1), np.float32)
    ends = {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)}
    storage.push(vector_step(zeros, zeros, **ends, episode_id=np.array([7, 8])))
    storage.push(vector_step(zeros, zeros, **ends, episode_id=np.array(episode_id)))

    rewards = storage.gather(np.arange(2), 2, 1.0)["reward"]

    assert rewards.tolist() == [2, 1 + (episode_id[1] == 8)]


def test_minibatches_share_no_memory_with_each_other_or_the_buffer() -> None:
    storage = RingStorage(8)
    obs = np.arange(4, dtype=np.float32)[:, None]
    storage.push(vector_step(obs, obs + 1))
    first, second = (storage.gather(np.arange(4), 1, 0.5) for _ in range(2))
    kept = {name: leaf.clone() for name, leaf in second.items()}

    for leaf in first.values():
        leaf.fill_(77)

    for drawn in (second, storage.gather(np.arange(4), 1, 0.5)):
        assert all(torch.equal(drawn[name], kept[name]) for name in kept)
    assert len({leaf.untyped_storage().data_ptr() for leaf in (*first.values(), *second.values())}) == 2 * len(first)
