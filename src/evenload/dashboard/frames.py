"""The page's state in named sections, each encoded once for all viewers; a viewer gets those that are new."""

import json
import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["Frames"]


class Frames:
    """The sections of a page, each with the version of its value.

    ``put`` new values; ``since(version)`` is what changed after ``version``, as JSON bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sections: dict[str, tuple[int, bytes]] = {}
        self.version = 0

    def put(self, sections: Mapping[str, Any]) -> bool:
        """Whether anything changed."""
        encoded = {
            name: json.dumps(value, separators=(",", ":"), default=str).encode()
            for name, value in sections.items()
        }
        with self._lock:
            old = self._sections
            new = {name: text for name, text in encoded.items() if name not in old or old[name][1] != text}
            if not new:
                return False
            self.version += 1
            old.update({name: (self.version, text) for name, text in new.items()})
            return True

    def since(self, version: int) -> tuple[int, bytes | None]:
        """The newest version, and one JSON object of the sections that came after ``version``, if any."""
        with self._lock:
            parts = [
                json.dumps(name).encode() + b":" + text
                for name, (changed, text) in self._sections.items()
                if changed > version
            ]
            return self.version, b"{" + b",".join(parts) + b"}" if parts else None
