"""The options of kungfu-run that are about hosts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.hosting import SECRET_KEY, Hosting, add_arguments, read_hosting
from kungfu.errors import UsageError
from kungfu.runtime.hosts import Host, StoreAddress

SECRET = "5e" * 32
KNOWN = {SECRET_KEY: SECRET}
HERE = ("-H", "127.0.0.1:2,127.0.0.2:2", "--self", "127.0.0.2")
JOINER = ("--self", "127.0.0.3:2")
MACHINES = ("-H", "192.0.2.1:2,192.0.2.2:2", "--self", "192.0.2.2")


def read(
    *words: str,
    maximum: int = 2,
    size: int | None = None,
    attachment: str = "local",
    environment: dict[str, str] | None = None,
) -> Hosting:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(words)
    size = maximum if size is None else size
    return read_hosting(given, size=size, maximum=maximum, attachment=attachment, environment=environment or {})


def test_without_hosts_this_one_is_alone_with_a_secret_of_its_own() -> None:
    one, other = read(maximum=3, environment={SECRET_KEY: "no secret"}), read(maximum=3)
    assert one.hosts == (Host("127.0.0.1", 3, 0),)
    assert one.local.port == one.index == 0
    assert one.secret != other.secret
    assert one.job != other.job


def test_a_secret_comes_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET.upper()}\n")
    file.chmod(0o400)
    hosts = HERE[:2]
    first = read(*hosts, "--self", "127.0.0.1", "--secret-file", str(file))
    second = read(*hosts, "--self", "127.0.0.2", environment=KNOWN)
    assert (first.secret, first.hosts) == (second.secret, second.hosts)
    assert second.secret == SECRET
    assert (first.index, second.index) == (0, 1)
    assert first.local == Host("127.0.0.1", 2, 28100)
    other = read(*hosts, "--self", "127.0.0.2", "--port", "28101", environment=KNOWN)
    assert other.local == Host("127.0.0.2", 2, 28101)


def test_one_host_that_is_named_needs_no_secret_and_listens_where_it_is_said() -> None:
    found = read("--hosts", "127.0.0.3:2", "--port", "4000")
    assert found.local.address == "127.0.0.3:4000"


@pytest.mark.parametrize(
    ("text", "words"), [("", "0 bytes"), ("5e" * 15, "15 bytes; must be 16 or more"), ("open sesame", "no hexadecimal")]
)
def test_a_secret_that_could_be_guessed_is_refused_and_not_repeated(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(0o600)
    for more, environment in ((("--secret-file", str(tmp_path / "secret")), {}), ((), {SECRET_KEY: text})):
        with pytest.raises(UsageError, match=words) as refused:
            read(*HERE, *more, environment=environment)
        assert not text or text not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_file_that_others_may_read_is_refused_with_what_to_type(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"{file} has mode 0{mode:o}.*`chmod 600 {file}`") as refused:
        read(*HERE, "--secret-file", str(file))
    assert SECRET not in str(refused.value)


def test_a_host_that_no_list_names_founds_a_job_or_joins_one(tmp_path: Path) -> None:
    alone = read(*JOINER, "--min-hosts", "3", size=4, environment=KNOWN)
    assert (alone.hosts, alone.join, alone.min_hosts) == ((Host("127.0.0.3", 2, 28100),), (), 3)
    joiner = read("--join", "127.0.0.1,127.0.0.2:4000", *JOINER, "--port", "28101", size=9, environment=KNOWN)
    assert joiner.join == ("127.0.0.1:28101", "127.0.0.2:4000")
    assert joiner.local == Host("127.0.0.3", 2, 28101)
    assert joiner.folder(tmp_path / "run") == tmp_path / "run-127.0.0.3"
    assert read(*HERE, "--min-hosts", "1", maximum=9, size=2, environment=KNOWN).min_hosts == 1


def test_peers_for_every_slot_and_shared_memory_on_loopback_are_allowed() -> None:
    assert len(read(*HERE, maximum=4, environment=KNOWN).hosts) == 2
    assert read(*MACHINES, attachment="horovod", environment=KNOWN).index == 1
    assert read(*HERE, attachment="local", environment=KNOWN).index == 1


def test_a_store_is_named_by_its_address_and_the_name_of_the_job() -> None:
    found = read(*HERE, "--store", "etcd://10.0.0.9:2379", "--job", "digits-3", environment=KNOWN)
    assert found.store == StoreAddress("10.0.0.9:2379", "digits-3")
    assert read(*HERE, environment=KNOWN).store is None


def test_with_a_store_a_host_without_a_list_has_one_line_to_found_or_join(tmp_path: Path) -> None:
    store = ("--store", "etcd://10.0.0.9:2379", "--job", "digits")
    for join, addresses in ((), ()), (("--join", "127.0.0.1"), ("127.0.0.1:28100",)):
        found = read(*JOINER, *join, *store, environment=KNOWN)
        assert (found.hosts, found.join) == ((Host("127.0.0.3", 2, 28100),), addresses)
        assert found.store == StoreAddress("10.0.0.9:2379", "digits")
        assert found.folder(tmp_path / "run") == tmp_path / "run-127.0.0.3", "it does not know yet if it founds"
    assert read(*JOINER, environment=KNOWN).folder(tmp_path / "run") == tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (HERE, {}, r"import secrets; print\(secrets.token_hex\(32\)\).*every host.*mode 0600"),
        (HERE, {"environment": KNOWN, "size": 5}, r"-np 5: .* has room for 4 peers; .*--min-hosts"),
        ((*HERE, "--secret-file", "no/file"), {"environment": KNOWN}, r"--secret-file no/file: cannot be read"),
        (MACHINES, {"environment": KNOWN}, "between hosts give --attachment horovod"),
        (("-H", "localhost:2,192.0.2.2:2", "--self", "localhost"), {"environment": KNOWN, "attachment": "horovod"},
         r"localhost is 127\.0\.0\.1 on this machine, where no other host can reach it"),
        (("--self", "a"), {}, "--self a: .* give --hosts"),
        (("--port", "4000"), {}, "--port 4000: .* give --hosts"),
        (("--secret-file", "secret"), {}, "--secret-file secret: .* give --hosts"),
        (("--min-hosts", "2"), {}, "--min-hosts 2: .* give --hosts"),
        (("-H", "127.0.0.1:2", "--min-hosts", "0"), {}, "--min-hosts 0: must be 1 or more"),
        (("--self", "127.0.0.3:2"), {}, "hosts that join a job need the secret"),
        (("--self", "127.0.0.3:2,127.0.0.4:1"), {"environment": KNOWN}, "must be one host"),
        ((*HERE, "--join", "127.0.0.1"), {"environment": KNOWN}, "--join 127.0.0.1: a host is in the list"),
        (("-H", "127.0.0.1:2", "--self", "127.0.0.1:2"), {"environment": KNOWN}, "--self 127.0.0.1:2: a host is in"),
        (("--join", "127.0.0.1", "--self", "127.0.0.3"), {"environment": KNOWN}, "give this host's name and its slots"),
        (("--join", "127.0.0.1:x", *JOINER), {"environment": KNOWN}, "--join 127.0.0.1:x: the port must be"),
        (("--join", "::1", *JOINER), {"environment": KNOWN}, r"--join ::1: is no HOST\[:PORT\]"),
        (("--join", "127.0.0.1,", *JOINER), {"environment": KNOWN}, r"--join : is no HOST\[:PORT\]"),
        (("--join", "127.0.0.3", *JOINER), {"environment": KNOWN}, "names this host itself"),
        (("--join", "192.0.2.1", *JOINER), {"environment": KNOWN, "attachment": "horovod"},
         r"--self and --join: 127\.0\.0\.3 is .* on this machine, where no other host can reach it"),
        (("--join", "192.0.2.1", "--self", "192.0.2.3:2"), {"environment": KNOWN}, "give --attachment horovod"),
        (("--store", "etcd://a:1"), {}, "--store etcd://a:1: .* give --hosts"),
        ((*HERE, "--store", "etcd://a:1"), {"environment": KNOWN}, "--store and --job belong together"),
        ((*HERE, "--job", "a"), {"environment": KNOWN}, "--store and --job belong together"),
        (("-H", "127.0.0.1:2", "--store", "etcd://a:1", "--job", "a"), {}, "--hosts names only one; .* --self HOST:SL"),
        ((*JOINER, "--store", "etcd://a:1"), {"environment": KNOWN}, "--store and --job belong together"),
        (("--self", "192.0.2.3:2", "--store", "etcd://a:1", "--job", "a"), {"environment": KNOWN},
         "give --attachment horovod"),
        ((*HERE, "--store", "a:1", "--job", "a"), {"environment": KNOWN}, "--store a:1: is no etcd://HOST:PORT"),
        ((*HERE, "--store", "etcd://a:0", "--job", "a"), {"environment": KNOWN}, "is no etcd://HOST:PORT"),
        ((*HERE, "--store", "etcd://a:1", "--job", "a/b"), {"environment": KNOWN}, "--job 'a/b': a name has letters"),
    ],
)  # fmt: skip
def test_hosts_that_cannot_form_a_job_are_refused(words: tuple[str, ...], given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(*words, **given)
