"""Federated algorithms: immutable values, one small file each, with the paper they come from."""

from .base import Algorithm, Orders, Server
from .ditto import Ditto
from .fedavg import FedAvg
from .fedbuff import FedBuff
from .feddyn import FedDyn
from .fednova import FedNova
from .fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from .fedper import FedPer
from .fedprox import FedProx
from .privacy import PrivateFedAvg
from .robust import Krum, Median, TrimmedMean
from .scaffold import Scaffold

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
