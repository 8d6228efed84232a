"""The options of kungfu-run that are about hosts."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kungfu.cli.hosting import SECRET_KEY, Hosting, add_arguments, read_hosting
from kungfu.errors import UsageError
from kungfu.runtime.hosts import Host

SECRET = "5e" * 32
HERE = ("-H", "127.0.0.1:2,127.0.0.2:2", "--self", "127.0.0.2")


def read(
    *words: str, maximum: int = 2, attachment: str = "local", environment: dict[str, str] | None = None
) -> Hosting:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(words)
    return read_hosting(given, maximum=maximum, attachment=attachment, environment=environment or {})


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
    second = read(*hosts, "--self", "127.0.0.2", environment={SECRET_KEY: SECRET})
    assert (first.secret, first.hosts) == (second.secret, second.hosts)
    assert second.secret == SECRET
    assert (first.index, second.index) == (0, 1)
    assert first.local == Host("127.0.0.1", 2, 28100)
    other = read(*hosts, "--self", "127.0.0.2", "--port", "28101", environment={SECRET_KEY: SECRET})
    assert other.local == Host("127.0.0.2", 2, 28101)


def test_one_host_that_is_named_needs_no_secret_and_listens_where_it_is_said() -> None:
    found = read("--hosts", "127.0.0.3:2", "--port", "4000")
    assert found.local.address == "127.0.0.3:4000"


def test_the_folders_of_several_hosts_differ_and_the_first_one_is_as_ever() -> None:
    environment = {SECRET_KEY: SECRET}
    first = read("-H", "127.0.0.1:1,127.0.0.2:1", "--self", "127.0.0.1", environment=environment)
    second = read("-H", "127.0.0.1:1,127.0.0.2:1", "--self", "127.0.0.2", environment=environment)
    assert first.folder(Path("runs/20261120-2300")) == Path("runs/20261120-2300")
    assert second.folder(Path("runs/20261120-2300")) == Path("runs/20261120-2300-127.0.0.2")


def test_several_hosts_without_a_secret_are_told_how_to_make_one() -> None:
    with pytest.raises(UsageError, match=r"import secrets; print\(secrets.token_hex\(32\)\).*every host.*mode 0600"):
        read(*HERE)


@pytest.mark.parametrize(
    ("text", "words"), [("", "0 bytes"), ("5e" * 15, "15 bytes; must be 16 or more"), ("open sesame", "no hexadecimal")]
)
def test_a_secret_that_could_be_guessed_is_refused_and_not_repeated(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(UsageError, match=words) as from_file:
        read(*HERE, "--secret-file", str(tmp_path / "secret"))
    with pytest.raises(UsageError, match=words) as from_environment:
        read(*HERE, environment={SECRET_KEY: text})
    for raised in (from_file, from_environment):
        assert not text or text not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_file_that_others_may_read_is_refused_with_what_to_type(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"{file} has mode 0{mode:o}.*`chmod 600 {file}`") as refused:
        read(*HERE, "--secret-file", str(file))
    assert SECRET not in str(refused.value)


def test_a_secret_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--secret-file .*/none: cannot be read"):
        read(*HERE, "--secret-file", str(tmp_path / "none"), environment={SECRET_KEY: SECRET})


def test_more_peers_than_slots_are_refused() -> None:
    assert len(read(*HERE, maximum=4, environment={SECRET_KEY: SECRET}).hosts) == 2
    with pytest.raises(UsageError, match=r"--max 5 .* has room for 4 peers"):
        read(*HERE, maximum=5, environment={SECRET_KEY: SECRET})


def test_shared_memory_is_refused_between_machines_and_allowed_on_loopback() -> None:
    """Shared memory is refused between machines and allowed between loopback addresses."""
    environment = {SECRET_KEY: SECRET}
    hosts = ("-H", "192.0.2.1:2,192.0.2.2:2", "--self", "192.0.2.2")
    with pytest.raises(UsageError, match="between hosts give --attachment horovod"):
        read(*hosts, environment=environment)
    assert read(*hosts, attachment="horovod", environment=environment).index == 1
    assert read(*HERE, attachment="local", environment=environment).index == 1


def test_a_loopback_address_among_machines_is_refused_since_nobody_could_reach_it() -> None:
    hosts = ("-H", "localhost:2,192.0.2.2:2", "--self", "localhost")
    with pytest.raises(
        UsageError, match=r"localhost is 127\.0\.0\.1 on this machine, where no other host can reach it"
    ):
        read(*hosts, attachment="horovod", environment={SECRET_KEY: SECRET})


@pytest.mark.parametrize("words", [("--self", "a"), ("--port", "4000"), ("--secret-file", "secret")])
def test_an_option_about_hosts_without_hosts_is_a_mistake(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=f"{words[0]} {words[1]}: .* give --hosts"):
        read(*words)
