"""Values of this package survive the wire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.deciding.decide import Keep, Prepared, Terms
from kungfu.runtime.deciding.view import Peer, View
from kungfu.runtime.wire import convert
from kungfu.runtime.wire import messages_pb2 as pb

counts = st.integers(0, 2**40)
peers = st.builds(Peer, counts, st.text(max_size=20))
seconds = st.floats(0, 1e6)


@given(st.builds(View, counts, st.lists(peers, max_size=5).map(tuple)))
def test_a_view(view: View) -> None:
    message = pb.ViewInfo.FromString(convert.from_view(view).SerializeToString())
    assert convert.to_view(message) == view


@given(st.builds(Terms, counts, seconds, counts, counts, st.sampled_from(Keep.__args__)))
def test_terms_to_the_last_bit(terms: Terms) -> None:
    message = pb.Terms.FromString(convert.from_terms(terms).SerializeToString())
    assert convert.to_terms(message) == terms


@given(
    st.builds(
        Prepared,
        st.lists(peers, max_size=4).map(tuple),
        st.lists(counts, max_size=4).map(tuple),
        st.text(max_size=20),
        st.dictionaries(st.text(max_size=5), seconds, max_size=3),
    )
)
def test_an_offer(prepared: Prepared) -> None:
    message = pb.Prepared.FromString(convert.from_prepared(prepared).SerializeToString())
    assert convert.to_prepared(message) == prepared


def test_an_empty_message_is_the_terms_of_a_job_that_has_none_yet() -> None:
    assert convert.to_terms(pb.Terms()) == Terms()
