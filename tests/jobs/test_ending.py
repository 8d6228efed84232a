"""Jobs that lose rank 0 just when training ends: what some have heard holds for all."""

from __future__ import annotations

import pytest

from tests.jobs.harness import left_in, ran


@pytest.mark.parametrize(("how", "hears", "steps"), [("stop", 2, 10), ("last", 1, 40)], ids=["stop", "last"])
def test_the_others_end_well_if_rank_0_dies_while_it_announces_the_end(tmp_path, how, hears, steps):
    """The others end well if rank 0 dies while it tells them that training is over.

    Who lives follows, or leads, when it has heard it and the other one has not.
    """
    options = ("-np", 3, "--min", 2, "--failures", 0, "--deadline", 20)
    ended = ran(tmp_path, *options, program="half_heard.py", arguments=[how, hears, tmp_path])
    assert [event["how"] for event in ended.all_of("lost")] == ["killed by SIGKILL"]
    found = left_in(tmp_path)
    assert found[1] == found[2]
    assert found[1]["steps"] == steps
    assert {event["peer"] for event in ended.all_of("finished")} == found.keys() == {1, 2}
