"""pfl-research in one process: seconds per central iteration. Run by ``clients_peers.py``."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from clients_models import BATCH, LR, MODELS, clients
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
for number in ("n", "each", "runs"):
    parser.add_argument(number, type=int)
MODEL, N, EACH, RUNS = vars(parser.parse_args()).values()  # rounds of a run, and runs


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = MODELS[MODEL]()

    def forward(self, x):
        return self.net(x)

    def loss(self, x, y, eval=False):
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {"loss": Weighted(F.cross_entropy(self(x), y).item() * len(y), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.ticks = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ticks.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


def in_turns():
    at = -1
    while True:
        at += 1
        yield at % N


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, turns, clock, net = clients(MODEL, N), in_turns(), Clock(), Net()
    users = FederatedDataset(lambda c: Dataset(list(data[c]), user_id=str(c)), lambda: next(turns))
    central = torch.optim.SGD(net.parameters(), 1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1 + EACH * RUNS,
            evaluation_frequency=10**9,
            train_cohort_size=N,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(net, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH
        ),
        model_eval_params=None,
        callbacks=[clock],
    )
    steps = list(zip(clock.ticks, clock.ticks[1:], strict=False))
    runs_s = [min(b[0] - a[0] for a, b in steps[at : at + EACH]) for at in range(0, len(steps), EACH)]
    found = {"round_s": min(runs_s), "cpu_s": min(b[1] - a[1] for a, b in steps), "runs_s": runs_s}
    print(json.dumps(found), flush=True)
