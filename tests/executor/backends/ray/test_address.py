"""Where a cluster's address comes from, and what is said if nobody answers there."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.executor import Executor, Ray
from evenload.executor.backends.ray import cluster as cluster_module
from evenload.executor.backends.ray.address import ClusterAddress, check_answers, find_address

LIMIT_S = 0.5  # for those that never answer: what is waited out, and no more is said of it


@contextlib.contextmanager
def server(says: bytes | None) -> Iterator[str]:
    """A server that says this to whoever comes and closes; None: it takes no connection at all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(says or b"")

        thread = threading.Thread(target=serve, daemon=True)
        if says is not None:
            thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        if says is not None:
            thread.join(100)


def test_the_order_in_which_ray_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "ray_current_cluster"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert find_address(None, str(noted)) is None, "Ray would start one"
    noted.write_text("10.0.0.9:6379\n")
    for address in (None, "auto", ""):
        found = find_address(address, str(noted))
        assert found is not None
        assert (found.text, found.source) == ("10.0.0.9:6379", f"the file {noted}")
        assert "delete that file" in found.remedy
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.8:6379")
    found = find_address(None, str(noted))
    assert found is not None
    assert found.text == "10.0.0.8:6379"
    assert "RAY_ADDRESS" in found.source
    found = find_address("10.0.0.7:6379", str(noted))
    assert found is not None
    assert (found.text, "argument" in found.source) == ("10.0.0.7:6379", True)
    assert find_address("local", str(noted)) is None
    noted.write_bytes(b"\xff\xfe")
    monkeypatch.delenv("RAY_ADDRESS")
    assert find_address(None, str(noted)) is None


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (None, "no answer in"),
        (b"", "no Ray cluster"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no Ray cluster"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no Ray cluster"),
        (b"\x00", "no Ray cluster"),
    ],
)
def test_whoever_is_no_cluster_is_found_out(says: bytes | None, words: str) -> None:
    with server(says) as address, pytest.raises(ConfigError, match=words) as caught:
        check_answers(ClusterAddress(address, "the file x", "delete that file"), LIMIT_S)
    assert address in caught.value.message
    assert "the file x" in caught.value.message
    assert caught.value.hint == "delete that file"


def test_a_server_that_speaks_as_a_cluster_does_is_taken() -> None:
    with server(bytes((0, 0, 18, 4, 0, 0, 0, 0, 0)) + bytes(18)) as address:
        check_answers(ClusterAddress(address, "", ""), 100.0)


@pytest.mark.parametrize(
    "text", ["", "head", "head:", ":6379", "head:port", "head:0", "head:99999", "x" * 500]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a Ray cluster") as caught:
        check_answers(ClusterAddress(text, "the argument", ""), 100.0)
    assert len(caught.value.message) < 300


def test_a_dead_cluster_in_rays_file_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    noted = tmp_path / "ray_current_cluster"
    noted.write_text(address)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test's cluster may be there
    monkeypatch.setattr(ray._private.utils, "get_ray_address_file", lambda folder: str(noted))
    monkeypatch.setattr(cluster_module, "_CONNECTION", cluster_module.RayConnection())
    with pytest.raises(ConfigError) as caught:
        Executor("all", backend="ray")
    assert address in caught.value.message
    assert str(noted) in caught.value.message
    with pytest.raises(ConfigError, match="the argument `address`"):
        Executor("all", backend=Ray(address=address))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="RAY_ADDRESS"):
        Executor("all", backend="ray")
