"""A guard of tensors: whether a model's weights are those of its last call.

A model has hundreds of weights, and Python takes 0.1 us for the address and the version of each. One native call
compares them all, in about 15 ns each. It looks into Python's objects for their ``at::Tensor`` and calls two functions
that torch exports. Where one of these is missing, or a trial fails, Python compares.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence, Set
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..core.errors import TilewrightError
from ..runtime.jit_session import keep_loaded
from ..runtime.thread_pool import load_native

_ADDRESS, _VERSION = "aoti_torch_get_data_ptr", "_ZNK2at10TensorBase8_versionEv"
"""The latter is ``at::TensorBase::_version() const``. It throws for a tensor that counts no changes."""
_PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.py_object, ctypes.c_void_p, ctypes.c_int64)
_TEXT = """
define zeroext i1 @tilewright_unchanged(ptr %list, ptr %table, i64 %count) {
entry:
  %place = alloca i64, align 8
  br label %each
each:
  %n = phi i64 [ 0, %entry ], [ %n.next, %next ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %item, label %done
item:
  %row = getelementptr [4 x i64], ptr %table, i64 %n
  %position = load i64, ptr %row, align 8
  %object = call ptr @PyList_GetItem(ptr %list, i64 %position)
  %fails = icmp eq ptr %object, null
  br i1 %fails, label %done, label %implementation
implementation:
  %tensor = getelementptr i8, ptr %object, i64 __OFFSET__
  %implementation.before = getelementptr i64, ptr %row, i64 1
  %held = load i64, ptr %implementation.before, align 8
  %given = load i64, ptr %tensor, align 8
  %same = icmp eq i64 %given, %held
  br i1 %same, label %address, label %done
address:
  %error = call i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %place)
  %known = icmp eq i32 %error, 0
  %address.before = getelementptr i64, ptr %row, i64 2
  %before = load i64, ptr %address.before, align 8
  %now = load i64, ptr %place, align 8
  %stays = icmp eq i64 %now, %before
  %lies = and i1 %known, %stays
  br i1 %lies, label %version, label %done
version:
  %version.before = getelementptr i64, ptr %row, i64 3
  %old = load i64, ptr %version.before, align 8
  %counts = icmp sge i64 %old, 0
  br i1 %counts, label %changes, label %next
changes:
  %new = call i64 @_ZNK2at10TensorBase8_versionEv(ptr %tensor)
  %still = icmp eq i64 %new, %old
  br i1 %still, label %next, label %done
next:
  %n.next = add i64 %n, 1
  br label %each
done:
  %result = phi i1 [ true, %each ], [ false, %item ], [ false, %implementation ], [ false, %address ],
    [ false, %changes ]
  ret i1 %result
}

declare ptr @PyList_GetItem(ptr, i64)
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare i64 @_ZNK2at10TensorBase8_versionEv(ptr)
"""

Comparison = Callable[[list[Any], int, int], bool]
"""Whether tensors of a list are those of a table, of this address and so many rows. Raises IndexError for a list that
is too short."""


class TensorGuard:
    """``guard(given)`` says whether the list has the tensors that the guard was made for at their positions, and they
    have neither moved nor been written to, as far as torch counts that. Parameters count as written to once an
    optimizer has taken a step, because fused optimizers do not count. The guard holds the tensors, but no memory that
    they have left. Raises IndexError for a list that is too short."""

    def __init__(self, tensors: Sequence[Any], positions: Sequence[int], compare: Comparison | None = None) -> None:
        self._tensors = tuple(tensors)
        self._table = _table(tensors, positions)
        self._arguments = ctypes.addressof(self._table), len(tensors)
        self._compare = compare or comparison()
        self._broken: list[object] = []  # what makes it useless: other tensors may lie where freed memory lay
        self._storages = [ref(t.untyped_storage(), self._broken.append) for t in tensors]
        _watch_optimizers()
        with _lock:
            _guards.add(self)

    def __call__(self, given: list[Any]) -> bool:
        return not self._broken and self._compare(given, *self._arguments)

    def written(self, tensors: Set[int]) -> None:
        """Break the guard if it has any of these tensors, by their ``id``."""
        if not self._broken and not tensors.isdisjoint(map(id, self._tensors)):
            self._broken.append(tensors)


_guards: "WeakSet[TensorGuard]" = WeakSet()
_lock = threading.Lock()


@cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(torch.compiler.disable(_after_step))


def _after_step(optimizer: Any, _arguments: object, _keywords: object) -> None:
    with _lock:
        guards = list(_guards)
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for guard in guards:
        guard.written(parameters)


def _table(tensors: Sequence[Any], positions: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Return a row for each tensor: its position, its implementation, its address, and its version, or -1 where it
    counts no changes."""
    rows = [(n, t._cdata, t.data_ptr(), _version(t)) for n, t in zip(positions, tensors, strict=True)]
    return (ctypes.c_int64 * (4 * len(rows)))(*chain(*rows))


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # it was made in inference mode
        return -1


@cache
def comparison() -> Comparison:
    """Return the native comparison, or else that of Python."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), os.RTLD_NOLOAD)
        functions = {"PyList_GetItem": ctypes.pythonapi.PyList_GetItem} | {n: library[n] for n in (_ADDRESS, _VERSION)}
        with torch.inference_mode(False):
            found = _native({name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in functions.items()})
            return found if _works(found) else compare_in_python
    except (OSError, AttributeError, ValueError, TilewrightError):
        return compare_in_python


def _native(functions: dict[str, int]) -> Comparison:
    """Return the native comparison. Raises ValueError where a tensor's object does not have its implementation."""
    tensor = torch.empty(0, device="cpu")
    words = (ctypes.c_int64 * (torch._C.TensorBase.__basicsize__ // 8)).from_address(id(tensor))
    text = _TEXT.replace("__OFFSET__", str(8 * words[:].index(tensor._cdata)))
    library = keep_loaded(load_native(text, ("tilewright_unchanged",), functions))
    return _PROTOTYPE(library.addresses["tilewright_unchanged"])


def _works(compare: Comparison) -> bool:
    tensors = [torch.zeros(2, device="cpu"), torch.zeros(2, device="cpu")[1:]]
    table = _table(tensors, (0, 1))
    same = compare(tensors, ctypes.addressof(table), 2)
    tensors[1].add_(1)
    return same and not compare(tensors, ctypes.addressof(table), 2)


def compare_in_python(given: list[Any], table: int, count: int) -> bool:
    """Do what native code does."""
    before = (ctypes.c_int64 * (4 * count)).from_address(table)[:]
    positions = before[::4]
    return before == _table([given[n] for n in positions], positions)[:]
