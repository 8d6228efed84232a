import pytest

from kungfu.errors import UsageError
from kungfu.testing.faults import Fault, ResizeJob, SignalHosts, SignalPeers, When, parse


def test_every_form_of_a_fault_is_read():
    written = """
    at step 40 kill rank 1   # the first one
    at barrier 3 stop rank 0; at barrier 4 continue rank 0
    at next peer ended after 0.25 s notice ranks 0,2
    once settled resize 5
    at next spawned kill joiner
    once settled stop host 1; at next host lost continue hosts 0,2
    """
    assert parse(written) == (
        Fault(When("step", 40), SignalPeers("kill", (1,))),
        Fault(When("barrier", 3), SignalPeers("stop", (0,))),
        Fault(When("barrier", 4), SignalPeers("continue", (0,))),
        Fault(When("next", event="peer ended", after_s=0.25), SignalPeers("notice", (0, 2))),
        Fault(When("settled"), ResizeJob(5)),
        Fault(When("next", event="spawned"), SignalPeers("kill")),
        Fault(When("settled"), SignalHosts("stop", (1,))),
        Fault(When("next", event="host lost"), SignalHosts("continue", (0, 2))),
    )


def test_a_fault_says_itself_in_words_that_are_read_again():
    faults = parse(
        "at step 4 kill ranks 0,1; at next lost after 0.5 s stop joiner; once settled resize 2; at step 9 notice host 1"
    )
    assert parse("; ".join(str(fault) for fault in faults)) == faults


@pytest.mark.parametrize(
    "words", ["at step x kill rank 1", "kill rank 1", "at step 4 kill", "at step 4 resize two", "at step 4 kill host a"]
)
def test_words_that_are_no_fault_are_named(words):
    with pytest.raises(UsageError, match="is no fault; write a moment") as caught:
        parse(f"at step 3 resize 2; {words}")
    assert repr(words) in str(caught.value)
