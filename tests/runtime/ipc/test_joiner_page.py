"""The page on which an agent and the peers of its host keep who is on the way there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kungfu.runtime.ipc import memfd
from kungfu.runtime.ipc.joiner_page import JoinerPage


def opened(path: str) -> JoinerPage:
    found = JoinerPage.open(path)
    assert found is not None
    return found


def test_what_one_adds_the_others_count_until_anybody_removes_it() -> None:
    agent = JoinerPage.create()
    here, there = opened(agent.path), opened(agent.path)
    agent.add(3)
    agent.add(7)
    agent.add(3)
    assert [one.count() for one in (agent, here, there)] == [2, 2, 2]
    there.remove([7, 8])
    assert [one.count() for one in (agent, here, there)] == [1, 1, 1]
    agent.remove([3])
    assert here.count() == 0


def test_another_process_opens_it_by_its_path() -> None:
    agent = JoinerPage.create()
    agent.add(5)
    told = f"from kungfu.runtime.ipc.joiner_page import JoinerPage as P; p = P.open({agent.path!r}); print(p.count())"
    script = f"{told}; p.remove([5]); p.add(9000)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1"]
    assert agent.count() == 1, "peer 5 is ready, and another one is on its way"
    agent.remove([9000])
    assert agent.count() == 0


def test_it_outlives_its_maker_for_those_who_have_it_open() -> None:
    agent = JoinerPage.create()
    path, peer = agent.path, opened(agent.path)
    agent.add(1)
    del agent
    assert peer.count() == 1
    assert JoinerPage.open(path) is None or opened(path).count() != 1, "the path is nobody's, or another one's"


def test_where_there_is_no_page_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(bytes_: int, name: str) -> int:
        raise OSError("this kernel has none")

    monkeypatch.setattr(memfd, "make", no_memory)
    own = JoinerPage.create()
    own.add(3)
    assert (own.path, own.count()) == ("", 1)
    own.close()
    assert JoinerPage.open("") is None
    assert JoinerPage.open(f"/proc/{os.getpid()}/fd/99999") is None


def test_other_memory_under_the_path_is_refused() -> None:
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 4096)
    larger = memfd.make(8192)
    for descriptor in (unsealed, larger):
        assert JoinerPage.open(f"/proc/{os.getpid()}/fd/{descriptor}") is None
        os.close(descriptor)


def test_a_closed_page_gives_its_memory_back_and_takes_what_comes_late() -> None:
    agent = JoinerPage.create()
    peer, path = opened(agent.path), agent.path
    agent.add(3)
    agent.close()
    agent.add(4)
    agent.remove([3])
    agent.close()
    assert agent.count() == 0
    assert peer.count() == 1, "others have their own hold on the memory"
    assert JoinerPage.open(path) is None
