"""Object code in this process: one JIT session, one library for each object that is loaded."""

import itertools
import threading
from collections.abc import Mapping, Sequence
from ctypes import py_object, pythonapi
from dataclasses import dataclass

import llvmlite.binding as llvm

from ..core.errors import CompileError, UnsupportedTarget

_X86_64 = 62
"""Its number among ELF's machines: the one that runs here (see ``runtime.hardware.host_target``)."""


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """Loaded code; it is unmapped when the last reference to ``tracker`` goes."""

    addresses: Mapping[str, int]
    tracker: llvm.ResourceTracker


class _JitSession:
    """The process's JIT, made when it is first needed and never torn down: pool threads run its code to the end."""

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
    """Map ``code`` (a relocatable ELF object) and resolve what it needs from ``imports`` and the process.

    Raises CompileError when a symbol is missing or the object is damaged, UnsupportedTarget when it is another
    machine's.
    """
    if code[:4] != b"\x7fELF" or code[16:18] != b"\x01\x00":
        raise CompileError(f"{len(code)} bytes that are no relocatable ELF object")
    machine = int.from_bytes(code[18:20], "little")
    if machine != _X86_64:
        raise UnsupportedTarget(f"an object for ELF machine {machine}; this machine runs {_X86_64}", field="target")
    return _SESSION.load(code, exports, imports)


def keep_loaded(library: LoadedLibrary) -> LoadedLibrary:
    """Never unmap ``library``: for code that threads may be running when the interpreter ends."""
    _make_immortal(library.tracker)
    return library


def _make_immortal(value: object) -> None:
    """Take a reference that is never given back, so that not even the end of the interpreter disposes of it."""
    pythonapi.Py_IncRef(py_object(value))
