import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.devices.probes.cuda import visible

GPUS = [["GPU-aaa1"], ["GPU-aab2"], ["MIG-c1", "MIG-c2"]]


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (None, ["GPU-aaa1", "GPU-aab2", "MIG-c1", "MIG-c2"]),
        ("", []),
        ("0", ["GPU-aaa1"]),
        ("1,0", ["GPU-aab2", "GPU-aaa1"]),
        ("0,7,1", ["GPU-aaa1"]),  # what follows an invalid entry is hidden
        ("0,3,1", ["GPU-aaa1"]),  # there are three
        ("0,2,-1,1", ["GPU-aaa1", "MIG-c1", "MIG-c2"]),  # the guide's own example
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-aab2", ["GPU-aab2"]),
        ("gpu-aab", ["GPU-aab2"]),
        ("GPU-aa", []),  # not unique
        ("MIG-c2, 0", ["MIG-c2", "GPU-aaa1"]),
        ("1,1", ["GPU-aab2"]),
    ],
)
def test_masks_mean_what_they_mean_to_cuda(mask, shown):
    assert visible(GPUS, mask) == shown


@given(st.text(alphabet="0123-,GPUaM ", max_size=20))
def test_no_mask_breaks_it_or_shows_anything_twice(mask):
    shown = visible(GPUS, mask)
    assert len(set(shown)) == len(shown)
    assert set(shown) <= {uuid for gpu in GPUS for uuid in gpu}
