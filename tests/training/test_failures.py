"""What errors of the graph stand for."""

import pytest

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.training.failures import read

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
    found = read(f"Graph execution error:\n{text}{NODE}", where="step 7")
    assert isinstance(found, PeerFailure)
    assert str(found).startswith(f"in step 7: a peer died or left, and the all-reduce with it ({said}")
    late = read(text, where="step 7", reason="waited 5.0 s in a message for rank 1")
    assert isinstance(late, DeadlineExceeded)
    assert str(late) == "in step 7: waited 5.0 s in a message for rank 1"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("kungfu: peer rank=1 died during gradients", PeerFailure),
        ("kungfu: waited 60.0 s for rank 1 [Op:KungfuAllReduce]", DeadlineExceeded),
        ("kungfu: peers differ: rank 1 sends 3 tensors", InternalError),
        ("Mismatched ALLREDUCE tensor shapes", InternalError),
    ],
)
def test_what_the_attachment_says_decides_whose_error_it_is(text: str, kind: type[Exception]) -> None:
    assert type(read(text, where="step 7")) is kind


def test_an_error_of_the_users_own_stays_what_it_is() -> None:
    assert read("Input to reshape is a tensor with 6 values", where="step 7") is None
