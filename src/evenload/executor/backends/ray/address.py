"""Where the address of a Ray cluster comes from, and whether a cluster answers there."""

import os
import socket
import time
from dataclasses import dataclass

from evenload.errors import ConfigError, quoted, reason_of

# A gRPC server greets whoever begins HTTP/2 with a SETTINGS frame: RFC 9113, section 3.4.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
FRAME_HEAD_BYTES, TYPE_AT, SETTINGS = 9, 3, 4


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a cluster: ``source`` says where it is from, ``remedy`` what to do if it is wrong."""

    text: str
    source: str
    remedy: str


def find_address(address: str | None, current_cluster: str) -> ClusterAddress | None:
    """Return the address that Ray would use, in Ray's order; None: it would start a cluster of its own.

    address          the argument: None and "auto" leave it to the environment
    current_cluster  the path of the file in which `ray start` notes its address
    """
    if address == "local":
        return None
    if address not in (None, "", "auto"):
        remedy = f"`ray status --address {address}` says whether it runs; `ray start --head` starts one"
        return ClusterAddress(address, "the argument `address`", remedy)
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named not in ("auto", "local"):
        return ClusterAddress(named, "the environment variable RAY_ADDRESS", "correct or unset RAY_ADDRESS")
    if named == "local":
        return None
    try:
        with open(current_cluster, encoding="utf-8") as file:
            noted = file.read(1000).strip()
    except (OSError, ValueError):
        return None
    remedy = "delete that file if the cluster is gone, or name another with Ray(address=...)"
    return ClusterAddress(noted, f"the file {current_cluster}", remedy) if noted else None


def check_answers(address: ClusterAddress, limit_s: float) -> None:
    """Raises ConfigError if no gRPC server, such as that of a Ray cluster, answers there in ``limit_s``."""
    host, _, port = address.text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{quoted(address.text)} is no address of a Ray cluster; it is from {address.source}",
            hint="write host:port, such as 10.0.0.1:6379",
        )
    why = "what answers there is no Ray cluster"
    until = time.monotonic() + limit_s
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s) as connection:
            connection.sendall(GREETING)
            head = bytearray()
            while len(head) < FRAME_HEAD_BYTES:
                connection.settimeout(max(0.001, until - time.monotonic()))
                received = connection.recv(FRAME_HEAD_BYTES - len(head))
                if not received:
                    break
                head += received
            if len(head) == FRAME_HEAD_BYTES and head[TYPE_AT] == SETTINGS:
                return
    except TimeoutError:
        why = f"there was no answer in {limit_s:g} s"
    except OSError as error:
        why = reason_of(error)
    raise ConfigError(
        f"no Ray cluster at {quoted(address.text)}: {why}. The address is from {address.source}",
        hint=address.remedy,
    )
