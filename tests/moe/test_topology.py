import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from evenload.errors import ConfigError, UnknownName
from evenload.moe import create_redundant_mapping
from evenload.moe.topology import (
    TOPOLOGIES,
    check_mapping,
    circulant,
    cube,
    fully_connected,
    hypercube,
    lay_out,
    ring,
    torus,
)

ALL = [
    ring(2), ring(8), ring(5), circulant(7, [1, 2, 3]), cube(), hypercube(4), hypercube(8), hypercube(16),
    hypercube(32), hypercube(64), torus(2, 2), torus(8, 4), torus(3, 5), fully_connected(2),
    fully_connected(6),
]  # fmt: skip


@pytest.mark.parametrize("matrix", ALL, ids=lambda m: f"{m.shape[0]}x{m.shape[1]}")
def test_every_rank_is_backed_up_once_in_each_column_and_load_gets_from_any_rank_to_any_other(matrix):
    assert check_mapping(matrix) is not None
    assert matrix.dtype == np.int32
    links = coo_array(
        (np.ones(matrix.size), (np.repeat(np.arange(len(matrix)), matrix.shape[1]), matrix.ravel()))
    )
    assert connected_components(links)[0] == 1


def edges(matrix):
    return {frozenset((rank, int(peer))) for rank, row in enumerate(matrix) for peer in row}


def test_shapes_are_those_their_names_say():
    assert cube().T.tolist() == [[3, 0, 1, 2, 7, 4, 5, 6], [6, 7, 4, 5, 0, 1, 2, 3]]  # as in LPLB's README
    assert len(edges(cube())) == 16  # twelve edges and four diagonals
    assert len(edges(hypercube(16))) == 32
    for n_ranks, degree in ((4, 2), (16, 4), (64, 6)):
        counts = np.bincount([rank for edge in edges(hypercube(n_ranks)) for rank in edge])
        assert set(counts.tolist()) == {degree}
    assert len(edges(torus(8, 4))) == 64
    assert len(edges(fully_connected(6))) == 15


@pytest.mark.parametrize(
    ("n_logical", "n_physical", "n_ranks"), [(8, 12, 4), (16, 24, 8), (32, 48, 16), (64, 80, 16)]
)
def test_mapping_by_sizes_alone(n_logical, n_physical, n_ranks):
    matrix = create_redundant_mapping(n_logical, n_physical)
    assert matrix.shape == (n_ranks, 1)
    assert (matrix[:, 0] == (np.arange(n_ranks) + 1) % n_ranks).all()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_mapping_by_name(topology):
    n_columns = {"ring": 1, "full": 15, "hypercube": 2, "cube": 2, "torus": 2, "circulant": 3}[topology]
    matrix = create_redundant_mapping(256, 256 + 16 * n_columns, ep_size=16, topology=topology)
    assert matrix.shape == (8 if topology == "cube" else 16, n_columns)
    check_mapping(matrix)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: create_redundant_mapping(8, 8), "no copy of 8 experts"),
        (lambda: create_redundant_mapping(8, 11), "do not divide over 1 ranks"),
        (lambda: create_redundant_mapping(4, 12), "do not suit"),
        (lambda: create_redundant_mapping(64, 80, ep_size=16, topology="torus"), "do not suit"),
        (lambda: create_redundant_mapping(12, 24, ep_size=12, topology="cube"), "no cubes of 8"),
        (lambda: hypercube(12), "12 ranks are no hypercube"),
        (lambda: torus(1, 4), "no neighbours"),
        (lambda: circulant(4, [4]), "to itself"),
        (lambda: ring(1), "to itself"),
        (lambda: check_mapping([[1], [1], [0]]), "no permutation"),
        (lambda: check_mapping([[0], [2], [1]]), "back up itself"),
        (lambda: lay_out(ring(4), np.ones((1, 9)), 13), "do not suit"),
        (lambda: lay_out(torus(2, 2), np.ones((1, 8)), 12), "do not suit"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ConfigError) as caught:
        call()
    assert words in caught.value.message
    assert caught.value.hint


def test_unknown_topology_names_the_nearest():
    with pytest.raises(UnknownName, match="hypercube"):
        create_redundant_mapping(8, 12, topology="hypercub")


def test_a_tensor_is_taken_too():
    torch = pytest.importorskip("torch")
    assert (check_mapping(torch.from_numpy(cube())) == cube()).all()


@pytest.mark.parametrize(
    ("matrix", "n_slots", "n_ranks"), [(ring(8), 40, 8), (cube(), 96, 16), (torus(4, 2), 48, 8)]
)
def test_copies_are_the_heaviest_experts_of_the_rank_that_is_backed_up(matrix, n_slots, n_ranks):
    load = np.random.default_rng(0).lognormal(0, 1, (3, 32 if n_slots < 90 else 64))
    phy2log = lay_out(matrix, load, n_slots, ep_size=n_ranks)
    n_experts, n_group = load.shape[1], len(matrix)
    n_local, n_columns = n_experts // n_ranks, matrix.shape[1]
    for layer in range(3):
        gpus = phy2log[layer].reshape(n_ranks, -1)
        assert sorted(gpus[:, :n_local].reshape(-1).tolist()) == list(range(n_experts))
        for rank in range(n_ranks):
            own = load[layer, gpus[rank, :n_local]]
            assert (np.diff(own) <= 0).all()
            assert len(set(gpus[rank].tolist())) == gpus.shape[1]
            for j, copy in enumerate(gpus[rank, n_local:]):
                peer = rank // n_group * n_group + matrix[rank % n_group, j % n_columns]
                assert copy == gpus[peer, j]
