"""What the launcher tells a peer, through the environment and back."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.settings import ENVIRONMENT_KEY, CheckpointSettings, Deadlines, Limits, Settings, read_settings

SETTINGS = Settings("job", 3, "127.0.0.1:80", "ab" * 32, "local", Limits(1, 4), Deadlines(10.0, 2.5), ("m:p(every=3)",))


@given(st.lists(st.text()).map(tuple), st.integers(0, 10**9), st.floats(1, 86400), st.integers(1, 99))
def test_a_peer_reads_what_the_launcher_wrote(
    policies: tuple[str, ...], peer: int, wait_s: float, maximum: int
) -> None:
    settings = replace(
        SETTINGS, policies=policies, peer=peer, deadlines=Deadlines(wait_s=wait_s), limits=Limits(1, maximum)
    )
    assert read_settings(settings.to_environment()) == settings


def test_a_path_of_bytes_that_are_no_text_reaches_the_peer() -> None:
    settings = replace(SETTINGS, checkpoints=CheckpointSettings("/data/r\udcff"), policies=("/p\udcfe.py:p",))
    assert read_settings(settings.to_environment()) == settings


def test_a_program_without_a_launcher_has_no_settings() -> None:
    assert read_settings({"PATH": "/bin"}) is None


def foreign(**changes: object) -> str:
    fields = {**asdict(SETTINGS), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    "text",
    ["", "1", "null", "[]", "{}", "yes", foreign(job=None), foreign(speed=9), foreign(limits={"minimum": 1})],
    ids=["empty", "a number", "null", "a list", "nothing", "no json", "a field less", "a field more", "half a field"],
)
def test_a_value_that_another_version_wrote_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(UsageError, match=r"KUNGFU_SETTINGS does not hold .* start peers with the kungfu-run of"):
        read_settings({ENVIRONMENT_KEY: text})


@given(st.integers(1, 20), st.integers(0, 20), st.integers(-50, 50))
def test_limits_give_the_nearest_size_within(minimum: int, more: int, size: int) -> None:
    limits = Limits(minimum, minimum + more)
    clipped = limits.clip(size)
    assert minimum <= clipped <= minimum + more
    assert abs(clipped - size) == min(abs(allowed - size) for allowed in range(minimum, minimum + more + 1))


def test_deadlines_are_finite_unless_asked_otherwise() -> None:
    assert 0 < Deadlines().wait_s < Deadlines().ready_s < math.inf


@pytest.mark.parametrize("agent", ["10.0.0.7:4000", "10.0.0.7"])
def test_a_peer_listens_on_the_host_of_its_agent(agent: str) -> None:
    assert replace(SETTINGS, agent=agent).host == "10.0.0.7"
