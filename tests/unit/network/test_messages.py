"""Messages as bytes: all that is sent comes back, and nothing that came from a stranger does more than raise."""

import json
import tracemalloc
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from evenhand.wire.messages import Packet, PacketError, decode, encode, packed, unpacked

TYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = Packet(
    "work",
    {"round": 3, "name": "a", "list": [1.5, None, True]},
    (np.arange(6, dtype=np.float32).reshape(2, 3), np.array(True), np.zeros((0, 4), np.int8)),
)
BYTES = encode(MESSAGE)


def raw(header, arrays=b"", magic=b"EVENHAND"):
    """A message with a header that :func:`encode` would not write."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return magic + len(header).to_bytes(4, "little") + header + arrays


def announcing(*entries, arrays=b""):
    return raw({"kind": "work", "fields": {}, "arrays": list(entries)}, arrays)


def assert_same(before, after):
    assert (before.kind, before.fields) == (after.kind, after.fields)
    assert len(before.arrays) == len(after.arrays)
    for mine, its in zip(before.arrays, after.arrays, strict=True):
        # Bytes, so that NaN equals NaN, and 0.0 does not equal -0.0.
        assert (mine.dtype, mine.shape, mine.tobytes()) == (its.dtype, its.shape, its.tobytes())
        assert its.flags.writeable and its.flags.aligned


@st.composite
def arrays(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    name = draw(st.sampled_from(TYPES))
    if name == "bool":
        return draw(hnp.arrays(bool, shape))
    size = int(np.prod(shape)) * jnp.dtype(name).itemsize
    # Any bits at all: NaN with payloads, infinities and subnormal numbers among them.
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), jnp.dtype(name)).reshape(shape)


# --- round trips ------------------------------------------------------------------------------------------------------


@given(st.text(), st.dictionaries(st.text(), JSON, max_size=4), st.lists(arrays(), max_size=3))
def test_what_is_sent_comes_back(kind, fields, parts):
    message = Packet(kind, fields, tuple(parts))
    assert_same(message, decode(encode(message)))


@pytest.mark.parametrize("name", TYPES)
def test_each_type_comes_back_in_each_shape(name):
    parts = tuple(
        np.ones(shape, jnp.dtype(name)) for shape in ((), (0,), (3,), (2, 0, 2), (1,) * 5, (0, 2**20))
    )
    assert_same(Packet("work", {}, parts), decode(encode(Packet("work", {}, parts))))


def test_arrays_of_any_layout_come_back_the_same():
    array = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    swapped = array.astype(array.dtype.newbyteorder(">"))
    parts: Any = (array.T, array[::-1, :, ::2], swapped, jnp.asarray(array, jnp.float32))
    for mine, its in zip(parts, decode(encode(Packet("work", {}, parts))).arrays, strict=True):
        np.testing.assert_array_equal(mine, its)
        assert its.dtype.isnative


def test_equal_messages_have_equal_bytes():
    """Else a hash, or a signature, of a message would depend on who wrote it."""
    one = Packet("work", {"b": 1, "a": {"d": 2, "c": 3}}, (np.arange(4).reshape(2, 2),))
    other = Packet("work", {"a": {"c": 3, "d": 2}, "b": 1}, (np.arange(4).reshape(2, 2).T.copy().T,))
    assert encode(one) == encode(other)
    assert encode(one) != encode(one._replace(fields={"a": {"c": 3, "d": 2}, "b": 2}))
    assert encode(one) != encode(one._replace(arrays=(np.arange(4).reshape(2, 2) + 1,)))


def test_a_message_has_no_numbers_that_json_has_not():
    with pytest.raises(ValueError, match="JSON"):
        encode(Packet("work", {"progress": float("nan")}))


# --- trees ------------------------------------------------------------------------------------------------------------

TREE = {
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(4), (2, 2)),
    "w": (jnp.ones((2, 3)), jnp.bfloat16(2.5)),
    "none": (),
}


def test_trees_come_back_with_their_random_keys():
    came = unpacked(decode(encode(Packet("work", {}, packed(TREE)))).arrays, TREE, "a tree")
    assert jax.tree.structure(came) == jax.tree.structure(TREE)
    np.testing.assert_array_equal(came["w"][0], TREE["w"][0])
    assert came["w"][1].dtype == jnp.bfloat16 and came["w"][1] == 2.5
    for name in ("key", "keys"):
        assert came[name].dtype == TREE[name].dtype
        assert jnp.all(came[name] == TREE[name])
    assert not jnp.all(jax.random.bits(came["key"]) == jax.random.bits(jax.random.key(4)))


def test_shapes_stand_for_the_tree_that_is_due():
    like = jax.eval_shape(lambda: TREE)
    assert jnp.all(unpacked(packed(TREE), like, "a tree")["key"] == TREE["key"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda parts: parts[:-1], "The message has 3 arrays for a tree, which has 4."),
        (lambda parts: (*parts, np.zeros(1)), "The message has 5 arrays for a tree, which has 4."),
        (
            lambda parts: (*parts[:2], parts[2].T, parts[3]),
            "The message has float32[3, 2] for a tree, where float32[2, 3] is due.",
        ),
        (
            lambda parts: (*parts[:2], parts[2].astype(np.float64), parts[3]),
            "The message has float64[2, 3] for a tree, where float32[2, 3] is due.",
        ),
        (
            lambda parts: (parts[0][:1], *parts[1:]),
            "The message has uint32[1] for a tree, where uint32[2] is due.",
        ),
    ],
)
def test_a_tree_of_another_form_is_refused(change, sentence):
    with pytest.raises(PacketError) as error:
        unpacked(change(packed(TREE)), TREE, "a tree")
    assert str(error.value) == sentence


# --- bytes of strangers -----------------------------------------------------------------------------------------------


def assert_harmless(data):
    """Either a message of plain parts, or a :class:`PacketError`."""
    try:
        message = decode(data)
    except PacketError:
        return
    encode(message)  # what was accepted can be sent
    assert sum(array.nbytes for array in message.arrays) <= len(data)


def test_a_message_that_is_cut_off_is_refused():
    for length in range(len(BYTES)):
        with pytest.raises(PacketError):
            decode(BYTES[:length])


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=300)
def test_random_bytes_are_harmless(data, has_magic):
    assert_harmless((b"EVENHAND" if has_magic else b"") + data)


@given(st.binary(max_size=60), st.binary(max_size=20))
@settings(max_examples=200)
def test_random_headers_are_harmless(header, rest):
    assert_harmless(raw(header, rest))


@given(st.dictionaries(st.sampled_from(["kind", "fields", "arrays", "more"]), JSON), st.binary(max_size=8))
@settings(max_examples=300)
def test_headers_of_other_objects_are_harmless(header, rest):
    assert_harmless(raw(header, rest))


@given(st.lists(st.tuples(st.sampled_from([*TYPES, "object", "<U8"]), st.lists(st.integers(-1, 2**62)))))
@settings(max_examples=300)
def test_announced_shapes_are_harmless(entries):
    assert_harmless(announcing(*map(list, entries), arrays=bytes(16)))


def test_flipped_bits_are_harmless():
    for position in range(8 * len(BYTES)):
        data = bytearray(BYTES)
        data[position // 8] ^= 1 << position % 8
        assert_harmless(bytes(data))


HEADER = {"kind": "work", "fields": {}, "arrays": []}
DAMAGED = {
    "nothing": b"",
    "the beginning alone": b"EVENHAND",
    "another magic": raw(HEADER, magic=b"EVENHANE"),
    "a pickle": b"\x80\x04\x95" + bytes(30),
    "bytes after the arrays": BYTES + b"\0",
    "a length beyond the end": b"EVENHAND" + b"\xff\xff\xff\xff" + b"{}",
    "a header that is a list": raw([1, 2]),
    "a header that is a number": raw(b"3"),
    "a header that is no UTF-8": raw(b'{"kind": "\xff", "fields": {}, "arrays": []}'),
    "a header of two values": raw(json.dumps(HEADER).encode() * 2),
    "no kind": raw({"fields": {}, "arrays": []}),
    "a kind that is a number": raw({**HEADER, "kind": 3}),
    "fields that are a list": raw({**HEADER, "fields": []}),
    "arrays that are an object": raw({**HEADER, "arrays": {}}),
    "NaN": raw(b'{"kind": "work", "fields": {"a": NaN}, "arrays": []}'),
    "infinity": raw(b'{"kind": "work", "fields": {"a": -Infinity}, "arrays": []}'),
    "a number that overflows to infinity": raw(b'{"kind": "work", "fields": {"a": 1e999}, "arrays": []}'),
    "a number of too many digits": raw(
        b'{"kind": "work", "fields": {"a": ' + b"9" * 5000 + b'}, "arrays": []}'
    ),
    "the same name twice": raw(b'{"kind": "work", "kind": "pass", "fields": {}, "arrays": []}'),
    "the same field twice": raw(b'{"kind": "work", "fields": {"tag": 1, "tag": 2}, "arrays": []}'),
    "an object of many layers": raw(
        b'{"kind": "work", "arrays": [], "fields": {"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}}"
    ),
    "an unknown type": announcing(["complex64", [1]], arrays=bytes(8)),
    "objects": announcing(["object", [1]], arrays=bytes(8)),
    "a type that is a list": announcing([["float32"], [1]], arrays=bytes(4)),
    "a type in the other byte order": announcing([">f4", [1]], arrays=bytes(4)),
    "a negative size": announcing(["float32", [-1]], arrays=bytes(4)),
    "two negative sizes": announcing(["float32", [-1, -1]], arrays=bytes(4)),
    "a size that is a float": announcing(["float32", [1.0]], arrays=bytes(4)),
    "a size that is a bool": announcing(["float32", [True]], arrays=bytes(4)),
    "a shape that is a number": announcing(["float32", 1], arrays=bytes(4)),
    "a third entry": announcing(["float32", [1], 0], arrays=bytes(4)),
    "more than came": announcing(["float32", [2]], arrays=bytes(4)),
    "a terabyte": announcing(["float64", [2**39]], arrays=bytes(8)),
    "a product beyond any integer": announcing(["float64", [2**39] * 30], arrays=bytes(8)),
    "nothing, of sizes beyond any integer": announcing(["float64", [0, 2**39, 2**39, 2**39]]),
    "more arrays than anyone sends": announcing(*[["bool", [0]]] * (2**15 + 1)),
    "more dimensions than NumPy has": announcing(["float32", [1] * 100], arrays=bytes(4)),
    "numbers between false and true": announcing(["bool", [1]], arrays=b"\x02"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_message_is_refused_with_a_sentence(name):
    with pytest.raises(PacketError) as error:
        decode(DAMAGED[name])
    assert str(error.value).endswith(".") and len(str(error.value)) < 200


def test_no_message_has_more_arrays_than_are_read():
    """A state that was saved could not be read again."""
    arrays = (np.zeros(0),) * 2**15
    assert len(decode(encode(Packet("work", {}, arrays))).arrays) == 2**15
    with pytest.raises(PacketError, match="A message has 32,769 arrays, and at most 32,768 are read"):
        encode(Packet("work", {}, (*arrays, np.zeros(0))))


def test_a_message_costs_no_more_memory_than_came():
    """What a header announces is not made room for before it is there."""
    filling = bytes(10**6)
    attempts = [
        announcing(["float64", [2**39]], arrays=filling),
        announcing(*[["float64", [125_000]]] * 1000, arrays=filling),
        announcing(*[["float64", [0, 2**39]]] * 1000, arrays=filling),
        raw(b"[" * 10**6),
        raw(b"\x00" * 10**6),
        b"EVENHAND" + (2**24).to_bytes(4, "little") + filling,
    ]
    for data in attempts:
        tracemalloc.start()
        with pytest.raises(PacketError):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 * len(data)
