"""Read by every Python program that a test starts: the garbage collector looks seldom, and not at the end.

Looking through what torch and others make while they are imported, and again when the program ends, is a
third of the time of a program that does little else. What a program does is the same.
"""

import atexit
import gc

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
