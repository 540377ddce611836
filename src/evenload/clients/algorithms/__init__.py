"""Federated algorithms: immutable values, each with the paper that it comes from."""

from evenload._optional import require

require("torch", extra="clients", why="training clients")

from evenload.clients.algorithms.averaging import (  # noqa: E402
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedNova,
    FedPer,
    FedProx,
    FedYogi,
    Scaffold,
)
from evenload.clients.algorithms.base import Algorithm, Orders, Server  # noqa: E402
from evenload.clients.algorithms.fedbuff import FedBuff  # noqa: E402
from evenload.clients.algorithms.privacy import PrivateFedAvg  # noqa: E402
from evenload.clients.algorithms.robust import Krum, Median, TrimmedMean  # noqa: E402

__all__ = [
    "Algorithm",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedDyn",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedYogi",
    "Krum",
    "Median",
    "Orders",
    "PrivateFedAvg",
    "Scaffold",
    "Server",
    "TrimmedMean",
]
