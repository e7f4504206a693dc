"""Instructions of processors, as LLVM code that numba compiles.

Kernels for one family of processors are made without a compiler of C. Addresses are whole numbers, and
loads and stores take any address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeAlias, TypeVar

from recbench_spark.core.compiling import numba

LANES = 16
"""Whole numbers in one vector, and items in one group."""

ROWS, GROUPS, CHUNK, SIDES = 6, 4, 32, 8
"""Rows and groups of 16-bit numbers multiplied together; pairs of dimensions added before a shift; items
whose exact sums are made side by side. A tile's groups are a multiple of GROUPS, also with 8 bits."""

Function = TypeVar("Function", bound=Callable[..., Any])
Value: TypeAlias = Any
"""A value in LLVM's language."""

Turn: TypeAlias = Callable[[Value, list[Value]], tuple[Value, list[Value]]]

CODE, ITEMS, SHARES, STEPS, USERS, ONES, LOWS, PLACES, VALUES, COUNTS, ROOM = range(11)
"""Places in a job, an int64 array; `families.count_reached` says what each holds."""

if numba is not None:
    from llvmlite import ir
    from numba import extending, types
    from numba.core import cgutils

    intrinsic: Callable[[Function], Any] = extending.intrinsic

    BIT, BYTE, HALF, WORD, LONG = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
    REAL, NOTHING, POINTER = ir.FloatType(), ir.VoidType(), ir.IntType(8).as_pointer()
    WORDS, BYTES, REALS, BITS = (
        ir.VectorType(kind, lanes) for kind, lanes in ((WORD, 16), (BYTE, 64), (REAL, 16), (BIT, 16))
    )
    ZEROS = ir.Constant(WORDS, [0] * LANES)


def make_vector(kind: Any, lanes: int) -> Any:
    """Return the type of a vector."""
    return ir.VectorType(kind, lanes)


def make_zeros(kind: Any) -> Any:
    """Return a vector of whole numbers 0."""
    return ir.Constant(kind, [0] * kind.count)


def make_instruction(emit: Callable[[Writer, Any, Any, Any], None]) -> Any:
    """Make a function (job, group, row) for kernels from LLVM code.

    Args:
        emit: writes the code; takes the job's address, and the first group and row to multiply.
    """
    if numba is None:
        return None

    def write(context: Any, builder: Any, _: Any, values: Any) -> Any:
        emit(Writer(context, builder, values[0]), *values)
        return context.get_dummy_value()

    @intrinsic
    def instruction(_: Any, job: Any, group: Any, row: Any) -> Any:
        return types.void(types.intp, types.intp, types.intp), write

    return instruction


def _emit_call(writer: Writer, job: Any, groups: Any, rows: Any) -> None:
    kind = ir.FunctionType(NOTHING, [LONG] * 3).as_pointer()
    writer.builder.call(writer.builder.inttoptr(writer.read(CODE), kind), [job, groups, rows])


run_code = make_instruction(_emit_call)
"""Function (job, groups, rows): runs the job's code on all of them."""


class Writer:
    """A writer of LLVM code at a builder's place; some write for a job.

    `features`: the processor's, by LLVM's names.
    """

    def __init__(self, context: Any, builder: Any, job: Value = None) -> None:
        self.builder, self.job = builder, job
        self.features: str = context.codegen().magic_tuple()[2]

    def call(self, name: str, result: Any, *values: Any) -> Any:
        """Call an instruction by LLVM's name for it."""
        kind = ir.FunctionType(result, [one.type for one in values])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, values)

    def read(self, place: int) -> Any:
        """Return what stands at this place in the job."""
        return self.load(LONG, self.at(self.job, LONG(place), 8))

    def at(self, address: Any, count: Any, size: Any) -> Any:
        """Return address + count x size."""
        size = LONG(size) if isinstance(size, int) else size
        return self.builder.add(address, self.builder.mul(count, size))

    def load(self, kind: Any, address: Any) -> Any:
        """Load a value."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=1)

    def store(self, value: Any, address: Any) -> None:
        """Store a value."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=1)

    def open(self, context: Any, signature: Any, arguments: Any, place: int) -> tuple[Value, Value]:
        """Return the address and last length of an array among arguments."""
        kind = signature.args[place]
        array = context.make_array(kind)(context, self.builder, arguments[place])
        last = self.builder.extract_value(array.shape, kind.ndim - 1)
        return self.builder.ptrtoint(array.data, LONG), last

    def pack(self, *values: Value) -> Value:
        """Return values as one, as Python's tuples are."""
        return cgutils.pack_array(self.builder, values)

    def spread(self, value: Value, lanes: int = LANES) -> Value:
        """Return a vector with this value in all lanes."""
        none = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        return self.pick(self.builder.insert_element(none, value, WORD(0)), none, [0] * lanes)

    def split(self, vector: Value, parts: int) -> list[Value]:
        """Return a vector's parts."""
        lanes = vector.type.count // parts
        places = [range(first, first + lanes) for first in range(0, parts * lanes, lanes)]
        return [self.pick(vector, vector, one) for one in places]

    def join(self, parts: Sequence[Value]) -> Value:
        """Return one vector or two as one."""
        return self.pick(parts[0], parts[-1], range(len(parts) * parts[0].type.count))

    def pick(self, left: Value, right: Value, places: Sequence[int]) -> Value:
        """Return the lanes at these places among both vectors'."""
        kind = ir.VectorType(WORD, len(places))
        return self.builder.shuffle_vector(left, right, ir.Constant(kind, list(places)))

    def is_any(self, masks: Sequence[Value]) -> Value:
        """Return whether a lane of any mask is set."""
        any_lane = reduce(self.builder.or_, masks)
        bits = ir.IntType(any_lane.type.count)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(any_lane, bits), bits(0))

    def compress(self, mask: Value, end: Value, *vectors: tuple[Value, Value]) -> Value:
        """Store set lanes from number `end` on; return the new end.

        Args:
            mask: of 16 lanes; the rest of the 16 is overwritten.
            end: how many numbers stand there.
            vectors: vectors of 16 numbers, each with its address.
        """
        if "+avx512f," not in self.features:
            return self._store_lanes(mask, end, vectors)
        for vector, address in vectors:
            packed = self.call("llvm.x86.avx512.mask.compress.v16i32", WORDS, vector, ZEROS, mask)
            self.store(packed, self.at(address, end, 4))
        more = self.call("llvm.ctpop.i16", HALF, self.builder.bitcast(mask, HALF))
        return self.builder.add(end, self.builder.zext(more, LONG))

    def _store_lanes(self, mask: Value, end: Value, vectors: Sequence[tuple[Value, Value]]) -> Value:
        for lane in map(WORD, range(LANES)):
            for vector, address in vectors:
                self.store(self.builder.extract_element(vector, lane), self.at(address, end, 4))
            more = self.builder.extract_element(mask, lane)
            end = self.builder.add(end, self.builder.zext(more, LONG))
        return end

    def repeat(self, first: Value, stop: Value | None, values: Sequence[Value], body: Turn) -> list[Value]:
        """Write a loop that runs once at least; return its last values.

        Args:
            first: the index.
            stop: runs while the index is below; None: until it is 0.
            values: what the first turn gets.
            body: writes a turn; takes the index and values, and returns the next ones.
        """
        builder, entry = self.builder, self.builder.block
        loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        index, kept = builder.phi(LONG), [builder.phi(one.type) for one in values]
        following, new = body(index, list(kept))
        for phi, start, value in zip([index, *kept], [first, *values], [following, *new], strict=True):
            phi.add_incoming(start, entry)
            phi.add_incoming(value, builder.block)
        more = (
            builder.icmp_unsigned("!=", following, LONG(0))
            if stop is None
            else builder.icmp_signed("<", following, stop)
        )
        builder.cbranch(more, loop, end)
        builder.position_at_end(end)
        return new

    def repeat_any(self, first: Value, stop: Value, values: Sequence[Value], body: Turn) -> list[Value]:
        """Write a loop as `repeat` that may run no time."""
        builder, before = self.builder, self.builder.block
        with builder.if_then(builder.icmp_signed("<", first, stop)):
            new, inside = self.repeat(first, stop, values, body), builder.block
        out = [builder.phi(one.type) for one in values]
        for phi, start, last in zip(out, values, new, strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(last, inside)
        return out

    def make_room(self, size: int) -> Any:
        """Return the address of so many bytes, which last for one call."""
        kind = ir.ArrayType(BYTE, size)
        room = cgutils.alloca_once(self.builder, kind)
        room.align = 64
        return self.builder.ptrtoint(room, LONG)

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """Repeat what is written; give the number of the turn."""
        with cgutils.for_range(self.builder, count, intp=LONG) as turns:
            yield turns.index

    def whole_biases(self, group: Any, row: Any) -> Any:
        """Return round(share x one) for a group and a row: b / (a c)."""
        share = self.load(REALS, self.at(self.read(SHARES), group, 4 * LANES))
        one = self.spread(self.load(REAL, self.at(self.read(ONES), row, 4)))
        whole = self.call("llvm.rint.v16f32", REALS, self.builder.fmul(share, one))
        return self.builder.fptosi(whole, WORDS)

    def append_reaching(self, rows: Sequence[tuple[Any, Any, Sequence[Any]]]) -> None:
        """Append products that reach their row's limit.

        One branch skips all of them if none does.

        Args:
            rows: a row, its first group, and products with that group and the next ones.
        """
        builder, marked = self.builder, []
        for row, group, products in rows:
            low = self.spread(self.load(WORD, self.at(self.read(LOWS), row, 4)))
            marked.append((row, group, [(one, builder.icmp_signed(">=", one, low)) for one in products]))
        with builder.if_then(self.is_any([mask for *_, products in marked for _, mask in products])):
            for row, group, products in marked:
                self._append(row, group, products)

    def _append(self, row: Any, group: Any, products: Sequence[tuple[Any, Any]]) -> None:
        builder = self.builder
        counted, first = self.at(self.read(COUNTS), row, 8), builder.mul(row, self.read(ROOM))
        count, begin = self.load(LONG, counted), builder.trunc(builder.mul(group, LONG(LANES)), WORD)
        fields = [self.at(self.read(field), first, 4) for field in (PLACES, VALUES)]
        for at, (values, mask) in enumerate(products):
            steps = ir.Constant(WORDS, [LANES * at + lane for lane in range(LANES)])
            places = builder.add(self.spread(begin), steps)
            count = self.compress(mask, count, *zip((places, values), fields, strict=True))
        self.store(count, counted)
