import json
from pathlib import Path

import numpy as np
import pytest

from evenload.errors import ConfigError, FormatError
from evenload.moe.trace import Trace, count_ids, read_trace

TRACES = Path(__file__).parents[1] / "data" / "routing"
COUNTS = np.arange(24).reshape(2, 3, 4)


def test_a_real_trace():
    trace = read_trace(TRACES / "routing_intent.npz")
    assert (trace.n_experts, trace.n_layers, trace.n_steps) == (64, 26, 8222)
    windows = trace.windows(512)
    assert windows.shape == (16, 26, 64)
    assert (windows.sum(axis=2) == 512 * 6).all()
    by_hand = np.bincount(
        np.load(TRACES / "routing_intent.npz")["experts"][7, 512:1024].ravel(), minlength=64
    )
    assert (windows[1, 7] == by_hand).all()


def test_ids_are_counted_and_none_is_no_id():
    ids = np.array([[[0, 2], [2, -1], [1, 0], [0, 0]]])
    assert count_ids(ids, 2, 3).tolist() == [[[1, 0, 2]], [[3, 1, 0]]]
    assert Trace("t", 3, ids=ids).windows(3).tolist() == [[[2, 1, 2]]]


def write(path: Path, content) -> Path:
    if path.suffix == ".npy":
        np.save(path, content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".pt":
        pytest.importorskip("torch").save(content, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in content))
    else:
        path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npz", {"counts": COUNTS}),
        ("a.npz", {"logical_count": COUNTS}),
        ("a.npy", COUNTS.astype(np.float32)),
        ("a.jsonl", COUNTS.tolist()),
        ("a.jsonl", [{"step": i, "counts": one} for i, one in enumerate(COUNTS.tolist())]),
        ("a.json", COUNTS.tolist()),
        ("a.json", {"counts": COUNTS.tolist()}),
        ("a.json", {"load_history": [{"logical_expert_load": one} for one in COUNTS.tolist()]}),
    ],
)
def test_counts_from_every_kind_of_file(tmp_path, name, content):
    trace = read_trace(write(tmp_path / name, content))
    assert (trace.n_experts, trace.n_layers, trace.n_steps) == (4, 3, 2)
    assert (trace.windows(1) == COUNTS).all()
    assert (trace.windows(2)[0] == COUNTS.sum(axis=0)).all()


def test_ids_or_counts_in_a_plain_array(tmp_path):
    ids = np.stack([np.random.default_rng(0).permuted(np.tile(np.arange(8), (50, 1)), axis=1)[:, :3]] * 2)
    path = write(tmp_path / "a.npy", ids)
    assert read_trace(path).windows(50)[0, 0].sum() == 150
    assert read_trace(path, n_experts=16).n_experts == 16
    assert read_trace(path, kind="counts").n_experts == 3
    few = write(tmp_path / "b.npy", np.ones((2, 50, 3), int))
    assert read_trace(few).n_experts == 3
    assert read_trace(few, kind="ids").windows(50).tolist() == [[[0, 150], [0, 150]]]


def test_ids_by_token_first(tmp_path):
    ids = np.arange(12).reshape(3, 2, 2)  # tokens, layers, top-k
    trace = read_trace(write(tmp_path / "a.npz", {"routed_experts": ids}))
    assert (trace.n_layers, trace.n_steps) == (2, 3)
    assert trace.windows(3)[0, 0].nonzero()[0].tolist() == [0, 1, 4, 5, 8, 9]


class TestDumps:
    torch = pytest.importorskip("torch")
    phy2log = np.array([[0, 1, 1, 2], [2, 1, 0, 0]])
    loads = np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    by_expert = ((1, 5, 4), (15, 6, 5))

    def tensor(self, array):
        return self.torch.from_numpy(np.asarray(array))

    def test_sglangs_stat_mode(self, tmp_path):
        pack = {"rank": 0, "logical_count": self.tensor(COUNTS), "average_utilization_rate_over_window": None}
        assert (read_trace(write(tmp_path / "x.pt", pack)).windows(1) == COUNTS).all()

    def test_sglangs_records_of_all_ranks_add_up(self, tmp_path):
        for rank in range(2):
            records = [
                {"forward_pass_id": step, "rank": rank, "global_physical_count": self.tensor(self.loads[0])}
                for step in (4, 2, 9)
            ]
            pack = {"records": records, "last_physical_to_logical_map": self.tensor(self.phy2log)}
            write(tmp_path / f"{rank}.pt", pack)
        windows = read_trace(tmp_path).windows(1)
        assert (windows == 2 * np.array([self.by_expert] * 3)).all()
        assert read_trace(tmp_path).note is None
        assert "one rank's counts; give the folder" in read_trace(tmp_path / "0.pt").note

    def test_vllms_window(self, tmp_path):
        pack = {
            "expert_load_window": self.tensor(self.loads),
            "physical_to_logical_map": self.tensor(self.phy2log),
        }
        assert read_trace(write(tmp_path / "x.pt", pack)).windows(1)[0].tolist() == [
            list(row) for row in self.by_expert
        ]

    def test_slots_that_hold_nothing(self, tmp_path):
        pack = {
            "expert_load_window": self.tensor(self.loads),
            "physical_to_logical_map": self.tensor([[0, 1, -1, 2], [2, 1, 0, 0]]),
        }
        assert read_trace(write(tmp_path / "x.pt", pack)).windows(1).tolist() == [[[1, 2, 4], [15, 6, 5]]]

    @pytest.mark.parametrize(
        ("pack", "words"),
        [
            ([1, 2], "holds a list"),
            ({"expert_load_window": [[[1, 2]]]}, "no map"),
            ({"expert_load_window": [[[1, 2]]], "physical_to_logical_map": [[0, 1, 2]]}, "a map of"),
            ({"nothing": 1}, "nothing"),
        ],
    )
    def test_damaged_dumps_are_refused(self, tmp_path, pack, words):
        if isinstance(pack, dict):
            pack = {k: self.tensor(v) if isinstance(v, list) else v for k, v in pack.items()}
        with pytest.raises(FormatError, match=words):
            read_trace(write(tmp_path / "x.pt", pack))

    def test_a_dump_that_would_run_code_is_refused(self, tmp_path):
        import pickle

        class Bomb:
            def __reduce__(self):
                return (print, ("boom",))

        (tmp_path / "x.pt").write_bytes(pickle.dumps({"logical_count": Bomb()}))
        with pytest.raises(FormatError, match="no readable"):
            read_trace(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.npz", {"weights": COUNTS}, FormatError, "has weights"),
        ("a.npz", {"experts": COUNTS.astype(float)}, FormatError, "dtype float64"),
        ("a.npz", {"experts": COUNTS[0]}, FormatError, "shape (3, 4)"),
        ("a.npz", {"experts": COUNTS - 5}, FormatError, "ids from -5"),
        ("a.npz", {"counts": -COUNTS}, FormatError, "counts from -23"),
        ("a.npz", {"counts": COUNTS / 100}, FormatError, "counts with fractions"),
        ("a.json", {"counts": [[[1, 2]], [[1]]]}, FormatError, ""),
        ("a.json", 7, FormatError, "neither steps"),
        ("a.jsonl", [], FormatError, "no step"),
        ("a.jsonl", [[[1, 2]], [[1, 2, 3]]], FormatError, "step 1 has shape"),
        ("a.jsonl", [{"load": []}], FormatError, "line 1: none of"),
        ("a.jsonl", [[["x"]]], FormatError, "no rectangle"),
        ("a.jsonl", [[[1, 10**400]]], FormatError, "line 1: a count of 2**1024 or more"),
        ("a.json", {"experts": [[[1, 1 << 62]]]}, FormatError, "ids from 1 to"),
        ("a.json", {"expert_load": [[[1, 1e300]]]}, FormatError, "to 1e+300"),
        ("a.json", {"physical_count": [[[1, float("nan")]]], "phy2log": [[0, 1]]}, FormatError, "from nan"),
        ("a.json", {"physical_count": [[[1, 2]]], "phy2log": [[0, 1 << 62]]}, FormatError, "the map names"),
        ("a.txt", "x", ConfigError, "unknown kind of trace"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, name, content, error, words):
    with pytest.raises(error) as caught:
        read_trace(write(tmp_path / name, content))
    assert words in caught.value.message


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.json", "a.jsonl", "a.pt"])
def test_damaged_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04broken\xff\n")
    with pytest.raises(FormatError, match=name):
        read_trace(tmp_path / name)


def test_truncated_archives_are_refused(tmp_path):
    whole = (TRACES / "routing_intent.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"cut\.npz"):
        read_trace(tmp_path / "cut.npz")


def test_nothing_there(tmp_path):
    with pytest.raises(ConfigError, match="no trace at"):
        read_trace(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match=r"no \.pt file"):
        read_trace(tmp_path)


def test_wrong_sizes():
    trace = Trace("t", 4, counts=COUNTS)
    for size in (0, 3):
        with pytest.raises(ConfigError, match="has 2 steps"):
            trace.windows(size)


def test_more_experts_than_the_counts_have(tmp_path):
    path = write(tmp_path / "a.npz", {"counts": COUNTS})
    with pytest.raises(ConfigError, match="has 4 experts, not 5"):
        read_trace(path, n_experts=5)
