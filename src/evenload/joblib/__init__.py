"""joblib on devices: ``joblib.parallel_config("evenload", devices=...)`` after ``import evenload.joblib``."""

from evenload._optional import require

require("joblib", why="evenload.joblib")

from evenload.integrations.joblib_backend import EvenloadBackend, register  # noqa: E402

__all__ = ["EvenloadBackend"]

register()
