"""What stages say of their work goes into a run's first event."""

from evenload.pipeline.job.spec_stage import StageSpec
from evenload.pipeline.run.run_events import declared_work


def stage(name, **estimate):
    return StageSpec.model_validate({"name": name, "target": "x.py:X", "estimate": estimate})


def test_only_what_is_said_is_told():
    stages = [stage("a", flop=2e12), stage("b"), stage("c", flop=1e9, bytes=1e6)]
    assert declared_work(stages) == {"a": {"flop": 2e12}, "c": {"flop": 1e9, "bytes": 1e6}}
