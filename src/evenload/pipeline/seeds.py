"""Derive one seed for each item, from the job's seed and the item's id alone."""

import hashlib

__all__ = ["item_seed"]


def item_seed(job_seed: int, item: str, sample: int = 0) -> int:
    """Return a seed in 0 .. 2**63 - 1 that depends on nothing but its arguments.

    It is the same on every machine, for any number of devices, in any order, and stays what it is when items
    are added or left out. ``sample`` tells several results of one item apart. 63 bits, because that is what
    every generator (NumPy, torch, Python) and every JSON reader with 64-bit integers takes.
    """
    text = f"{job_seed}\0{item}\0{sample}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
