"""Where the results of a run go."""

from typing import Protocol

from evenload.executor.decide.delivery import Block


class Sink(Protocol):
    """A place where results go; see ``delivery.Delivery``."""

    @property
    def is_waiting_for_room(self) -> bool: ...

    @is_waiting_for_room.setter
    def is_waiting_for_room(self, waits: bool) -> None: ...

    @property
    def n_taken(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    @property
    def n_ready_bytes(self) -> int: ...

    def put(self, block: Block) -> None: ...

    def flush(self, now: float) -> float | None: ...

    def skip_gaps(self) -> None: ...

    def close(self, error: BaseException | None = None) -> None: ...
