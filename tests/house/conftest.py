from collections.abc import Iterator

import parsed_sources
import pytest


@pytest.fixture(scope="package", autouse=True)
def forget_sources() -> Iterator[None]:
    """The parsed files are hundreds of megabytes, which no other test needs."""
    yield
    parsed_sources.nodes_of.cache_clear()
    parsed_sources.text_of.cache_clear()
