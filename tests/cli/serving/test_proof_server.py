"""The service as a process: no request is lost when a worker is killed, none when the service is stopped."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from evenload.errors import ConfigError
from evenload.zk import Proof, VerificationKey, verify
from evenload.zk.groth16 import public_from_json

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers are stopped and killed by signals")
DATA = Path(__file__).parents[2] / "data" / "zk" / "public8"


class Connection(http.client.HTTPConnection):
    """A connection to a socket file."""

    def __init__(self, path):
        super().__init__("localhost", timeout=500)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(500)
        self.sock.connect(str(self.path))


def ask(path, method, address, body=None, **headers):
    """(status, JSON, headers) of one request."""
    connection = Connection(path)
    try:
        connection.request(method, address, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


def prove(path):
    return ask(path, "POST", "/prove/circuit", (DATA / "witness.wtns").read_bytes())


def is_right(page):
    key = VerificationKey.from_json((DATA / "vkey.json").read_bytes())
    public = public_from_json((DATA / "public.json").read_bytes())
    assert [int(value) for value in page["public"]] == public
    return verify(key, public, Proof.from_json(json.dumps(page["proof"])))


def test_killed_workers_and_the_end_of_the_service_lose_no_request(tmp_path, popen, until):
    at = tmp_path / "s"
    command = [sys.executable, "-m", "evenload", "zk", "serve", f"unix:{at}", str(DATA / "circuit.zkey"),
               "--devices", "cpu", "--most-waiting", "5"]  # fmt: skip
    server = popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                   env=os.environ | {"EVENLOAD_KERNEL_CACHE": str(tmp_path / "cache")})  # fmt: skip
    assert server.stdout.readline() == f"proofs of circuit at unix:{at}\n"
    assert at.stat().st_mode & 0o777 == 0o600

    def health():
        return ask(at, "GET", "/health")[1]

    status, page, _ = prove(at)
    assert (status, is_right(page)) == (200, True)
    (first,) = health()["pids"]
    os.kill(server.pid, signal.SIGSTOP)  # it finds them all at once
    burst = [Connection(at) for _ in range(100)]
    for one in burst:
        one.request("GET", "/health")
    os.kill(server.pid, signal.SIGCONT)
    assert {one.getresponse().status for one in burst} == {200}
    for one in burst:
        one.close()
    with ThreadPoolExecutor(5) as clients:
        os.kill(first, signal.SIGSTOP)  # so that what follows is in work, whatever the machine does
        asked = [clients.submit(prove, at) for _ in range(5)]
        until(lambda: health()["waiting"] == 5, "five requests wait")
        status, page, headers = prove(at)
        assert (status, page["error"]) == (503, "5 requests wait already")
        assert 1 <= int(headers["retry-after"]) <= 60
        os.kill(first, signal.SIGKILL)
        for request in asked:
            status, page, _ = request.result(500)
            assert (status, is_right(page)) == (200, True)

        second = health()["pids"][0]
        assert second != first
        os.kill(second, signal.SIGSTOP)
        asked = [clients.submit(prove, at) for _ in range(3)]
        until(lambda: health()["waiting"] == 3, "three requests wait")
        server.send_signal(signal.SIGTERM)
        os.kill(second, signal.SIGCONT)
        for request in asked:
            status, page, _ = request.result(500)
            assert (status, is_right(page)) == (200, True)
    said, complaints = server.communicate(timeout=500)
    assert (server.returncode, said) == (0, ""), complaints
    assert not at.exists()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "is no address"),
        ("127.0.0.1:99999", "is no address"),
        ("127.0.0.1:", "is no address"),
        ("no.such.host.invalid:1", "there is no address"),
        ("unix:/no/such/folder/s", "cannot be used"),
        ("unix:" + "x" * 300, "cannot be used"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(address, why):
    from evenload.cli.serving.proof_server import _bound

    with pytest.raises(ConfigError, match=why), _bound(address):
        pass


def test_a_socket_file_is_taken_over_only_if_nobody_listens(tmp_path):
    from evenload.cli.serving.proof_server import _bound

    at = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(at))
    with _bound(f"unix:{at}"), pytest.raises(ConfigError, match="is served already"), _bound(f"unix:{at}"):
        pass
    assert not at.exists()
    at.write_text("a file of somebody")
    with pytest.raises(ConfigError, match="no socket"), _bound(f"unix:{at}"):
        pass
    assert at.read_text() == "a file of somebody"
