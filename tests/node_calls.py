"""Programs of npm (snarkjs, circom, solc, an EVM), called in one process: each start takes half a second."""

import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).parents[1]
LIMIT_S = 550.0


def has(*packages: str) -> bool:
    """Are these packages of npm here (scripts/setup.py puts them into ./node_modules), and node?"""
    return bool(shutil.which("node")) and all((ROOT / "node_modules" / one).exists() for one in packages)


class Node:
    """Calls the functions of node_calls.js. The process starts with the first call; a context ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: BinaryIO | None = None

    def __call__(self, name: str, *arguments: object) -> Any:
        stream = self._stream or self._start()
        stream.write(json.dumps([name, *arguments]).encode() + b"\n")
        stream.flush()
        answer = json.loads(stream.readline() or '{"error": "node has ended"}')
        assert "error" not in answer, answer["error"]
        return answer.get("made")

    def _start(self) -> BinaryIO:
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        with ours, theirs:
            command = ["node", str(Path(__file__).with_suffix(".js"))]
            self._process = subprocess.Popen(command, stdin=theirs, cwd=ROOT)
            self._stream = ours.makefile("rwb")
        return self._stream

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._stream is not None:
            self._stream.close()
            self._process.wait(timeout=LIMIT_S)
