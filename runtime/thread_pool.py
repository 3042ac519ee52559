"""Native thread pools, one for each number of threads, and the other native services that kernels need."""

import os
import threading
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, c_double, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property

from ..codegen.backend import Source
from ..codegen.llvm.architectures import ARCHITECTURES
from ..codegen.llvm.compile import compile_source
from ..codegen.llvm.runtime_support import SPINS, services_ir, thread_pool_ir
from ..core.errors import InvalidParameter
from ..core.target import Target
from .jit_session import LoadedLibrary, keep_loaded, load_object

MAX_THREADS = 1024
OVERSUBSCRIBED_SPINS = 20
"""This replaces ``SPINS`` where there are more threads than cores: spinning would keep the others from working."""

_HERE = ARCHITECTURES["x86-64"]
_BASELINE = Target("llvm", "x86-64", ("cx16",))
_RUN = CFUNCTYPE(None, c_void_p, c_int64)
_TIME = CFUNCTYPE(c_double, c_void_p, c_void_p, c_int64, c_int64)


@dataclass(frozen=True)
class NativeServices:
    """The native services that do not depend on the number of threads."""

    library: LoadedLibrary

    @property
    def scratch(self) -> int:
        return self.library.addresses["tilewright_scratch"]

    @cached_property
    def run(self) -> Callable[[int, int], None]:
        """Calls functions in a row: the address of pairs of a function and its arguments, and how many there are."""
        return _RUN(self.library.addresses["tilewright_run"])

    def time(self, function: int, argument_sets: int, count: int, launches: int) -> float:
        """Return the seconds that ``launches`` calls take. ``argument_sets`` is the address of ``count`` argument
        arrays."""
        timer = _TIME(self.library.addresses["tilewright_time"])
        return float(timer(function, argument_sets, count, launches))


class _ThreadPools:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread_pools: dict[int, LoadedLibrary] = {}
        self._services: NativeServices | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def parallel_for(self, threads: int) -> int:
        with self._lock:
            if threads not in self._thread_pools:
                spins = SPINS if threads <= len(os.sched_getaffinity(0)) else OVERSUBSCRIBED_SPINS
                exports = ("tilewright_parallel_for", "tilewright_after_fork")
                self._thread_pools[threads] = keep_loaded(load_native(thread_pool_ir(_HERE, threads, spins), exports))
            return self._thread_pools[threads].addresses["tilewright_parallel_for"]

    def native_services(self) -> NativeServices:
        with self._lock:
            if self._services is None:
                exports = ("tilewright_prepare", "tilewright_run", "tilewright_scratch", "tilewright_time")
                library = keep_loaded(load_native(services_ir(_HERE), exports))
                CFUNCTYPE(None)(library.addresses["tilewright_prepare"])()
                self._services = NativeServices(library)
            return self._services

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        for library in self._thread_pools.values():
            CFUNCTYPE(None)(library.addresses["tilewright_after_fork"])()


def load_native(text: str, exports: tuple[str, ...], imports: Mapping[str, int] | None = None) -> LoadedLibrary:
    """Compile LLVM IR for any processor of the architecture, and load it (``load_object``). Raises CompileError."""
    binary = compile_source(Source("llvm-ir", text, exports[0], ()), _BASELINE)
    return load_object(binary.code, exports, imports or {})


_THREAD_POOLS = _ThreadPools()


def parallel_for_address(threads: int) -> int:
    """Return the address of ``void (fn, env, tasks)`` of this process's pool of ``threads`` threads, the caller
    included.

    The threads start with the first loop, sleep when idle, and end with the process. A forked child gets its own.
    Raises InvalidParameter for a number that is not allowed.
    """
    if not 1 <= threads <= MAX_THREADS:
        raise InvalidParameter(f"{threads} threads; allowed: 1 to {MAX_THREADS}", field="threads")
    return _THREAD_POOLS.parallel_for(threads)


def native_services() -> NativeServices:
    """Return the native services of this process. The first call compiles them."""
    return _THREAD_POOLS.native_services()
