"""What an earlier run says of its stages, and files that say nothing of a run."""

import json
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline.planning.estimates.run_history import StageHistory, read_history


def test_seconds_for_an_item_and_for_a_load(tmp_path: Path) -> None:
    stages = [{"stage": "edit", "n_done": 3, "n_failed": 1, "busy_s": 8.0}, {"stage": "score"}]
    loads = {"load_s": {"cuda:0": {"edit": 10.0}, "cuda:1": {"edit": 20.0}}}
    (tmp_path / "summary.json").write_text(json.dumps({"stages": stages, "measured": loads}))
    found = read_history(tmp_path)
    assert found == {"edit": StageHistory(2.0, 15.0), "score": StageHistory()}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"stages": [3]}',
        '{"stages": [{"stage": "a", "n_done": "many"}]}',
        '{"stages": [], "measured": [1]}',
        '{"stages": [], "measured": {"load_s": {"cpu:0": 3}}}',
    ],
)
def test_a_file_that_says_nothing_of_a_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ConfigError, match="says nothing of a run"):
        read_history(tmp_path)
    with pytest.raises(ConfigError, match="says nothing of a run"):
        read_history(tmp_path / "none")
