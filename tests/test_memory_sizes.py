"""Amounts of memory, as people write them."""

import os

import pytest

from evenload._memory_sizes import limit_from, usable_memory
from evenload.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("512MiB", 512 << 20),
        ("2 GB", 2 * 10**9),
        ("0", 0),
        (12345, 12345),
        ("1KiB", 1024),
        ("1.5kib", 1536),
        ("7b", 7),
        ("0%", 0),
    ],
)
def test_limits_in_words(text: str | int, n_bytes: int) -> None:
    assert limit_from(text) == n_bytes


def test_a_limit_may_be_a_share_of_the_memory() -> None:
    assert limit_from("50%") == pytest.approx(usable_memory() / 2, abs=1)


@pytest.mark.parametrize("text", ["", "GB", "-1", "101%", "5 parsecs", "1e3", "9" * 41, None, 2.5])
def test_what_is_no_amount_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="is no amount of memory"):
        limit_from(text)


def test_usable_memory_is_no_more_than_the_machine_has() -> None:
    assert 0 < usable_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
