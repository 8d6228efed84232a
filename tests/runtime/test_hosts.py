"""The hosts of a job: what may be written, and which of them this machine is."""

from __future__ import annotations

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.hosts import addresses_of, local_addresses, on_one_machine, own_index, parse_hosts

THREE = parse_hosts("10.0.0.1:2,10.0.0.2:1,node-c:4", port=28100)
NAMES = {"10.0.0.1": ["10.0.0.1"], "10.0.0.2": ["10.0.0.2"], "node-c": ["10.0.0.3", "192.168.0.3"]}


def index(named: str | None = None, *, local: set[str], names: dict[str, list[str]] = NAMES) -> int:
    return own_index(THREE, named, local_addresses=local, resolve=lambda name: names.get(name, []))


def test_hosts_keep_the_order_in_which_they_are_written():
    assert [(host.name, host.slots, host.port) for host in THREE] == [
        ("10.0.0.1", 2, 28100),
        ("10.0.0.2", 1, 28100),
        ("node-c", 4, 28100),
    ]
    assert [host.address for host in THREE] == ["10.0.0.1:28100", "10.0.0.2:28100", "node-c:28100"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a:1,,b:1", "is no HOST:SLOTS"),
        ("a:1,", "is no HOST:SLOTS"),
        ("10.0.0.1", "is no HOST:SLOTS"),
        ("a b:1", "is no HOST:SLOTS"),
        ("-a:1", "is no HOST:SLOTS"),
        ("http://a:1", "is no HOST:SLOTS"),
        ("a:1,b:2,a:3", "names a more than once"),
        ("a:0", "'0' slots; must be a number of peers that is 1 or more"),
        ("a:-1", "'-1' slots"),
        ("a:two", "'two' slots"),
        ("a:", "'' slots"),
        ("::1:2", "IPv6 addresses are not supported"),
        ("[fe80::1]:2", "IPv6 addresses are not supported"),
        ("fe80::1", "IPv6 addresses are not supported"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused_with_its_words(text, words):
    with pytest.raises(UsageError, match=words):
        parse_hosts(text, port=28100)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_no_host_could_know_of_is_refused(port):
    with pytest.raises(UsageError, match="must be from 1 to 65535"):
        parse_hosts("a:1", port=port)


def test_this_machine_is_the_host_whose_name_is_one_of_its_addresses():
    assert index(local={"127.0.0.1", "10.0.0.2"}) == 1
    assert index(local={"127.0.0.1", "192.168.0.3"}) == 2


def test_the_name_that_is_given_counts_and_not_the_addresses():
    assert index("node-c", local={"10.0.0.1"}) == 2
    with pytest.raises(UsageError, match=r"--self node-d: is none of the hosts 10\.0\.0\.1, 10\.0\.0\.2, node-c"):
        index("node-d", local={"10.0.0.1"})


def test_none_or_several_of_the_hosts_is_an_error_that_says_what_to_give():
    with pytest.raises(UsageError, match=r"\(10.0.0.9\) this machine is none of .* --self HOST"):
        index(local={"10.0.0.9"})
    with pytest.raises(UsageError, match=r"several of the hosts, 10.0.0.1, 10.0.0.2; .* --self HOST"):
        index(local={"10.0.0.1", "10.0.0.2"})
    loopback = {**NAMES, "10.0.0.1": ["127.0.0.1"], "10.0.0.2": ["127.0.0.2"]}
    with pytest.raises(UsageError, match="several of the hosts"):
        index(local={"127.0.0.1"}, names=loopback)


def test_a_name_that_is_unknown_here_is_another_machine():
    assert index(local={"10.0.0.1"}, names={"10.0.0.1": ["10.0.0.1"]}) == 0
    assert addresses_of("no-such-host.invalid") == frozenset()


def test_this_machine_has_at_least_its_loopback_address():
    assert "127.0.0.1" in local_addresses()


def test_loopback_addresses_are_one_machine_and_one_other_address_is_not():
    assert on_one_machine(parse_hosts("127.0.0.1:1,localhost:2,127.9.9.9:1", port=1))
    assert not on_one_machine(parse_hosts("127.0.0.1:1,10.0.0.2:2", port=1))
    assert not on_one_machine(parse_hosts("no-such-host.invalid:1", port=1))
