"""The suites of others, which are run here with our parts in the place of theirs."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for name in ("thread_unsafe", "no_cover"):
        config.addinivalue_line("markers", f"{name}: of joblib's own tests")


@pytest.fixture(scope="module", autouse=True)
def workers_start_quickly(quick_servers: None) -> None:
    """Most of what a short map takes is the start of its fork server."""
