"""How many random cases a property tries: a fifth in ``make test``, all of them in ``make test-slow``."""

import os

ALL = os.environ.get("EVENLOAD_ALL_EXAMPLES") == "1"


def examples(n: int) -> int:
    """``n`` in the slow lane; in ``make test`` a fifth of it, but ten at least if there are as many."""
    return n if ALL else max(min(n, 10), n // 5)
