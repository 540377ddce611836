"""JAX and FedJAX on a two-layer network: what a compiler reaches. Run by ``clients_peers.py``.

vmap + scan   every client and step in one compiled program: an upper reference, not a simulator. Its
              batches are cut beforehand, the same in every round
shuffled      the same with each client's rows shuffled in every round, as everybody else does it
FedJAX        its default back end: a compiled step, clients in turn; its batches are cut beforehand, too
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("widths", type=lambda text: tuple(map(int, text.split("-"))), help="such as 64-32-10")
parser.add_argument("n", type=int)
parser.add_argument("rounds", type=int)
WIDTHS, N, ROUNDS = vars(parser.parse_args()).values()
SECONDS = 1.0  # of rounds, at least
BATCH, STEPS, LR = 32, 10, 0.05


def loss(p, x, y):
    z = jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1).mean()


def step(p, x, y):
    return {k: p[k] - LR * g for k, g in jax.grad(loss)(p, x, y).items()}


def examples():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, STEPS, BATCH, WIDTHS[0]), dtype=np.float32)
    y = rng.integers(0, WIDTHS[2], (N, STEPS, BATCH)).astype(np.int32)
    sizes = {"w1": WIDTHS[:2], "b1": WIDTHS[1:2], "w2": WIDTHS[1:], "b2": WIDTHS[2:]}
    return x, y, {k: jnp.asarray(0.1 * rng.standard_normal(s, dtype=np.float32)) for k, s in sizes.items()}


def vmap_scan(x, y, start):
    def client(x, y):
        return lax.scan(lambda p, b: (step(p, *b), None), start, (x, y))[0]

    x, y = jnp.asarray(x), jnp.asarray(y)
    fused = jax.jit(lambda x, y: {k: v.mean(0) for k, v in jax.vmap(client)(x, y).items()})
    return lambda: jax.block_until_ready(fused(x, y))


def shuffled(x, y, start):
    """NumPy orders the rows, which is faster here than JAX's own permutations; the program gathers them."""
    x, y = jnp.asarray(x.reshape(N, STEPS * BATCH, -1)), jnp.asarray(y.reshape(N, STEPS * BATCH))
    rng = np.random.default_rng(1)

    def client(x, y, order):
        def one(p, rows):
            return step(p, x[rows], y[rows]), None

        return lax.scan(one, start, order.reshape(STEPS, BATCH))[0]

    fused = jax.jit(lambda x, y, o: {k: v.mean(0) for k, v in jax.vmap(client)(x, y, o).items()})

    def run():
        orders = rng.random((N, STEPS * BATCH), dtype=np.float32).argsort(1).astype(np.int32)
        return jax.block_until_ready(fused(x, y, orders))

    return run


def fedjax_round(x, y, start):
    import fedjax

    each = fedjax.for_each_client(lambda s, c: s, lambda p, b: step(p, b["x"], b["y"]), lambda s, p: p)
    clients = [
        (str(c), [{"x": x[c, i], "y": y[c, i]} for i in range(STEPS)], jnp.zeros(())) for c in range(N)
    ]
    return lambda: [jax.block_until_ready(out) for _, out in each(start, clients)]


def least(run):
    run()
    spent, until = [], time.perf_counter() + SECONDS
    while len(spent) < ROUNDS or time.perf_counter() < until:
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        spent.append((time.perf_counter() - wall, time.process_time() - cpu))
    return {"round_s": min(s[0] for s in spent), "cpu_s": min(s[1] for s in spent)}


if __name__ == "__main__":
    x, y, start = examples()
    found = {"JAX vmap + scan": least(vmap_scan(x, y, start))}
    found["JAX vmap + scan, shuffled"] = least(shuffled(x, y, start))
    try:
        found["FedJAX"] = least(fedjax_round(x, y, start))
    except Exception as error:  # it lags behind JAX: say so, and go on
        found["FedJAX"] = {"error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(found), flush=True)
