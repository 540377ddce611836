"""What workers are sent in tests of integrations: a module that they can import, as programs have."""

import os
from pathlib import Path

import joblib

import evenload


class Begin:
    """An initializer's mark on its process."""

    value = None

    @classmethod
    def with_value(cls, value):
        cls.value = value
        os.environ["BEGUN"] = value

    @classmethod
    def seen(cls, _=None):
        return cls.value, os.environ.get("BEGUN")


class TellsWhenFreed:
    def __init__(self, path):
        self.path = path

    def __del__(self):
        if os.environ.get("EVENLOAD_DEVICE"):
            Path(self.path).touch()


class Rejected(Exception):
    """An error with more than its text."""

    def __init__(self, row, why):
        super().__init__(row, why)
        self.row, self.why = row, why


def square(x):
    return x * x


def rejects_three(x):
    if x == 3:
        raise Rejected(x, "odd")
    return x


def where(x):
    here = evenload.current_device()
    return x, here.id, here.torch, here.threads


def within(x):
    """A Parallel in a job."""
    return joblib.Parallel(n_jobs=2, backend="evenload")(joblib.delayed(where)(x + n) for n in range(3))


def store_mean(rows, out, i):
    out[i] = rows[i].mean()
