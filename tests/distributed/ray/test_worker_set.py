"""The error that ends a run when Ray does not restart an actor has the reason."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.distributed.ray.worker_set import not_restarted

messages: Any = pytest.importorskip("ray.core.generated.common_pb2")
errors: Any = pytest.importorskip("ray.exceptions")

NODE = "The actor is dead because its node has died. Node Id: 9b5b"


@pytest.mark.parametrize("reason", [NODE, f"{NODE}\n\tthe actor's node was terminated: lagging heartbeats\n"])
def test_error_has_the_reason_that_ray_gives(reason: str) -> None:
    error = errors.ActorDiedError(
        messages.ActorDiedErrorContext(actor_id=bytes(16), class_name="WorkerActor", error_message=reason)
    )
    in_one_line = " ".join(reason.split())
    assert str(not_restarted("learner 0", error)) == f"learner 0 died, and Ray does not restart it: {in_one_line}"


def test_error_without_a_reason_of_ray_is_one_line() -> None:
    text = str(not_restarted("the coordinator", errors.ActorDiedError()))
    assert text == (
        "the coordinator died, and Ray does not restart it: The actor died unexpectedly before finishing this task."
    )
