"""The RayJob of the examples: its fields are KubeRay's, and its command is one that evenload takes."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenload.cli.pipeline.run import run
from evenload.pipeline.job.job_file import parse_spec

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "kubernetes" / "rayjob.yaml"
JOB_FIELDS = {
    "entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec",
}  # fmt: skip
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[KMGT]i?)?")


@pytest.fixture(scope="module")
def ray_job() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def test_its_fields_are_those_of_a_ray_job(ray_job: dict[str, Any]) -> None:
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(ray_job["spec"]) == JOB_FIELDS
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    for group in cluster["workerGroupSpecs"]:
        assert set(group) == GROUP_FIELDS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_every_pod_mounts_volumes_that_it_has_and_asks_for_what_it_gets(ray_job: dict[str, Any]) -> None:
    cluster = ray_job["spec"]["rayClusterSpec"]
    images = set()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            images.add(container["image"])
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert all(QUANTITY.fullmatch(value) for value in container["resources"]["limits"].values())
    assert len(images) == 1, "workers import what the head does"


def test_its_command_is_one_that_evenload_takes(ray_job: dict[str, Any]) -> None:
    words = shlex.split(ray_job["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "evenload", "run"]
    params = run.make_context("run", words[4:]).params
    assert str(params["job"]).startswith("/data/")
    assert str(params["out"]).startswith("/data/"), "on the volume, so that another try goes on"
    text = "version: 1\njob: {name: x, inputs: {jsonl: x.jsonl}}\nstages: [{name: a, target: 'a.py:A'}]\n"
    spec = parse_spec(text, Path(), changes=params["changes"], with_inputs=False)
    assert (spec.backend.name, spec.backend.follow) == ("ray", True)
