"""Federated algorithms: immutable values, one small file each, with the paper they come from."""

from evenload._optional import require

require("torch", extra="clients", why="training clients")

from evenload.clients.algorithms.base import Algorithm, Orders, Server  # noqa: E402
from evenload.clients.algorithms.ditto import Ditto  # noqa: E402
from evenload.clients.algorithms.fedavg import FedAvg  # noqa: E402
from evenload.clients.algorithms.fedbuff import FedBuff  # noqa: E402
from evenload.clients.algorithms.feddyn import FedDyn  # noqa: E402
from evenload.clients.algorithms.fednova import FedNova  # noqa: E402
from evenload.clients.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi  # noqa: E402
from evenload.clients.algorithms.fedper import FedPer  # noqa: E402
from evenload.clients.algorithms.fedprox import FedProx  # noqa: E402
from evenload.clients.algorithms.privacy import PrivateFedAvg  # noqa: E402
from evenload.clients.algorithms.robust import Krum, Median, TrimmedMean  # noqa: E402
from evenload.clients.algorithms.scaffold import Scaffold  # noqa: E402

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
