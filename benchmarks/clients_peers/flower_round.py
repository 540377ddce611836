"""Flower's own simulation: seconds of the clock per round. Run by ``clients_peers.py``.

One simulation makes several runs of so many rounds, after a first round that is not counted.
"""

import argparse
import itertools
import json
import time

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
for number in ("n", "each", "runs"):
    parser.add_argument(number, type=int)
parser.add_argument("by", choices=("evenload", "ray"))
MODEL, N, EACH, RUNS, BY = vars(parser.parse_args()).values()


def make_apps(times):
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message, context):
        from clients_models import MODELS, kept_clients, serial

        torch.set_num_threads(1)
        state = message.content["arrays"].to_torch_state_dict()
        # What is kept in a module outlives a task; this script's own globals are sent anew with each of them.
        own = kept_clients(MODEL, N)[int(context.node_config["partition-id"])]
        state = serial(MODELS[MODEL](), state, [own])
        content = RecordDict(
            {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": len(own[0])})}
        )
        return Message(content, reply_to=message)

    @server.main()
    def main(grid, context):
        from clients_models import MODELS

        class Timed(FedAvg):
            def configure_train(self, *args, **kwargs):
                times.append(time.perf_counter())
                return super().configure_train(*args, **kwargs)

        start = ArrayRecord(MODELS[MODEL]().state_dict())
        strategy = Timed(fraction_evaluate=0.0, min_train_nodes=N, min_available_nodes=N)
        strategy.start(grid=grid, initial_arrays=start, num_rounds=1 + EACH * RUNS)
        times.append(time.perf_counter())

    return server, client


if __name__ == "__main__":
    times: list[float] = []
    server, client = make_apps(times)
    if BY == "evenload":
        from evenload.clients.flower import run_simulation

        run_simulation(server, client, N, devices="cpu*2")
    else:
        from flwr.simulation import run_simulation

        resources = {"num_cpus": 1, "num_gpus": 0.0}
        options = {"num_cpus": 2, "include_dashboard": False, "address": "local"}  # no cluster of others
        run_simulation(
            server, client, N, backend_config={"client_resources": resources, "init_args": options}
        )
    rounds = [b - a for a, b in itertools.pairwise(times)]
    runs_s = [min(rounds[at : at + EACH]) for at in range(1, len(rounds), EACH)]
    print(json.dumps({"first_s": rounds[0], "round_s": min(runs_s), "runs_s": runs_s}), flush=True)
