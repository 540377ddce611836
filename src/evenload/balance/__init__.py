"""Who does what: pure arithmetic, no clock, no I/O, usable alone."""

import sys

# Modules of evenload-base and evenload-moe may lie in another folder.
__path__ = [f"{folder}/balance" for folder in sys.modules["evenload"].__path__]
