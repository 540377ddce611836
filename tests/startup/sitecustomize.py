"""Read by every Python program that a test starts: what is left at its end ends with it.

Looking through all that torch and others have made, once more as the program ends, is a third of the time of
a program that does little else. Triton counts at the end what it thinks was lost, so with it all is as usual.
"""

import atexit
import gc
import sys


@atexit.register
def leave() -> None:
    if "triton" not in sys.modules:
        gc.freeze()
