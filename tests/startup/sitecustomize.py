"""Read by every Python program that a test starts: objects that stay to the end are not looked through again.

Looking through all that torch and others have made, while they load and once more as the program ends, is a
third of the time of a program that does little else. Triton counts at the end what it thinks was lost, so
what it makes, and all that comes after it, is left to the garbage collector as usual.
"""

import atexit
import gc
import sys
import warnings

gc.set_threshold(10_000, 10, 10)

if any(word.endswith("default_worker.py") for word in sys.orig_argv):
    # Each process of Ray imports these as it starts, in case that an object of theirs arrives. None does.
    sys.modules.update(dict.fromkeys(("pyarrow", "pydantic", "starlette")))
elif any("-packages/ray/" in word and word.endswith(".py") for word in sys.orig_argv):
    # Ray's own programs may do what Python 3.12 and later warn of: where a test takes that for an error, its
    # dashboard would not start.
    warnings.simplefilter("ignore")


class BeforeTriton:
    """Finds no module, but sees when Triton's machine code is asked for: what is there by then stays."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "triton._C.libtriton":
            gc.freeze()


sys.meta_path.insert(0, BeforeTriton)


@atexit.register
def leave() -> None:
    if "triton" not in sys.modules:
        gc.freeze()
