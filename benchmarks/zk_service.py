"""The proving service under load: requests from several clients, while its workers are killed now and then.

    python benchmarks/zk_service.py [--requests 2000] [--kills 20] [--clients 8] [--devices cpu*2]

Each answer is a proof of the witness that was sent, and all are verified in the end; a request that fails, is
not answered or is answered wrongly ends the benchmark without a result. Latencies are what clients saw, the
refusals of a full queue (503, they come again) included.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from record import record
from zk_prove import TOOL, made, must


class Connection(http.client.HTTPConnection):
    """A connection to a socket file."""

    def __init__(self, path: str):
        super().__init__("localhost", timeout=600)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def ask(path: str, method: str, address: str, body: bytes | None = None) -> tuple[int, Any, Any]:
    connection = Connection(path)
    try:
        connection.request(method, address, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


class Load:
    """The clients' side: sends witnesses, notes seconds and answers, has workers killed along the way."""

    def __init__(self, path: str, witness: bytes, n_requests: int, n_kills: int):
        self.path, self.witness = path, witness
        self.answers: list[Any] = []
        self.latencies: list[float] = []
        self.n_refused = self.n_killed = 0
        self._kill_at = {(k + 1) * n_requests // (n_kills + 1) for k in range(n_kills)}
        self._lock = threading.Lock()

    def one(self, _: int) -> None:
        started = time.perf_counter()
        while True:
            status, page, headers = ask(self.path, "POST", "/prove/k", self.witness)
            if status != 503:
                break
            with self._lock:
                self.n_refused += 1
            time.sleep(float(headers["retry-after"]))
        if status != 200:
            raise SystemExit(f"a request was lost: {status} {page}")
        with self._lock:
            self.latencies.append(time.perf_counter() - started)
            self.answers.append(page)
            is_due = len(self.answers) in self._kill_at
        if is_due:
            self._kill_one()

    def _kill_one(self) -> None:
        pids = ask(self.path, "GET", "/health")[1]["pids"]
        if pids:
            os.kill(pids[0], signal.SIGKILL)
            self.n_killed += 1


def verify_all(folder: Path, answers: list[Any]) -> None:
    from evenload.zk import Proof, VerificationKey, verify_many
    from evenload.zk.formats.witness import read_witness

    key = VerificationKey.from_json((folder / "vkey.json").read_bytes())
    values = read_witness(folder / "witness.wtns")
    public = [int.from_bytes(row.tobytes(), "little") for row in values[1 : key.n_public + 1]]
    proofs = [Proof.from_json(json.dumps(page["proof"])) for page in answers]
    are_right = verify_many(key, [(public, proof) for proof in proofs])
    stated = [page["public"] == [str(value) for value in public] for page in answers]
    n_wrong = len(answers) - sum(a and b for a, b in zip(are_right, stated, strict=True))
    if n_wrong:
        raise SystemExit(f"{n_wrong} of {len(answers)} answers are wrong")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--requests", type=int, default=2000)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--clients", type=int, default=8)
    options.add_argument("--devices", default="cpu*2")
    options.add_argument("--most-waiting", type=int, default=64)
    given = options.parse_args()
    with made("poseidon", 4) as (folder, _, _):
        must([*TOOL, "vkey", f"{folder}/k.zkey", "-o", f"{folder}/vkey.json"])
        at = f"{folder}/s"
        command = [*TOOL, "serve", f"unix:{at}", f"{folder}/k.zkey", "--devices", given.devices]
        server = subprocess.Popen(
            [*command, "--most-waiting", str(given.most_waiting)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()
            load = Load(at, (folder / "witness.wtns").read_bytes(), given.requests, given.kills)
            started = time.perf_counter()
            with ThreadPoolExecutor(given.clients) as clients:
                list(clients.map(load.one, range(given.requests)))
            wall_s = time.perf_counter() - started
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(600)
        if server.returncode or len(load.answers) != given.requests:
            raise SystemExit(f"{len(load.answers)} answers, exit code {server.returncode}")
        verify_all(folder, load.answers)
    cuts = statistics.quantiles(load.latencies, n=100, method="inclusive")
    row = {
        "devices": given.devices,
        "clients": given.clients,
        "requests": given.requests,
        "workers killed": load.n_killed,
        "lost": 0,
        "wrong": 0,
        "refused, came again": load.n_refused,
        "proofs/s": given.requests / wall_s,
        "p50 ms": cuts[49] * 1e3,
        "p99 ms": cuts[98] * 1e3,
        "longest ms": max(load.latencies) * 1e3,
    }
    record("zk_service", [row], unit="as the columns say")


if __name__ == "__main__":
    main()
