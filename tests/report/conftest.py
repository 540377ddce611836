"""Runs to report on."""

import pytest
from sample_runs import SampleRun


@pytest.fixture
def sample_run():
    return SampleRun
