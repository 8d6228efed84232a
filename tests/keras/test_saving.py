"""Models that every peer of a job writes to the same place, and that others read meanwhile."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from kungfu.keras.saving import write_as_one_job
from kungfu.runtime.api import read_settings
from kungfu.training.loop.job_connection import JobConnection
from tests.keras.fitting import network, run_under_kungfu

METHODS = ("save", "save_weights", "export")


@pytest.fixture
def connection(monkeypatch: Any, tmp_path: Path) -> JobConnection:
    """That of a peer whose first two fits are over; Keras writes as in a job meanwhile."""
    monkeypatch.chdir(tmp_path)
    settings = run_under_kungfu(monkeypatch)
    for name in METHODS:
        monkeypatch.setattr(keras.Model, name, getattr(keras.Model, name))
    found = JobConnection(None)
    found.phase, found.run = 2, settings.job
    monkeypatch.setattr(import_module("kungfu.keras.saving"), "connect", lambda: found)
    write_as_one_job()
    return found


def filled(value: float) -> Any:
    model = network()
    model.set_weights([np.full(one.shape, value) for one in model.get_weights()])
    return model


def value_in(path: str | Path) -> float:
    model = network()
    model.load_weights(path)
    return float(model.get_weights()[0].flat[0])


def begin_peer(
    connection: JobConnection, *, fits: int, job: str = "job", run: str = "job", passes: bool = False
) -> None:
    """From here on this process is another peer, after so many fits, which has written nothing yet."""
    connection.phase, connection.run, connection.passes = fits, run, passes
    os.environ.update(replace(read_settings(), job=job).to_environment())
    for name in METHODS:
        setattr(keras.Model, name, getattr(keras.Model, name).in_place)
    write_as_one_job()


@pytest.mark.slow
def test_peers_that_write_one_file_at_once_leave_it_whole_at_all_times(connection, monkeypatch):
    connection.is_in_phase = True  # in a fit all write, in a callback say
    models = [filled(float(number)) for number in range(3)]
    models[0].save_weights("best.weights.h5")
    done: list[int] = []

    def writes(model: Any) -> None:
        for _ in range(6):
            model.save_weights("best.weights.h5", overwrite=True)
            done.append(1)

    threads = [threading.Thread(target=writes, args=(one,)) for one in models]
    for one in threads:
        one.start()
    read = set()
    while any(one.is_alive() for one in threads):
        read.add(value_in("best.weights.h5"))
    for one in threads:
        one.join()
    assert len(done) == 18
    assert read <= {0.0, 1.0, 2.0}
    assert os.listdir() == ["best.weights.h5"]


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "best.weights.h5"])
def test_a_write_that_fails_leaves_the_file_as_it_was(connection, name, monkeypatch):
    def broken(self: Any, *_: Any, **__: Any) -> None:
        raise RuntimeError("the disk is full")

    write = "save_weights" if "weights" in name else "save"
    getattr(filled(1.0), write)(name)
    before = Path(name).read_bytes()
    model = filled(2.0)
    monkeypatch.setattr(keras.layers.Dense, "get_config" if write == "save" else "save_own_variables", broken)
    with pytest.raises(RuntimeError, match="the disk is full"):
        getattr(model, write)(name)
    assert Path(name).read_bytes() == before
    assert os.listdir() == [name]


def refuse_attributes(*args: object) -> None:
    """As a file system without extended attributes does."""
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


@pytest.mark.parametrize("set_attribute", [os.setxattr, refuse_attributes])
def test_after_a_fit_a_newer_file_stays_and_an_older_one_is_replaced(connection, monkeypatch, set_attribute):
    monkeypatch.setattr(os, "setxattr", set_attribute)
    path = Path("best.weights.h5")

    def write(value: float) -> float:
        filled(value).save_weights(path)
        clock = 4e9 if value % 2 else 0.0  # in the future, and in the past
        os.utime(path, (clock, clock))
        return value_in(path)

    begin_peer(connection, fits=1)
    assert write(1.0) == 1.0
    begin_peer(connection, fits=2)
    assert write(2.0) == 2.0, "it was of the time before the fit's end"
    assert write(3.0) == 3.0, "this peer's own second call"
    begin_peer(connection, fits=2)
    assert write(4.0) == 3.0, "another one has written what this fit came to"
    assert write(5.0) == 5.0, "its second call, where the first has left the file alone"
    begin_peer(connection, fits=2, job="another")
    assert write(6.0) == 6.0, "another job's is none of this one"
    shutil.copy(path, "copy")
    os.replace("copy", path)
    begin_peer(connection, fits=2, job="another")
    assert write(7.0) == 7.0, "a copy says nothing"


@pytest.mark.parametrize("set_attribute", [os.setxattr, refuse_attributes])
def test_a_peer_that_passes_through_a_fit_writes_what_is_not_there_yet(connection, monkeypatch, set_attribute):
    monkeypatch.setattr(os, "setxattr", set_attribute)
    begin_peer(connection, fits=2, passes=True)
    filled(1.0).save("kept.keras")
    begin_peer(connection, fits=1, passes=True)
    filled(2.0).save("kept.keras")
    assert value_in("kept.keras") == 1.0, "it is newer than what this peer holds"
    begin_peer(connection, fits=1, job="goes on", passes=True)
    filled(2.0).save("kept.keras")
    assert value_in("kept.keras") == 1.0, "this job goes on from the one that has written it"
    begin_peer(connection, fits=2, job="goes on")
    filled(3.0).save("kept.keras")
    assert value_in("kept.keras") == 3.0, "it has done the second fit anew"
    begin_peer(connection, fits=1, job="other", run="other", passes=True)
    filled(2.0).save("kept.keras")
    assert value_in("kept.keras") == 2.0, "that is of another run"


def test_a_link_in_the_place_of_the_new_file_is_not_followed(connection, tmp_path):
    (tmp_path / "others").write_text("theirs")
    (tmp_path / f".{platform.node()}.a.weights.h5").symlink_to(tmp_path / "others")
    filled(1.0).save_weights("a.weights.h5")
    assert (tmp_path / "others").read_text() == "theirs"
    assert sorted(os.listdir()) == ["a.weights.h5", "others"]


@pytest.mark.timeout(30)
def test_a_model_that_writes_another_one_beside_itself_does_not_wait_for_itself(connection):
    class Outer(keras.Sequential):
        def get_config(self) -> Any:
            filled(1.0).save_weights("inner.weights.h5")
            return super().get_config()

    Outer([keras.Input((3,)), keras.layers.Dense(1)]).save("outer.keras")
    assert sorted(os.listdir()) == ["inner.weights.h5", "outer.keras"]


@pytest.mark.slow
def test_an_exported_folder_is_written_by_one_peer(connection):
    filled(1.0).export("exported", verbose=False)
    before = Path("exported/saved_model.pb").stat().st_mtime_ns
    begin_peer(connection, fits=2)
    filled(2.0).export("exported", verbose=False)
    assert Path("exported/saved_model.pb").stat().st_mtime_ns == before
    assert os.listdir() == ["exported"]


def test_what_is_keras_own_matter_stays_so(connection, tmp_path, monkeypatch):
    model = filled(1.0)
    model.save("folder", zipped=False)
    assert (tmp_path / "folder" / "config.json").is_file()
    with pytest.raises(ValueError, match="Invalid filepath extension"):
        model.save("model.txt")
    model.save("model.keras")
    monkeypatch.setattr("builtins.input", lambda _: "n")
    filled(2.0).save("model.keras", overwrite=False)
    assert value_in("model.keras") == 1.0
    (tmp_path / "link.keras").symlink_to(tmp_path / "model.keras")
    begin_peer(connection, fits=3)
    filled(3.0).save("link.keras")
    assert value_in("model.keras") == 3.0
    assert (tmp_path / "link.keras").is_symlink()


def test_a_program_that_runs_alone_writes_by_keras(connection, monkeypatch, tmp_path):
    monkeypatch.delenv("KUNGFU_SETTINGS")
    filled(1.0).save_weights("a.weights.h5")
    filled(2.0).save_weights("a.weights.h5")
    assert value_in("a.weights.h5") == 2.0
