"""Device memory: a task's share, and copies during work.

Nothing here needs a GPU: the arithmetic is in plain functions, and on "cpu" copies are plain copies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

CONTEXT = 600 * 2**20
"""GPU bytes a process takes before its first array (CUDA context, libraries)."""

_USED = 0.8  # share of the room: the rest is for temporary arrays outside all estimates
_SHARES: dict[torch.device, float] = {}

_In = TypeVar("_In")
_Out = TypeVar("_Out", bound=tuple[Any, ...])
_Prefetched: TypeAlias = tuple[_In, _Out, torch.cuda.Event | None]


# --------------------------------------------------------------------------------- how much


def memory_fraction(amount: float, total: int) -> float:
    """Return the GPU fraction torch may allocate for a task.

    `amount`: the task's part of the GPU, in (0, 1]. `total`: bytes on the GPU. Each process has a context
    beside its allocations; it never gets less than half its part.
    """
    if amount >= 1.0:
        return 1.0
    return max(amount / 2, amount - CONTEXT / total)


def free_room(free: int, total: int, share: float, reserved: int, allocated: int) -> int:
    """Return how many bytes a process can still allocate.

    `free`: on the device, as the driver reports it. `reserved`, `allocated`: by this process; reserved but
    unused bytes are free for it alone. It may hold at most `share` times `total`.
    """
    return max(0, min(free + reserved - allocated, int(share * total) - allocated))


def users_at_once(room: int, bytes_a_user: float, fixed: int = 0) -> int:
    """Return how many users fit into `room` bytes.

    `fixed` bytes are taken already. At least one user always fits.
    """
    return max(1, int((_USED * room - fixed) / max(1.0, bytes_a_user)))


def limit_memory(device: torch.device, amount: float) -> None:
    """Limit this process to its part of a GPU.

    Tasks on one GPU then do not starve each other.
    """
    if device.type != "cuda" or amount >= 1.0:
        return
    _, total = torch.cuda.mem_get_info(device)
    _SHARES[device] = memory_fraction(amount, total)
    torch.cuda.set_per_process_memory_fraction(_SHARES[device], device)


def device_room(device: torch.device) -> int | None:
    """Return a GPU's `free_room` now.

    None if torch does not count (CPU).
    """
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return free_room(free, total, _SHARES.get(device, 1.0), reserved, allocated)


# ------------------------------------------------------------------------------- how it gets there


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy to the device; a GPU gets it without waiting.

    The copy to a GPU goes through pinned memory.
    """
    if device.type != "cuda":
        return torch.from_numpy(np.array(array)).to(device)
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    pinned = torch.empty(array.shape, dtype=dtype, pin_memory=True)
    pinned.numpy()[...] = array
    return pinned.to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Copy to the CPU and wait.

    From a GPU the copy goes through pinned memory, many times faster.
    """
    if tensor.device.type != "cuda":
        return tensor.numpy()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor).numpy()


def prefetch(
    make: Callable[[_In], _Out], inputs: Iterable[_In], device: torch.device
) -> Generator[tuple[_In, _Out], None, None]:
    """Yield each input with its result, made one step ahead.

    `make` runs in one thread, on a GPU in its own stream: preparing, copying and computing overlap. Two
    results are in memory at once.
    """
    stream = _side_stream(device)

    def make_one(one: _In) -> _Prefetched[_In, _Out]:
        with torch.inference_mode(), _in_stream(stream):
            parts = make(one)
            return one, parts, stream.record_event() if stream is not None else None

    with ThreadPoolExecutor(1) as pool:
        coming: Future[_Prefetched[_In, _Out]] | None = None
        for one in inputs:
            current, coming = coming, pool.submit(make_one, one)
            if current is not None:
                yield _wait_for_copy(current.result(), device)
        if coming is not None:
            yield _wait_for_copy(coming.result(), device)


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # for what `make` may read
    return stream


def _in_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _wait_for_copy(prefetched: _Prefetched[_In, _Out], device: torch.device) -> tuple[_In, _Out]:
    one, parts, event = prefetched
    if event is not None:
        here = torch.cuda.current_stream(device)
        here.wait_event(event)
        for part in parts:
            if isinstance(part, torch.Tensor):
                part.record_stream(here)  # else its memory could be reused while it is read here
    return one, parts
