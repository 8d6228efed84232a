"""The store at which peers meet, over real connections on the loopback."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from kungfu.runtime.attachment.horovod.key_value_store import KeyValues, KeyValueStore, get, get_now, put


def test_a_value_that_was_put_is_found_and_a_missing_one_is_told_at_once() -> None:
    with listening() as store:
        assert min(seconds_of(lambda: get_now(store, key="/scope/key")) for _ in range(5)) < 0.5
        assert get_now(store, key="/scope/key") is None
        put(store, key="/scope/key", value=b"\x00\xff")
        assert get(store, key="/scope/key") == b"\x00\xff"
        assert get_now(store, key="/scope/key") == b"\x00\xff"


def test_who_asks_for_a_missing_key_hears_of_it_when_it_comes() -> None:
    with listening() as store:
        heard: list[bytes | None] = []
        asking = threading.Thread(target=lambda: heard.append(get(store, key="/scope/late")))
        asking.start()
        put(store, key="/scope/late", value=b"here")
        asking.join(timeout=180.0)
        assert heard == [b"here"]


def test_a_client_may_say_that_it_is_done_and_too_large_a_value_is_refused() -> None:
    with listening() as store:
        assert _status(store, "DELETE", body=None) == http.client.OK
        assert _status(store, "PUT", body=b"x" * (1 << 17)) == http.client.REQUEST_ENTITY_TOO_LARGE


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_who_does_not_know_the_token_is_refused_before_its_value_is_read(method: str) -> None:
    with listening() as store:
        put(store, key="/scope/key", value=b"ours")
        where, _, token = store.partition("/")
        for path in ("/scope/key", f"/{token[:-1]}/scope/key", "/:/scope/key", "/", f"/scope/{token}"):
            assert _status(f"{where}{path}", method, body=None) == http.client.FORBIDDEN
        with socket.create_connection((where.split(":")[0], int(where.split(":")[1])), timeout=180) as stranger:
            stranger.sendall(b"PUT /scope/key HTTP/1.0\r\nContent-Length: 60000\r\n\r\n")  # and never sends them
            assert b" 403 " in stranger.recv(1 << 10)
        assert get(store, key="/scope/key") == b"ours"


def test_horovods_client_is_known_by_the_token_though_a_port_stands_behind_it() -> None:
    with listening() as store:
        put(f"{store}:4711", key="/scope/key", value=b"here")
        assert get(store, key="/scope/key") == b"here"


def test_a_store_keeps_no_more_keys_than_any_view_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kungfu.runtime.attachment.horovod.key_value_store._MOST_KEYS", 3)
    values = KeyValues()
    assert [values.put(f"/scope/{number}", value=b"") for number in range(4)] == [True, True, True, False]
    assert values.put("/scope/0", value=b"new"), "one that is there may change"
    assert values.get("/scope/0", hold_s=0) == b"new"


def test_a_closed_store_does_not_answer_and_closes_at_once_and_twice() -> None:
    # Half a second is how often the server's own loop looks up; on a busy machine one of them may take as long as that.
    assert min(seconds_of(KeyValueStore("127.0.0.1").close) for _ in range(5)) < 0.4
    store = KeyValueStore("127.0.0.1")
    store.close()
    store.close()
    with pytest.raises(ConnectionRefusedError, match="refused"):
        get(store.address, key="/scope/key")


def test_a_caller_that_hangs_up_before_its_answer_is_not_worth_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with listening() as store:
        where, _, token = store.partition("/")
        host, _, port = where.partition(":")
        with socket.create_connection((host, int(port)), timeout=180) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it hangs up by a reset
            caller.sendall(f"GET /{token}/scope/key HTTP/1.0\r\n\r\n".encode())
        put(store, key="/scope/key", value=b"here")  # callers are taken in order: the one before is being served
        for thread in [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]:
            thread.join(timeout=180.0)
    assert capsys.readouterr().err == ""


def test_closing_lets_go_who_waits_for_a_key() -> None:
    store = KeyValueStore("127.0.0.1")
    where, _, token = store.address.partition("/")
    waiting = http.client.HTTPConnection(where, timeout=180)
    waiting.request("GET", f"/{token}/scope/never")
    put(store.address, key="/scope/other", value=b"")  # callers are taken in order: the one before is being served
    store.close()
    assert waiting.getresponse().status == http.HTTPStatus.NOT_FOUND
    waiting.close()


def seconds_of(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


@contextmanager
def listening() -> Iterator[str]:
    with closing(KeyValueStore("127.0.0.1")) as store:
        yield store.address


def _status(store: str, method: str, *, body: bytes | None) -> int:
    where, _, token = store.partition("/")
    with closing(http.client.HTTPConnection(where, timeout=180)) as connection:
        connection.request(method, f"/{token}/scope/key", body=body)
        return connection.getresponse().status
