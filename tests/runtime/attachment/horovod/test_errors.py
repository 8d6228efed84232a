"""What errors of Horovod's stand for."""

import pytest

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.runtime.attachment.horovod.errors import read_failure

GLOO = "[/tmp/pip-install-x/horovod_1/third_party/compatible17_gloo/gloo/transport/tcp/"
NODE = "\n\t [[{{node cond/kungfu_gradients_float32}}]] [Op:__inference__step_991]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Horovod has been shut down. This was caused by an exception", "Horovod has been shut down"),
        (
            f"{GLOO}pair.cc:598] Connection closed by peer [10.77.0.3]:64726",
            "Connection closed by peer [10.77.0.3]:64726",
        ),
        (f"{GLOO}unbound_buffer.cc:133] Timed out waiting 20000ms for send operation to complete", "Timed out waiting"),
    ],
)
def test_a_message_of_horovods_that_failed_is_a_lost_peer(text: str, said: str) -> None:
    found = read_failure(f"Graph execution error:\n{text}{NODE}")
    assert isinstance(found, PeerFailure)
    assert str(found.prefixed("in step 7: ")).startswith(
        f"in step 7: a peer died or left, and the all-reduce with it ({said}"
    )


def test_a_message_that_this_peer_gave_up_is_a_deadline_with_the_ranks_it_waited_for() -> None:
    gave_up = DeadlineExceeded("waited 5.0 s in a message for rank 1", waiting_for=[1], waited_s=5.0)
    found = read_failure("Horovod has been shut down. This was caused by an exception", gave_up=gave_up)
    assert isinstance(found, DeadlineExceeded)
    assert (found.waiting_for, found.waited_s) == ((1,), 5.0)
    assert str(found.prefixed("in step 7: ")) == "in step 7: waited 5.0 s in a message for rank 1"


def test_tensors_that_differ_are_a_defect_and_nobodys_loss() -> None:
    assert type(read_failure("Mismatched ALLREDUCE tensor shapes")) is InternalError


def test_an_error_of_the_users_own_stays_what_it_is() -> None:
    assert read_failure("Input to reshape is a tensor with 6 values") is None
