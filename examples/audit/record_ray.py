"""Record the timeline of a Ray job with two faults: work in rounds, and its longest task last.

    python record_ray.py ray-timeline.json

Starts a cluster of two nodes with two workers each on this machine, edits pictures in three rounds of eight,
each of which waits for the one before, and then one collage.
"""

import argparse
import json
import time

import ray
from ray.cluster_utils import Cluster


@ray.remote
def edit(picture: int) -> int:
    """Work whose size differs from picture to picture."""
    time.sleep(0.05 + 0.03 * (picture * 7 % 8))
    return picture


@ray.remote
def collage(pictures: list[int]) -> int:
    """Work that only one worker can do."""
    time.sleep(0.6)
    return len(pictures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="where to write the timeline")
    file_name = parser.parse_args().file
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    for first in (0, 8, 16):
        edited = ray.get([edit.remote(first + at) for at in range(8)])
    ray.get(collage.remote(edited))
    until = time.monotonic() + 60
    while len(tasks := ray.timeline()) < 4 * 25 and time.monotonic() < until:
        time.sleep(1)  # workers report what they did now and then
    ray.shutdown()
    cluster.shutdown()
    with open(file_name, "w", encoding="utf-8") as file:
        json.dump(tasks, file, indent=1)
