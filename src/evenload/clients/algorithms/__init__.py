"""Federated algorithms: immutable values, one small file each, with the paper they come from."""

from evenload.clients.algorithms.base import Algorithm, Orders, Server
from evenload.clients.algorithms.ditto import Ditto
from evenload.clients.algorithms.fedavg import FedAvg
from evenload.clients.algorithms.fedbuff import FedBuff
from evenload.clients.algorithms.feddyn import FedDyn
from evenload.clients.algorithms.fednova import FedNova
from evenload.clients.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from evenload.clients.algorithms.fedper import FedPer
from evenload.clients.algorithms.fedprox import FedProx
from evenload.clients.algorithms.privacy import PrivateFedAvg
from evenload.clients.algorithms.robust import Krum, Median, TrimmedMean
from evenload.clients.algorithms.scaffold import Scaffold

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
