"""The router's block of memory."""

from evenload.balance.flow.kernels.memory import lay_out


def test_arrays_of_a_block_lie_where_its_table_says_and_do_not_overlap():
    block, arrays = lay_out(
        {"a": ((3,), "int32"), "none": ((0,), "float64"), "b": ((2, 5), "bool"), "c": ((9,), "int64")}
    )
    for i, array in enumerate(arrays.values()):
        array[...] = i + 1
        start = array.__array_interface__["data"][0] - block.__array_interface__["data"][0]
        assert start == 8 * block[i] or not array.size
        assert array.nbytes <= 8 * (block[i + 1] - block[i])
    assert [set(array.ravel().tolist()) for array in arrays.values()] == [{1}, set(), {True}, {4}]
