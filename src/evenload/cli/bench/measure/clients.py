"""A federated round of many small clients: plain serial torch, evenload serial, evenload fused."""

from evenload.cli.bench.measure.timing import least_time
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport

BATCH, STEPS, LR = 16, 5, 0.05


def clients(options: BenchOptions) -> TrialReport:
    """Seconds per round, and how far the fused models are from the serial ones."""
    import torch
    from torch import nn

    from evenload.clients import SGD, Recipe, Trainer

    n_clients = 20 if options.is_quick else 100

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    torch.manual_seed(0)
    data = [
        (torch.randn(BATCH * STEPS, 64), torch.randint(0, 10, (BATCH * STEPS,))) for _ in range(n_clients)
    ]
    recipe = Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    start = {name: value.clone() for name, value in model().state_dict().items()}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        n = 2 if options.is_quick else 7
        plain_s = least_time(lambda: _plain(model(), start, data), n).wall_s
        rows = [{"strategy": "plain torch loop", "clients": n_clients, "round_s": plain_s, "speed_up": 1.0}]
        for name in ("serial", f"fused:{n_clients}"):
            with Trainer(model, strategy=name) as trainer:
                round_s = least_time(lambda one=trainer: one.train(data, recipe, reduce="mean"), n).wall_s
            rows.append(
                {"strategy": name, "clients": n_clients, "round_s": round_s, "speed_up": plain_s / round_s}
            )
    finally:
        torch.set_num_threads(before)
    note = (
        f"{n_clients} clients, 2,410 parameters, {STEPS} steps of {BATCH} examples; one thread, best of {n}."
    )
    return TrialReport("clients", "", rows, note)


def _plain(model, start, data) -> None:
    """Train the clients one after the other in plain torch, the loop that everybody writes."""
    import torch.nn.functional as F
    from torch.optim import SGD

    for x, y in data:
        model.load_state_dict(start)
        optimizer = SGD(model.parameters(), lr=LR)
        for i in range(STEPS):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
