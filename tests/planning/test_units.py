"""Numbers with units."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning import units
from kungfu_planning.units import as_clock, duration_s, per_gb, rate_per_s, size_gb


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20m", 1200),
        ("20 min", 1200),
        ("90 s", 90),
        ("1h30m", 5400),
        ("1.5 h", 5400),
        ("1d", 86400),
        ("250ms", 0.25),
        ("0 s", 0),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "", "m", "-3 s", "20 minutes", "1h30", "1e3 s", "20m!"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration; write"):
        duration_s(text)


@pytest.mark.parametrize(
    ("read", "text"), [(duration_s, "9{} d"), (rate_per_s, "$9{}/s"), (size_gb, "9{} TB"), (per_gb, "$9{}/GB")]
)
def test_a_number_beyond_all_floats_is_refused(read: object, text: str) -> None:
    with pytest.raises(UsageError, match="is larger than any number that is computed with"):
        read(text.format("0" * 400))  # type: ignore[operator]  # a parameter


def test_prices_and_sizes_are_read_in_dollars_a_second_and_gigabytes() -> None:
    assert rate_per_s("$12.24/h") == pytest.approx(0.0034)
    assert rate_per_s("$ 3 / min") == pytest.approx(0.05)
    assert [size_gb("150 GB"), size_gb("150MB"), size_gb("1.2 TB")] == pytest.approx([150, 0.15, 1200])
    assert per_gb("$0.01/GB") == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (rate_per_s, "12.24/h"),
        (rate_per_s, "$12.24"),
        (rate_per_s, "$-1/h"),
        (size_gb, "150"),
        (per_gb, "$0.01"),
        (per_gb, "$1/MB"),
    ],
)
def test_a_price_or_size_without_its_units_is_refused(read: object, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        read(text)  # type: ignore[operator]  # a parameter


@given(st.text("0123456789.hms in$/GBd-", max_size=10))
def test_the_exported_pattern_of_a_duration_accepts_what_the_reader_accepts(text: str) -> None:
    try:
        duration_s(text)
    except UsageError:
        assert not re.search(units.DURATION, text)
    else:
        assert re.search(units.DURATION, text)


@pytest.mark.parametrize(("seconds", "clock"), [(0, "0:00"), (59.6, "1:00"), (1164, "19:24"), (3600, "1:00:00")])
def test_times_are_shown_as_a_clock_shows_them(seconds: float, clock: str) -> None:
    assert as_clock(seconds) == clock
