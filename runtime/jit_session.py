"""Object code is loaded into this process by one JIT session, which makes a library of each object."""

import itertools
import threading
from collections.abc import Mapping, Sequence
from ctypes import py_object, pythonapi
from dataclasses import dataclass

import llvmlite.binding as llvm

from ..core.errors import CompileError, UnsupportedTarget

_X86_64 = 62
"""The number of x86-64 among ELF's machines. It is the one that runs here (see ``runtime.hardware.host_target``)."""


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """Code that is loaded. It is unmapped when the last reference to ``tracker`` goes."""

    addresses: Mapping[str, int]
    tracker: llvm.ResourceTracker


class _JitSession:
    """The process's JIT. It is made when it is first needed and never torn down, because threads of the pool run its
    code to the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jit: llvm.LLJIT | None = None
        self._numbers = itertools.count()

    def load(self, code: bytes, exports: Sequence[str], imports: Mapping[str, int]) -> LoadedLibrary:
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name, address in imports.items():
            builder.import_symbol(name, address)
        for name in exports:
            builder.export_symbol(name)
        with self._lock:
            if self._jit is None:
                self._jit = llvm.create_lljit_compiler(suppress_errors=True)
                _make_immortal(self._jit)
            try:
                tracker = builder.link(self._jit, f"tilewright-{next(self._numbers)}")
            except RuntimeError as error:
                raise CompileError(f"the object does not load: {error}") from error
        return LoadedLibrary({name: tracker[name] for name in exports}, tracker)


_SESSION = _JitSession()


def load_object(code: bytes, exports: Sequence[str], imports: Mapping[str, int]) -> LoadedLibrary:
    """Map ``code`` (a relocatable ELF object) and resolve the symbols that it needs from ``imports`` and the process.

    Raises CompileError when a symbol is missing or the object is damaged, and UnsupportedTarget when it is for another
    machine.
    """
    if code[:4] != b"\x7fELF" or code[16:18] != b"\x01\x00":
        raise CompileError(f"{len(code)} bytes that are no relocatable ELF object")
    machine = int.from_bytes(code[18:20], "little")
    if machine != _X86_64:
        raise UnsupportedTarget(f"an object for ELF machine {machine}; this machine runs {_X86_64}", field="target")
    return _SESSION.load(code, exports, imports)


def keep_loaded(library: LoadedLibrary) -> LoadedLibrary:
    """Never unmap ``library``. Threads may be running its code when the interpreter ends."""
    _make_immortal(library.tracker)
    return library


def _make_immortal(value: object) -> None:
    """Take a reference that is never released, so that not even the end of the interpreter frees the object."""
    pythonapi.Py_IncRef(py_object(value))
