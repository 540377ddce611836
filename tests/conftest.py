"""For all tests: nothing is remembered from one to the next, nor for the person who runs them."""

import os

os.environ["EVENLOAD_WARM_START"] = "0"  # before any program of a test inherits it
