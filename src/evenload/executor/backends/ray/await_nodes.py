"""Wait for nodes of a cluster: ``python -m evenload.executor.backends.ray.await_nodes ADDRESS N SECONDS``.

Ends with 0 when N nodes are up, with 1 when they are not in that time; a line on stderr says how many are.
"""

import logging
import sys
import time
from collections.abc import Callable

from evenload.errors import ConfigError
from evenload.executor.backends.ray.address import ClusterAddress, check_answers

LOOK_S = 0.5


def await_nodes(
    n_alive: Callable[[], int],
    n_wanted: int,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until ``n_alive()`` is ``n_wanted``, at most ``limit_s`` seconds; returns the last count."""
    until_s = clock() + limit_s
    while (n := n_alive()) < n_wanted and clock() < until_s:
        sleep(LOOK_S)
    return n


def main(address: str, n_wanted: int, limit_s: float) -> int:
    """Wait for the nodes of the cluster at ``address``; returns the exit code."""
    is_joined = False

    def n_alive() -> int:
        nonlocal is_joined
        if not is_joined:
            is_joined = _join(address)
        import ray

        return sum(node["Alive"] for node in ray.nodes()) if is_joined else 0

    n = await_nodes(n_alive, n_wanted, limit_s)
    sys.stderr.write(f"evenload: {n} of {n_wanted} nodes of the Ray cluster at {address} are up\n")
    return 0 if n >= n_wanted else 1


def _join(address: str) -> bool:
    """Join the cluster; returns False while nothing answers there."""
    import ray

    try:
        check_answers(ClusterAddress(address, "the script", "look into its log"), 5.0)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConfigError, ConnectionError, RuntimeError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
