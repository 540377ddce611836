"""Things that are closed when the block that uses them ends."""

from typing import Self


class Closing:
    """Something with a ``close``, which leaving a ``with`` block calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError
