"""A task whose module uses torch."""

import os

import torch


def torch_pid_of(_: object) -> int:
    return os.getpid() if float(torch.ones(2).sum()) == 2.0 else 0
