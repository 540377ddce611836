"""Flower's own apps on the executor. ``make test-flower`` runs these in an environment that has flwr."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from evenload._optional import is_installed
from evenload.errors import ConfigError, MissingExtra

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's, of its own parts
HAS_FLOWER = is_installed("flwr")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from" / "flower.md"
needs_flower = pytest.mark.skipif(
    not HAS_FLOWER, reason="flwr is not installed: it pins older rich and starlette; use make test-flower"
)


@pytest.mark.skipif(HAS_FLOWER, reason="flwr is installed")
def test_without_flower_the_install_line_is_named():
    with pytest.raises(MissingExtra) as caught:
        import evenload.clients.flower  # noqa: F401
    assert "evenload[flower]" in str(caught.value)


def apps(n_rounds, n_clients, fails=()):
    """Each client moves the weights by its own number and remembers how often it was asked."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    client, server, out = ClientApp(), ServerApp(), {}

    @client.train()
    def train(message, context):
        number = context.node_config["partition-id"]
        if number in fails:
            raise ValueError(f"client {number} has no examples")
        asked = context.state.get("asked", MetricRecord({"n": 0}))["n"] + 1
        context.state["asked"] = MetricRecord({"n": asked})
        weights = message.content["arrays"].to_numpy_ndarrays()[0] + number
        metrics = MetricRecord({"num-examples": 1, "asked": asked})
        content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics})
        return Message(content, reply_to=message)

    @server.main()
    def main(grid, context):
        class Strategy(FedAvg):
            def aggregate_train(self, server_round, replies):
                replies = list(replies)
                out.setdefault("asked", []).append(
                    sorted(r.content["metrics"]["asked"] for r in replies if r.has_content())
                )
                out.setdefault("errors", []).append([r.error.reason for r in replies if r.has_error()])
                return super().aggregate_train(server_round, replies)

        found = Strategy(fraction_evaluate=0.0, min_train_nodes=n_clients).start(
            grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=n_rounds
        )
        out["weights"] = found.arrays.to_numpy_ndarrays()[0]

    return server, client, out


@needs_flower
@pytest.mark.parametrize("backend", ["inline", "process"])
def test_rounds_are_flowers_rounds_and_contexts_stay_with_their_clients(backend):
    from evenload.clients.flower import run_simulation

    server, client, out = apps(n_rounds=3, n_clients=5)
    run_simulation(server, client, 5, devices="cpu*2", backend=backend)
    assert np.allclose(out["weights"], 3 * 2.0)  # the mean of 0..4, three times
    assert out["asked"] == [[1] * 5, [2] * 5, [3] * 5]


@needs_flower
def test_a_client_that_raises_is_a_failure_for_the_strategy_and_nobody_else():
    from evenload.clients.flower import run_simulation

    server, client, out = apps(n_rounds=1, n_clients=4, fails=(2,))
    run_simulation(server, client, 4, devices="cpu*2")
    assert np.allclose(out["weights"], (0 + 1 + 3) / 3)
    assert [len(reasons) for reasons in out["errors"]] == [1]
    assert "client 2 has no examples" in out["errors"][0][0]


@needs_flower
def test_numpy_clients_run_unmodified():
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.serverapp import ServerApp

    from evenload.clients.flower import run_simulation

    class Client(NumPyClient):
        def __init__(self, number):
            self.number = number

        def fit(self, parameters, config):
            return [parameters[0] + self.number], 1, {}

        def evaluate(self, parameters, config):
            return float(parameters[0][0]), 1, {}

    seen = []

    class Strategy(FedAvg):
        def aggregate_evaluate(self, server_round, results, failures):
            seen.append(sorted(r.loss for _, r in results))
            return super().aggregate_evaluate(server_round, results, failures)

    def server_fn(context):
        start = ndarrays_to_parameters([np.zeros(2)])
        return ServerAppComponents(
            strategy=Strategy(initial_parameters=start, min_available_clients=4),
            config=ServerConfig(num_rounds=2),
        )

    client = ClientApp(client_fn=lambda context: Client(context.node_config["partition-id"]).to_client())
    run_simulation(ServerApp(server_fn=server_fn), client, 4, devices="cpu*2")
    assert seen == [[1.5] * 4, [3.0] * 4]


@needs_flower
def test_bad_arguments_say_what_to_do():
    from flwr.app import Message, RecordDict

    from evenload import Executor
    from evenload.clients.flower import ExecutorGrid, run_simulation

    server, client, _ = apps(1, 1)
    with pytest.raises(ConfigError, match="nobody to train"):
        run_simulation(server, client, 0)
    with Executor("cpu*1", backend="inline") as executor:
        grid = ExecutorGrid(executor, client, 2)
        with pytest.raises(ConfigError, match="only 2 nodes"):
            grid.push_messages([Message(RecordDict(), 7, "train")])


@needs_flower
def test_what_has_not_come_in_time_is_left_out():
    import functools
    import time

    from flwr.app import Message, RecordDict

    from evenload import Executor
    from evenload.clients.flower import ClientRunner, ExecutorGrid

    def slow(message, context):
        if not context.node_config["partition-id"]:
            time.sleep(60)
        return Message(RecordDict(), reply_to=message)

    with Executor("cpu*2") as executor:
        grid = ExecutorGrid(executor, functools.partial(ClientRunner, slow), 2)
        messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        replies = grid.send_and_receive(messages, timeout=20)
        assert grid.pull_messages([m.metadata.message_id for m in messages]) == []
        executor.close(cancel=True)
    assert [r.metadata.src_node_id for r in replies] == grid.get_node_ids()[1:]


@pytest.fixture
def flower_home(tmp_path):
    """A folder for Flower's settings, whose local SuperLink ends with the test."""
    yield tmp_path / "flower"
    for one in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in word for word in one.info["cmdline"] or []):
            one.kill()


@needs_flower
@pytest.mark.skipif(not is_installed("ray"), reason="flwr run needs flwr[simulation]; use make test-flower")
def test_flwr_run_gives_what_flowers_own_simulation_gives(flower_home, tmp_path):
    """Run the page's app by ``flwr run``. Oracle: the app without evenload's lines, on Flower's own Ray."""
    script = re.search(r"```sh\n(pip install .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    pasted = script.split("\n", 1)[1]
    plain = re.sub(r"^from evenload.*\n", "", pasted, flags=re.MULTILINE)
    plain = re.sub(r"    with device_grid.*\n    ", "", plain).replace("even-app", "plain-app")
    plain = plain.replace("--stream", "--stream --federation-config num-supernodes=6")
    # Flower's nodes come one after another, and 1.40 takes as many as are there before it waits for all.
    plain, n_waits = re.subn("min_available_nodes=", "min_train_nodes=6, min_available_nodes=", plain)
    assert n_waits == 1
    assert "evenload" not in plain
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    setting = {**os.environ, "PATH": path, "FLWR_HOME": str(flower_home), "FLWR_TELEMETRY_ENABLED": "0"}
    setting.pop("PYTHONPATH", None)  # the tests' own start-up leaves starlette out of Ray's workers
    found = []
    for text in (pasted, plain):
        done = subprocess.run(
            [shutil.which("bash"), "-euc", text.replace(".round(2)", "")],
            cwd=tmp_path, env=setting, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        said = re.findall(r"^weights (.*)$", done.stdout, re.MULTILINE)
        assert len(said) == 1, done.stdout + done.stderr
        found.append([float(one) for one in said[0].split()])
    assert np.allclose(found[0], found[1], rtol=1e-12), done.stdout
    assert np.round(found[0], 2).tolist() == [1.0, -2.0, 3.0]
