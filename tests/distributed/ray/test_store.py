from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle

from lightning_ding.distributed.block_files import read_block
from lightning_ding.distributed.ray.store import SMALL, Handle, RayStore
from lightning_ding.distributed.transport import Refusal

NAME = "0" * 32
SIZES = pytest.mark.parametrize("size", [pytest.param(8, id="small"), pytest.param(SMALL, id="large")])


@pytest.fixture
def store(ray: Any) -> RayStore:
    return RayStore()


@SIZES
def test_block_comes_back_with_its_values_forms_and_metadata(store: RayStore, size: int) -> None:
    tensors = {
        "obs": {"image": np.arange(6, dtype=np.uint8).reshape(2, 3), "speed": torch.tensor([0.5, -1.0])},
        "half": torch.tensor([[1.5]], dtype=torch.bfloat16),
        "is_last": torch.tensor([True, False]),
        "number": torch.tensor(7),
        "nothing": torch.zeros(0, 4),
        "more": torch.arange(size) % 128,
    }

    block = store.get(store.put("data", tensors, {"by": "test"}))

    assert block.metadata == {"by": "test"}
    assert block.tensors["obs"]["image"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert block.tensors["obs"]["speed"].tolist() == [0.5, -1.0]
    assert block.tensors["is_last"].tolist() == [True, False]
    assert block.tensors["number"].item() == 7
    assert block.tensors["number"].shape == ()
    assert block.tensors["nothing"].shape == (0, 4)
    assert block.tensors["half"].dtype == torch.bfloat16
    assert block.tensors["half"].tolist() == [[1.5]]
    assert block.tensors["more"].tolist() == [i % 128 for i in range(size)]


@SIZES
def test_writing_into_a_block_does_not_change_it_for_others(store: RayStore, size: int) -> None:
    source = torch.zeros(size)
    handle = store.put("batch", {"x": source})

    source += 1
    store.get(handle).tensors["x"].add_(2)

    assert store.get(handle).tensors["x"].sum() == 0


def through_ray(handle: Any) -> Any:
    """Return a handle as another process gets it with a message."""
    return cloudpickle.loads(cloudpickle.dumps(handle))


def test_only_blocks_over_the_size_are_objects_of_ray(ray: Any, store: RayStore) -> None:
    for size, is_object in ((SMALL - 200, False), (SMALL, True)):  # with a header
        handle = store.put("data", {"x": torch.zeros(size, dtype=torch.uint8)})
        assert isinstance(handle.content, ray.ObjectRef) == is_object


def test_weights_are_objects_of_ray_which_each_node_gets_once(ray: Any, store: RayStore) -> None:
    assert isinstance(store.put("policy", {"w": torch.zeros(2)}).content, ray.ObjectRef)


@SIZES
def test_handle_takes_its_block_along_and_is_the_same_as_without(store: RayStore, size: int) -> None:
    handle = store.put("data", {"x": torch.ones(size)})
    assert json.loads(json.dumps(handle)) == handle
    assert RayStore().get(through_ray(handle)).tensors["x"].sum() == size
    with pytest.raises(Refusal, match="404: there is no data block"):
        RayStore().get(json.loads(json.dumps(handle)))


def test_part_of_a_tensor_is_put_without_the_rest(store: RayStore) -> None:
    handle = store.put("data", {"x": torch.arange(12).reshape(3, 4)[:, 1:3].t()})

    assert store.get(handle).tensors["x"].tolist() == [[1, 5, 9], [2, 6, 10]]


def test_deleted_block_is_not_there(store: RayStore) -> None:
    handle = store.put("data", {"x": torch.zeros(3)})

    store.delete(handle)
    store.delete(handle)

    with pytest.raises(Refusal, match="404: there is no data block"):
        store.get(handle)


@SIZES
def test_moved_block_lies_in_the_file_alone(store: RayStore, tmp_path: Path, size: int) -> None:
    handle = store.put("data", {"obs": {"x": torch.tensor([1.0, 2.0] * size)}}, {"seq": "3"})

    store.move(handle, tmp_path / "0.safetensors")

    block = read_block(tmp_path / "0.safetensors", 1_000_000)
    assert block.tensors["obs"]["x"].tolist() == [1.0, 2.0] * size
    assert block.metadata == {"seq": "3"}
    with pytest.raises(Refusal, match="404"):
        store.get(handle)


def test_block_that_cannot_be_moved_stays(store: RayStore, tmp_path: Path) -> None:
    handle = store.put("data", {"x": torch.tensor([4.0])})

    with pytest.raises(OSError, match="No such file"):
        store.move(handle, tmp_path / "missing" / "0.safetensors")

    assert store.get(handle).tensors["x"].tolist() == [4.0]


@pytest.mark.parametrize(
    "handle",
    [
        None,
        "data",
        {"kind": "data"},
        {"kind": "code", "name": NAME},
        {"kind": "data", "name": "../../x"},
        {"kind": "data", "name": NAME.replace("0", "X")},
        {"kind": "data", "name": 3},
        {"kind": ["data"], "name": NAME},
        {"kind": "data", "name": NAME, "more": 1},
    ],
)
def test_what_is_no_handle_is_refused(store: RayStore, tmp_path: Path, handle: Any) -> None:
    for act in (store.get, store.delete, lambda it: store.move(it, tmp_path / "x")):
        with pytest.raises(Refusal, match=r"40[03]: (a handle|kind|name) must "):
            act(handle)


def test_handle_of_another_kind_is_refused(store: RayStore) -> None:
    handle = store.put("data", {"x": torch.zeros(1)})

    with pytest.raises(Refusal, match="404"):
        store.get({**handle, "kind": "batch"})


def test_kind_that_is_none_is_an_error(store: RayStore) -> None:
    with pytest.raises(ValueError, match="kind must be one of data, batch, priority, policy, got 'code'"):
        store.put("code", {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [("text", "is not a data block"), (b"torn", "is truncated"), (np.zeros(9, np.uint8), "is truncated")],
)
@pytest.mark.parametrize("is_object", [False, True])
def test_block_of_another_form_is_refused(ray: Any, store: RayStore, sent: Any, reason: str, is_object: bool) -> None:
    handle = Handle(kind="data", name=NAME)
    handle.content = ray.put(sent) if is_object else sent

    with pytest.raises(Refusal, match=f"422: .*{reason}"):
        store.get(handle)


def test_too_large_block_is_refused(ray: Any) -> None:
    large, small = RayStore(max_bytes=100_000), RayStore(max_bytes=200)  # both with a header

    assert large.get(large.put("data", {"x": torch.zeros(24_900)})).tensors["x"].shape == (24_900,)
    with pytest.raises(Refusal, match=r"413: .* has 100\d\d\d bytes, more than 100000"):
        large.get(large.put("data", {"x": torch.zeros(25_000)}))
    assert small.get(small.put("data", {"x": torch.zeros(25)})).tensors["x"].shape == (25,)
    with pytest.raises(Refusal, match=r"413: .* has 288 bytes, more than 200"):
        small.get(small.put("data", {"x": torch.zeros(50)}))


def test_round_is_released_where_it_was_put_when_its_reader_deletes_it(store: RayStore) -> None:
    handle, reader = store.put("batch", {"x": torch.zeros(3)}), RayStore()
    received = through_ray(handle)

    reader.delete(received)
    store.release(reader.take_deleted())

    assert handle.content is None
    assert received.content is None
    assert reader.take_deleted() == []


def test_coordinator_that_forgets_its_rounds_keeps_no_list_of_their_names(tmp_path: Path) -> None:
    coordinator = RayStore(tmp_path)
    for _ in range(3):
        coordinator.delete(coordinator.put("batch", {"x": torch.zeros(1)}))
    assert coordinator.take_deleted() == []


def test_blocks_are_released_with_their_handles(store: RayStore) -> None:
    handles = [store.put("batch", {"x": torch.zeros(size)}) for size in (1, SMALL)]
    assert len(store._rounds) == 2
    forgotten = handles.pop(0)
    store.delete(forgotten)  # the coordinator keeps a limited number, and deletes the oldest
    with pytest.raises(Refusal, match="404"):
        store.get(forgotten)
    handles.clear()
    del forgotten
    gc.collect()
    assert len(store._rounds) == 0


def test_weights_of_the_coordinator_are_all_kept_and_outlive_its_process(ray: Any, tmp_path: Path) -> None:
    before, number = RayStore(tmp_path), 6
    handles = [before.put("policy", {"w": torch.tensor([float(i)])}, {"version": str(i)}) for i in range(number)]

    after = RayStore(tmp_path)  # has no references, like the store of a restarted process

    for i, handle in enumerate(handles):
        assert before.get(handle).tensors["w"].item() == i
        assert after.get(handle).tensors["w"].item() == i
        assert after.get(handle).metadata == {"version": str(i)}
    after.delete(handles[0])
    with pytest.raises(Refusal, match="404: there is no policy block"):
        RayStore(tmp_path).get(handles[0])


def test_restarted_process_serves_the_weights_in_its_files(ray: Any, tmp_path: Path) -> None:
    handle = RayStore(tmp_path).put("policy", {"w": torch.tensor([1.5, 2.5])}, {"version": "3"})
    torn = {"kind": "policy", "name": NAME}
    (tmp_path / "policy" / f"{NAME}.safetensors").write_bytes(b"torn")
    after, worker = RayStore(tmp_path), RayStore()

    answer = through_ray(after.with_weights({"weights": {"main": dict(handle)}, "n": 1}))

    assert answer["n"] == 1
    assert worker.get(answer["weights"]["main"]).tensors["w"].tolist() == [1.5, 2.5]
    assert worker.get(answer["weights"]["main"]).metadata == {"version": "3"}
    unknown = {"kind": "policy", "name": "1" * 32}
    assert after.with_weights({"handle": unknown}) == {"handle": unknown}
    with pytest.raises(Refusal, match="422"):
        after.with_weights({"handle": torn})


def test_weights_that_are_deleted_while_they_are_shared_again_are_not_kept(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = RayStore(tmp_path).put("policy", {"w": torch.tensor([1.5])})
    after = RayStore(tmp_path)
    share = after._shared

    def deleted_meanwhile(content: bytes) -> Any:
        after.delete(dict(handle))  # as another thread does
        return share(content)

    monkeypatch.setattr(after, "_shared", deleted_meanwhile)
    after.with_weights({"weights": dict(handle)})
    assert after._weights == {}
    assert list((tmp_path / "policy").iterdir()) == []


def test_coordinator_keeps_the_weights_of_a_learner_that_it_has_read(ray: Any, tmp_path: Path) -> None:
    handle, coordinator = RayStore().put("policy", {"w": torch.tensor([2.5])}), RayStore(tmp_path)

    assert coordinator.get(handle).tensors["w"].item() == 2.5
    assert handle.content is None  # the learner's object, which ends with the learner; the coordinator has one

    assert RayStore().get(coordinator.with_weights({"handle": handle})["handle"]).tensors["w"].item() == 2.5
    assert RayStore(tmp_path).get(handle).tensors["w"].item() == 2.5
    coordinator.delete(handle)
    with pytest.raises(Refusal, match="404"):
        coordinator.get(handle)


@pytest.mark.slow
def test_block_whose_process_died_is_lost_not_waited_for(ray: Any, store: RayStore) -> None:
    class Putter:
        def __init__(self) -> None:
            self.store = RayStore()

        def put(self) -> Any:
            return {"data_id": self.store.put("data", {"x": torch.zeros(50_000)})}

    actor = ray.remote(Putter).remote()
    message = ray.get(actor.put.remote())

    ray.kill(actor)

    with pytest.raises(Refusal, match=r"404: the data block \w+ is lost"):
        _get_until_refused(store, message["data_id"])


def _get_until_refused(store: RayStore, handle: Any) -> None:
    """Return after ten seconds: Ray does not hear of a death at once."""
    for _ in range(100):
        store.get(handle)
        time.sleep(0.1)
