"""For all tests: nothing is remembered from one to the next, and no machine is too slow for them."""

import os

from hypothesis import HealthCheck, settings

os.environ["EVENLOAD_WARM_START"] = "0"  # before any program of a test inherits it

# An example may take long on a machine that does other things besides.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
