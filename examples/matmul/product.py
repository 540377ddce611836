"""A matrix product over several devices: each holds some of the rows, and the parts of B go round a ring.

    python examples/matmul/product.py --devices "cpu*2" --size 1024

No device ever holds more than its rows of A, B and C and one part of B on its way, so that matrices fit which
are too large for any one of them. While a part is multiplied, the next one is already travelling.
"""

import argparse
import time

import numpy as np

import evenload
from evenload.executor import Rank


def multiply_in_a_ring(rank: Rank, rows: tuple[np.ndarray, np.ndarray], n: int) -> np.ndarray:
    """This rank's rows of A @ B.

    rows  its rows of A [n_own, n] and of B [n_own, m]; A has as many columns as B has rows, ``n``
    """
    import torch
    import torch.distributed as dist

    device = rank.device.torch
    mine, part = (torch.from_numpy(array).to(device) for array in rows)
    product = torch.zeros(len(mine), part.shape[1], dtype=part.dtype, device=device)
    follower, leader = (rank.number + 1) % rank.size, (rank.number - 1) % rank.size
    for step in range(rank.size):
        owner, coming = ((rank.number - step - later) % rank.size for later in (0, 1))
        exchange: list = []
        if step < rank.size - 1:
            next_part = torch.empty(len(range(n)[share_of(rank, coming, n)]), *part.shape[1:]).to(part)
            exchange = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, part, follower), dist.P2POp(dist.irecv, next_part, leader)]
            )
        product.addmm_(mine[:, share_of(rank, owner, n)], part)
        for one in exchange:
            one.wait()
        if exchange:
            part = next_part
    return product.cpu().numpy()


def share_of(rank: Rank, other: int, n: int) -> slice:
    """The rows of another rank of the same gang."""
    return Rank(other, rank.size, rank.device, rank.backend).share(n)


def multiply(a: np.ndarray, b: np.ndarray, devices: str = "all", **options) -> np.ndarray:
    """``a @ b`` over ``devices``. Raises GangError if one of them fails."""
    n = len(b)
    pool = evenload.DevicePool.discover().select(devices)
    sizes = evenload.balance.partition.equal(n, len(pool))
    rows_of_b = np.split(b, np.cumsum(sizes)[:-1])
    rows_of_a = np.array_split(a, len(pool))
    each = list(zip(rows_of_a, rows_of_b, strict=True))
    return np.concatenate(evenload.gang(multiply_in_a_ring, (n,), devices=pool, each=each, **options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="all")
    parser.add_argument("--size", type=int, default=1024)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, arguments.size, arguments.size))
    began = time.monotonic()
    product = multiply(a, b, arguments.devices)
    seconds = time.monotonic() - began
    error = np.abs(product - a @ b).max() / np.abs(product).max()
    print(f"{arguments.size} x {arguments.size} over {arguments.devices}: {seconds:.2f} s with start-up")
    print(f"largest difference to a single product: {error:.1e} of the largest entry")


if __name__ == "__main__":
    main()
