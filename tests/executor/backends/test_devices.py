"""The devices that a backend of this machine offers."""

import pytest

from evenload.executor.backends import make_backend


@pytest.mark.parametrize("name", ["inline", "process"])
def test_only_the_drivers_that_are_concerned_are_asked(name: str) -> None:
    backend = make_backend(name)
    try:
        pool = backend.devices("cpu*2")
        assert (pool.ids, [report.name for report in pool.reports]) == (("cpu:0", "cpu:1"), ["cpu"])
    finally:
        backend.close(0.0)
