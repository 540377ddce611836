"""accelerate's ``split_between_processes``: each process gets its share of the list beforehand, by its rank.

Results are gathered at the end. There are no retries: the launcher ends all processes if one fails.
https://huggingface.co/docs/accelerate/usage_guides/distributed_inference
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

NAME, PACKAGE, KEEPS_WORKERS = "accelerate split", "accelerate", False


def share(task, items, path):
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState(cpu=True)
    state.wait_for_everyone()
    with state.split_between_processes(items) as own:
        done = gather_object([task(state.process_index, item) for item in own])
    if state.is_main_process:
        with open(path, "w") as file:
            json.dump(done, file)


@contextmanager
def workers(n: int, limit_s: float | None) -> Iterator:
    from accelerate import notebook_launcher

    def replay(task, items):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        path = f"{task.folder}/gathered"
        notebook_launcher(share, (task, items, path), num_processes=n, use_port=port)
        with open(path) as file:
            yield from json.load(file)

    yield replay
