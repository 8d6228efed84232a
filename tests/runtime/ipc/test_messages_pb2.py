"""The committed code of the messages: it refuses what is older than its makers, so these are the oldest that we take."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from google.protobuf import runtime_version

from kungfu.runtime.ipc import messages_pb2, messages_pb2_grpc

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def oldest_taken(name: str) -> tuple[int, ...]:
    needed = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    (found,) = (line for line in needed if re.match(rf"{name}\b", line))
    return version_of(re.search(r">=([\d.]+)", found)[1])


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))


def test_the_code_is_of_the_oldest_protobuf_and_fits_the_installed_one() -> None:
    source = Path(messages_pb2.__file__).read_text()
    made_by = version_of(re.search(r"Protobuf Python Version: ([\d.]+)", source)[1])
    assert made_by[:2] == oldest_taken("protobuf"), "make proto with the grpcio-tools of the oldest protobuf"
    runtime_version.ValidateProtobufRuntimeVersion(runtime_version.Domain.PUBLIC, *made_by, "", "messages.proto")


def test_the_code_of_the_services_was_made_by_the_oldest_grpcio_that_is_taken() -> None:
    assert version_of(messages_pb2_grpc.GRPC_GENERATED_VERSION) <= oldest_taken("grpcio")
