import json
from functools import partial

import pytest

TASK = """
import torch
from torch import nn

def model():
    return nn.Linear(4, 3)

def clients():
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(9, 4, generator=g), torch.randint(0, 3, (9,), generator=g)) for _ in range(6)]

def test():
    return clients()[0]
"""
JOB = """
model: task.py:model
clients: task.py:clients
test: task.py:test
recipe: {optimizer: {name: SGD, lr: 1e-1}, batch_size: 4}
algorithm: {name: FedProx, mu: 0.1}
rounds: 2
cohort: 4
strategy: fused:3
"""


@pytest.fixture
def call(command):
    return partial(command, "clients")


@pytest.fixture
def job(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    path = tmp_path / "fl.yaml"
    path.write_text(JOB)
    return path


def test_run_prints_its_rounds_and_how_clients_were_trained(call, job, tmp_path):
    code, out, err = call("run", job, "--checkpoint", tmp_path / "c.pt", "-o", tmp_path / "w.pt")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["1", "4"], ["2", "4"]]
    assert "inline/fused:3: it was asked for" in out
    assert err.count("round ") == 2
    assert (tmp_path / "w.pt").exists()
    code, out, _ = call(
        "run", job, "--checkpoint", tmp_path / "c.pt", "--resume", "--rounds", 3, "-q", "--json"
    )
    page = json.loads(out)
    assert code == 0
    assert page["schema"] == 1
    assert [r["round"] for r in page["rounds"]] == [0, 1, 2]
    assert {"loss", "accuracy"} <= set(page["rounds"][2])


def test_tune_prints_what_it_measured(call, job):
    code, out, _ = call("tune", job, "--rounds", 1, "--json")
    page = json.loads(out)
    assert code == 0
    assert page["probes"][0]["strategy"] == "inline/eager"
    assert page["strategy"] in [row["strategy"] for row in page["probes"]]


def test_every_fault_of_a_job_is_named_with_its_path(call, job):
    job.write_text(
        "model: 3\nmodle: x\nrecipe: {lr: 0.1}\nalgorithm: {name: FedAvgg}\ncohort: -1\nrounds: 2\n"
    )
    code, _, err = call("run", job)
    assert code == 2
    told = ("modle: is not a key", "clients: is missing", "model: is 3", "recipe.lr: unknown key 'lr'")
    for part in (*told, "FedAvgg", "cohort's size is -1"):
        assert part in err


def test_a_run_folder_gets_the_loss_curves_and_is_not_mixed_with_another_run(call, job, tmp_path):
    folder, saved = tmp_path / "run", tmp_path / "c.pt"
    assert call("run", job, "--run", folder, "--checkpoint", saved, "-q")[0] == 0
    text = (folder / "report.html").read_text()
    assert '"loss"' in text
    assert '"test loss"' in text
    assert '"test accuracy"' in text
    code, _, err = call("run", job, "--run", folder)
    assert code == 2
    assert "holds another run" in err
    assert call("run", job, "--run", folder, "--checkpoint", saved, "--resume", "--rounds", 3)[0] == 0


def test_clients_that_fail_are_listed_and_the_exit_code_says_so(call, job, tmp_path):
    text = TASK.replace(
        "for _ in range(6)]", "for _ in range(5)] + [(torch.randn(9, 4), torch.full((9,), 8))]"
    )
    (tmp_path / "task.py").write_text(text)
    job.write_text(JOB.replace("cohort: 4", "cohort: 6"))
    code, out, err = call("run", job, "--json", "-q")
    page = json.loads(out)
    assert code == 1
    assert list(page["failed"]) == ["round 1, client 5", "round 2, client 5"]
    assert "round 1, client 5 failed:" in err
    assert "label 8 is out of range" in err
    code, _, err = call("run", job, "--resume")
    assert code == 2
    assert "--checkpoint" in err


def test_compare_prints_a_table_and_advice(call, job):
    options = ("--ways", "threads,merged,fused", "--max-workers", 2, "--batch-size", 3, "--repeats", 1)
    code, out, _ = call("compare", job, *options)
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["serial", "threads", "merged", "fused"]
    assert "threads*2/eager" in lines[2]
    assert any(line.startswith("--max-workers") for line in lines[5:])
    assert "--batch-size 12 in place of clients" in lines[-1]
    code, out, _ = call("compare", job, "--ways", "fused", "--repeats", 1, "--json")
    page = json.loads(out)
    assert [one["way"] for one in page["ways"]] == ["serial", "fused"]
    assert page["ways"][1]["distance"] <= 1e-6
    code, _, err = call("compare", job, "--ways", "magic")
    assert code == 2
    assert "magic" in err


@pytest.mark.parametrize(
    ("given", "ran"), [("threads*3/eager", "threads*1/eager"), ("fused:3", "inline/fused:3")]
)
def test_at_most_so_many_workers_run_and_the_batch_size_wins_over_the_file(given, ran, call, job):
    asked = ("--strategy", given, "--max-workers", 1, "--batch-size", 9, "-q", "--json")
    code, out, _ = call("run", job, "--rounds", 1, *asked)
    assert code == 0
    assert json.loads(out)["strategy"] == ran


@pytest.mark.parametrize(
    ("given", "told"), [("auto", "name a strategy"), ("devices/eager", "which these are")]
)
def test_workers_that_are_not_the_strategys_to_choose_are_refused(given, told, call, job):
    code, _, err = call("run", job, "--strategy", given, "--max-workers", 2)
    assert code != 0
    assert told in err


def test_a_key_in_the_wrong_place_is_told_where_it_belongs(call, job):
    job.write_text(JOB.replace("SGD", "sgd") + "\nmax_workers: 2\nbatch-size: 4\n")
    _, _, err = call("run", job)
    assert "max_workers: is not a key here, but of strategy" in err
    assert "batch-size: is not a key here, but of recipe" in err
    assert "did you mean 'SGD'?" in err


@pytest.mark.parametrize("loss", ["cross_entropy", "{name: cross_entropy, weight: [1, 2, 7]}"])
def test_check_holds_a_job_against_plain_torch(call, job, loss):
    job.write_text(JOB.replace("batch_size: 4", f"batch_size: 4, loss: {loss}"))
    code, out, _ = call("check", job)
    equal = [line.partition(" within")[0] for line in out.splitlines()]
    assert (code, equal) == (0, ["client 0: equal", "client 1: equal"])


def test_check_ends_with_1_where_they_differ(call, job):
    """A model that counts its calls in a global: no two trainings of it are the same."""
    counting = TASK.replace(
        "def model():",
        "n = [1.0]\n\nclass Net(nn.Linear):\n    def forward(self, x):\n        n[0] += 1\n"
        "        return super().forward(x) * n[0]\n\ndef model():",
    ).replace("return nn.Linear(4, 3)", "return Net(4, 3)")
    (job.parent / "task.py").write_text(counting)
    code, out, _ = call("check", job, "--strategy", "serial")
    assert code == 1
    assert "differs by" in out
