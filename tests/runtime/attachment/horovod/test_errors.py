"""What errors of Horovod's stand for."""

import pytest

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.runtime.attachment.horovod.errors import read_failure, read_start_failure

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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{GLOO}pair.h:326] Connect timeout [127.0.0.1]:49568", "Connect timeout [127.0.0.1]:49568"),
        (f"{GLOO}http_store.cc:54] {GLOO}http_store.cc:54] Wait timeout after 12 seconds", "Wait timeout after 12 s"),
        ("HTTP request failed.", "HTTP request failed."),
    ],
)
def test_a_start_that_failed_is_a_lost_peer_of_that_view(text: str, said: str) -> None:
    found = read_start_failure(text, rank=1, view=7)
    assert isinstance(found, PeerFailure)
    assert found.view == 7
    assert str(found).startswith(f"a peer of view 7 died or left while the peers connected ({said}")


def test_a_start_for_which_this_machine_lacks_the_interface_is_nobodys_loss() -> None:
    text = f"[enforce fail at {GLOO[1:]}device.cc:79] ifa != nullptr. Unable to find address for: eth9"
    found = read_start_failure(text, rank=1, view=7)
    assert type(found) is InternalError
    assert str(found) == "horovod cannot start as rank 1 of view 7: Unable to find address for: eth9"
