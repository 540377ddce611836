"""What the page may tell a running job, if it was started with ``--control``: drain devices, add them, pause.

It asks through the job's folder (``executor.control``), as ``evenload devices drain`` does, and only so.
"""

import threading
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError, EvenloadError, quoted
from evenload.executor.loop.control import exchange

ACTIONS = ("drain", "add", "pause", "resume")
LOOK_S = 2.0
WAIT_S = 10.0
MOST_BYTES = 4_000
MOST_NAME = 200


class Panel:
    """The page's controls of a running job. It is asked again every few seconds while ``start()``ed.

    ``state`` is what the page shows: the devices that work, and those that were drained; None if nobody
    answers.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._working: list[str] | None = None
        self._is_paused = False
        self._seen: dict[str, None] = {}
        self._stop = threading.Event()
        self._asks = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="evenload-dash-panel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @property
    def state(self) -> dict[str, Any] | None:
        working = self._working
        if working is None:
            return None
        drained = [one for one in self._seen if one not in working]
        return {"working": working, "drained": drained, "is_paused": self._is_paused}

    def act(self, request: Any) -> None:
        """Do what a viewer asks: ``{"action": "drain" | "add", "device": id}``. Raises ConfigError if not."""
        action, device = (
            request.get(name) if isinstance(request, dict) else None for name in ("action", "device")
        )
        if action not in ACTIONS:
            raise ConfigError(f"{quoted(str(action)[:40])} is no action", hint=f"use {' or '.join(ACTIONS)}")
        is_known = isinstance(device, str) and device in self._seen
        if action in ("drain", "add") and not is_known:
            raise ConfigError(
                f"{quoted(str(device)[:MOST_NAME])} is no device of this run", hint="reload the page"
            )
        self._take(self._ask(action, [str(device)] if is_known else []))

    def _ask(self, action: str, devices: list[str]) -> dict[str, Any]:
        """One request at a time, whoever asks."""
        with self._asks:
            return exchange(self._folder, action, devices, wait_s=WAIT_S)

    def _take(self, answer: dict[str, Any]) -> None:
        self._working = answer["devices"]
        self._is_paused = bool(answer.get("is_paused"))
        self._seen.update(dict.fromkeys(answer["devices"]))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._take(self._ask("list", []))
            except (EvenloadError, OSError):
                self._working = None  # not begun yet, or over
            self._stop.wait(LOOK_S)
