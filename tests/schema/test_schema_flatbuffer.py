"""The FlatBuffer writer and reader: round trips, layout rules, sharing, streaming and named errors."""

from __future__ import annotations

import copy
import io
import pickle
import random
import struct
import time
import tracemalloc

import numpy as np
import pytest
from schema_trees import random_tree, to_bytes

from mnnconvert.errors import ConversionError
from mnnconvert.schema.flatbuffer import LONG, MAX_BYTES, layout_size, read, write
from mnnconvert.schema.tables import (
    Attribute,
    Blob,
    Convolution2D,
    Convolution2DCommon,
    NamedAttrList,
    Net,
    Op,
    OpType,
    PadMode,
    Pool,
    Relu,
)


class Zeros:
    """A payload that exists only as a number."""

    def __init__(self, nbytes: int, written: int | None = None):
        self.nbytes = nbytes
        self.written = nbytes if written is None else written

    def write_to(self, stream):
        for start in range(0, self.written, 1 << 20):
            stream.write(bytes(min(1 << 20, self.written - start)))


class Sink(io.RawIOBase):
    """Counts bytes and forgets them."""

    count = 0

    def writable(self):
        return True

    def write(self, data):
        self.count += memoryview(data).nbytes
        return memoryview(data).nbytes


def reference(error):
    return error.value.diagnostics[0].reference


@pytest.mark.parametrize("seed", range(150))
def test_random_trees_come_back(seed):
    tree = random_tree(seed)
    data = to_bytes(tree)
    again = read(data, type(tree))
    assert again == tree
    assert to_bytes(again) == data
    assert layout_size(tree) == len(data)


def test_whole_nets_come_back():
    for seed in range(12):
        tree = random_tree(seed, Net)
        assert read(to_bytes(tree)) == tree


def test_enums_unions_and_numbers_without_a_name():
    net = Net(oplists=[Op(type=OpType.Pooling, main=Pool(padType=77), name="p")], usage=1)
    op = read(to_bytes(net)).oplists[0]
    assert op.type is OpType.Pooling
    assert isinstance(op.main, Pool)
    assert op.main.padType == 77


def test_defaults_take_no_space():
    assert to_bytes(Relu()) == struct.pack("<IHHi", 8, 4, 4, 4)
    assert to_bytes(Relu(slope=0.0)) == to_bytes(Relu())


@pytest.mark.parametrize("dtype", ["int8s", "int32s", "int64s", "float32s"])
@pytest.mark.parametrize("count", [1, LONG])
def test_elements_are_aligned(dtype, count):
    kinds = {"int8s": np.int8, "int32s": np.int32, "int64s": np.int64, "float32s": np.float32}
    values = (np.arange(count) % 100 + 17).astype(kinds[dtype])
    for shift in range(9):
        data = to_bytes(Blob(strings=["s" * shift], **{dtype: values}))
        place = data.index(values.tobytes())
        assert place % values.itemsize == 0
        assert struct.unpack_from("<I", data, place - 4) == (count,)


def test_equal_vectors_and_strings_are_stored_once():
    weight = np.arange(5000, dtype=np.float32)
    one = to_bytes(Net(oplists=[Op(main=Convolution2D(weight=weight))]))
    two = to_bytes(Net(oplists=[Op(main=Convolution2D(weight=w)) for w in (weight, weight)]))
    equal = to_bytes(Net(oplists=[Op(main=Convolution2D(weight=w)) for w in (weight, weight.copy())]))
    other = to_bytes(Net(oplists=[Op(main=Convolution2D(weight=w)) for w in (weight, weight + 1)]))
    assert len(two) < len(one) + 200
    assert equal == two
    assert len(other) > 2 * weight.nbytes
    assert to_bytes(Net(tensorName=["name" * 10] * 9)).count(b"name" * 10) == 1


def test_payloads_are_shared_with_equal_ones_and_with_arrays():
    array = np.zeros(1 << 20, np.int8)
    payload = Zeros(array.nbytes)
    ops = [Op(main=Blob(int8s=values)) for values in (payload, payload, Zeros(array.nbytes), array)]
    size = layout_size(Net(oplists=ops))
    assert array.nbytes < size < array.nbytes + 300
    again = read(to_bytes(Net(oplists=ops)))
    assert all(np.array_equal(op.main.int8s, array) for op in again.oplists)


def test_a_short_payload_is_placed_like_the_array_it_stands_for():
    """What is read from a file is arrays: written again they have to give the same bytes."""
    layers = [Blob(int8s=Zeros(100)), Blob(int8s=np.ones(LONG, np.int8)), Blob(int8s=np.ones(7, np.int8))]
    data = to_bytes(Net(oplists=[Op(main=blob) for blob in layers]))
    assert to_bytes(read(data)) == data


def test_long_payloads_stream():
    net = Net(oplists=[Op(main=Blob(int8s=Zeros(300 << 20)))])
    sink = Sink()
    tracemalloc.start()
    written = write(net, sink)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert written == sink.count > 300 << 20
    assert peak < 4 << 20


def test_a_payload_must_keep_its_promise():
    with pytest.raises(RuntimeError, match="wrote 9 bytes, not the 10"):
        write(Blob(int8s=Zeros(10, written=9)), io.BytesIO())


def test_too_large_a_file_is_refused_before_anything_is_written():
    sink = Sink()
    room = MAX_BYTES - layout_size(Blob(int8s=Zeros(LONG))) + LONG
    assert layout_size(Blob(int8s=Zeros(room))) == MAX_BYTES
    with pytest.raises(ConversionError) as error:
        write(Blob(int8s=Zeros(room + 1)), sink)
    assert reference(error) == "file-too-large"
    assert sink.count == 0
    assert layout_size(Net(oplists=[Op(main=Blob(int8s=Zeros(5 << 30)))])) > 5 << 30  # how much too large can be asked


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        (Op(type=2**31), "Op.type"),
        (Relu(slope=1e39), "Relu.slope"),
        (Blob(dataFormat=200), "Blob.dataFormat"),
    ],
)
def test_a_number_that_does_not_fit_is_named(tree, field):
    with pytest.raises(ConversionError, match=f"does not fit the field {field}") as error:
        to_bytes(tree)
    assert reference(error) == "value-out-of-range"


@pytest.mark.parametrize("values", [[1, 2], np.arange(3), "text"])
def test_a_vector_of_another_type_is_a_bug_of_the_caller(values):
    with pytest.raises(TypeError, match=r"Blob\.int32s"):
        to_bytes(Blob(int32s=values))


@pytest.mark.parametrize("tree", [Op(main=Op()), Convolution2D(common=Pool()), Net(oplists=[Relu()])])
def test_a_table_of_another_class_is_a_bug_of_the_caller(tree):
    with pytest.raises(TypeError, match="cannot hold a"):
        to_bytes(tree)


def test_trees_can_be_copied():
    tree = random_tree(3, Op)
    assert copy.deepcopy(tree) == pickle.loads(pickle.dumps(tree)) == tree


def test_nesting_is_bounded():
    tree = Attribute(key="leaf")
    for _ in range(70):
        tree = Attribute(func=wrap(tree))
    with pytest.raises(ConversionError) as error:
        to_bytes(tree)
    assert reference(error) == "nested-too-deep"


def wrap(attribute):
    return NamedAttrList(attr=[attribute])


def test_arrays_are_read_only_views():
    data = bytearray(to_bytes(Blob(float32s=np.arange(2000, dtype=np.float32))))
    values = read(data, Blob).float32s
    assert np.shares_memory(values, np.frombuffer(data, np.uint8))
    assert not values.flags.writeable


@pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 8, b"\xff" * 64, b"\x08\0\0\0", b"PK\x03\x04" * 40])
def test_other_files_are_refused(data):
    with pytest.raises(ConversionError) as error:
        read(data)
    assert reference(error) == "bad-mnn-file"
    assert "offset" in error.value.diagnostics[0].context


def test_every_cut_is_refused_or_harmless():
    data = to_bytes(random_tree(5, Net))
    for end in range(0, len(data), max(1, len(data) // 200)):
        survives(data[:end])


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_give_a_named_error_and_nothing_else(seed):
    source = random.Random(seed)
    data = to_bytes(random_tree(seed % 8, Net))
    for _ in range(15):
        broken = bytearray(data)
        for _ in range(source.choice([1, 2, 8, 40])):
            at = source.randrange(min(len(data), source.choice([64, 1000, 10**9])))
            broken[at] = source.choice([0, 1, 4, 0x7F, 0x80, 0xFF, source.randrange(256)])
        survives(broken)


def survives(data):
    start = time.perf_counter()
    try:
        read(data)
    except ConversionError as error:
        assert error.diagnostics[0].reference == "bad-mnn-file"
    assert time.perf_counter() - start < 2.0  # seconds


def test_overlapping_tables_do_not_multiply_the_work():
    """Thirty levels, each of two references to the same next level, would be 2^30 tables."""
    func = next(field.slot for field in Attribute.FIELDS if field.name == "func")
    attr = next(field.slot for field in NamedAttrList.FIELDS if field.name == "attr")
    vtables = vtable(func) + vtable(attr) + struct.pack("<HH", 4, 4)
    data = bytearray(struct.pack("<I", 4 + len(vtables)) + vtables)
    for _ in range(30):
        data += struct.pack("<iI", len(data) - 4, 4)  # an Attribute, its `func` right behind it
        data += struct.pack("<iI", len(data) - 4 - len(vtable(func)), 4)  # a NamedAttrList and its vector
        data += struct.pack("<III", 2, 8, 4)  # twice the Attribute right behind
    data += struct.pack("<i", len(data) - len(vtables))  # an Attribute without fields
    start = time.perf_counter()
    with pytest.raises(ConversionError, match="overlap"):
        read(data, Attribute)
    assert time.perf_counter() - start < 0.5  # seconds


def vtable(slot):
    """Of a table whose one field, an offset, has this slot; padded to four bytes."""
    entries = [6 + 2 * slot, 8] + [0] * slot + [4] + [0] * ((slot + 1) % 2)
    return struct.pack(f"<{len(entries)}H", *entries)


def test_an_unknown_union_member_is_refused():
    data = bytearray(to_bytes(Op(main=Relu(slope=0.5))))
    at = data.index(51)
    data[at] = 250
    with pytest.raises(ConversionError, match="unknown kind 250"):
        read(data, Op)


@pytest.mark.parametrize("work", [lambda net: write(net, io.BytesIO()), lambda net: read(to_bytes(net))])
def test_time_to_read_and_write_grows_with_the_ops_and_not_faster(work):
    few, many = (busy_net(count) for count in (1000, 4000))
    assert best_of(5, lambda: work(many)) < 8 * best_of(5, lambda: work(few))  # 16 times, if it were quadratic


def busy_net(count):
    ops = [Op(name=f"op{i}", type=OpType.Convolution, main=busy_conv(i)) for i in range(count)]
    return Net(oplists=ops, tensorName=[f"op{i}" for i in range(count)])


def busy_conv(i):
    common = Convolution2DCommon(kernelX=3, kernelY=3, outputCount=i, padMode=PadMode.SAME, relu=True)
    return Convolution2D(common=common, weight=np.full(9, i, np.float32), bias=np.zeros(4, np.float32))


def best_of(times, function):
    def once():
        start = time.process_time()
        function()
        return time.process_time() - start

    return min(once() for _ in range(times))
