"""Instructions of processors, as LLVM code that numba compiles.

Kernels for one family of processors are made without a compiler of C. Addresses are whole numbers, and
loads and stores take any address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recbench_spark.core.compiling import numba

LANES = 16
"""Whole numbers in one vector, and items in one group."""

CODE, ITEMS, SHARES, STEPS, USERS, ONES, LOWS, PLACES, VALUES, COUNTS, ROOM = range(11)
"""Places in a job, an int64 array; `families.count_reached` says what each holds."""

if numba is not None:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    BIT, BYTE, HALF, WORD, LONG = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
    REAL, NOTHING, POINTER = ir.FloatType(), ir.VoidType(), ir.IntType(8).as_pointer()
    WORDS, BYTES, REALS, BITS = (
        ir.VectorType(kind, lanes) for kind, lanes in ((WORD, 16), (BYTE, 64), (REAL, 16), (BIT, 16))
    )
    ZEROS = ir.Constant(WORDS, [0] * LANES)


def make_instruction(emit: Callable[[Writer, Any, Any, Any], None]) -> Any:
    """Make a function (job, group, row) for kernels from LLVM code.

    Args:
        emit: writes the code; takes the job's address, and the first group and row to multiply.
    """
    if numba is None:
        return None

    def write(context: Any, builder: Any, _: Any, values: Any) -> Any:
        emit(Writer(builder, values[0]), *values)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def instruction(_: Any, job: Any, group: Any, row: Any) -> Any:
        return types.void(types.intp, types.intp, types.intp), write

    return instruction


def _emit_call(writer: Writer, job: Any, groups: Any, rows: Any) -> None:
    kind = ir.FunctionType(NOTHING, [LONG] * 3).as_pointer()
    writer.builder.call(writer.builder.inttoptr(writer.read(CODE), kind), [job, groups, rows])


run_code = make_instruction(_emit_call)
"""Function (job, groups, rows): runs the job's code on all of them."""


class Writer:
    """A writer of LLVM code at a builder's place, for one job."""

    def __init__(self, builder: Any, job: Any) -> None:
        self.builder, self.job = builder, job

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

    def spread(self, value: Any) -> Any:
        """Return a vector with this value in all lanes."""
        none = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        first = self.builder.insert_element(none, value, WORD(0))
        return self.builder.shuffle_vector(first, none, ir.Constant(WORDS, [0] * LANES))

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
        masks = [mask for _, _, products in marked for _, mask in products]
        any_mask = masks[0]
        for mask in masks[1:]:
            any_mask = builder.or_(any_mask, mask)
        with builder.if_then(builder.icmp_unsigned("!=", builder.bitcast(any_mask, HALF), HALF(0))):
            for row, group, products in marked:
                self._append(row, group, products)

    def _append(self, row: Any, group: Any, products: Sequence[tuple[Any, Any]]) -> None:
        builder, zeros = self.builder, ir.Constant(WORDS, [0] * LANES)
        counted = self.at(self.read(COUNTS), row, 8)
        count, first = self.load(LONG, counted), builder.mul(row, self.read(ROOM))
        begin = builder.trunc(builder.mul(group, LONG(LANES)), WORD)
        for at, (values, mask) in enumerate(products):
            steps = ir.Constant(WORDS, [LANES * at + lane for lane in range(LANES)])
            places = builder.add(self.spread(begin), steps)
            for field, vector in ((PLACES, places), (VALUES, values)):
                packed = self.call("llvm.x86.avx512.mask.compress.v16i32", WORDS, vector, zeros, mask)
                self.store(packed, self.at(self.read(field), builder.add(first, count), 4))
            more = self.call("llvm.ctpop.i16", HALF, builder.bitcast(mask, HALF))
            count = builder.add(count, builder.zext(more, LONG))
        self.store(count, counted)
