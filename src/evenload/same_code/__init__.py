"""One meaning of "the same code": journals, datasets and pipelines keep results by it.

The source of the user's modules that a task can reach, the versions of packages that these import, and the
values that a function closes over, has as defaults, or holds. Of an item: its content, and the code behind
the functions and classes in it.
"""

from evenload.same_code.code_facts import CodeFacts, ItemFingerprints

__all__ = ["CodeFacts", "ItemFingerprints", "fingerprint_code"]


def fingerprint_code(fn: object, *, reads_maps: bool = True) -> str:
    """Return 32 hexadecimal digits for the code of a function, a class or any other callable.

    reads_maps  False: memory maps that it uses are told by their files, and not read
    """
    return CodeFacts(fn, reads_maps=reads_maps).digest
