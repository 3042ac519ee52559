"""The largest error of many float32 elements is computed natively, because NumPy would go through the same memory
ten times."""

from ctypes import CFUNCTYPE, c_double, c_int64, c_void_p
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import Source
from ..codegen.llvm.compile import compile_source
from .hardware import host_target
from .jit_session import LoadedLibrary, keep_loaded, load_object

LANES = 8
_NAME = "tilewright_largest_error"
_FUNCTION = CFUNCTYPE(c_double, c_void_p, c_void_p, c_int64, c_double, c_double)
_TEXT = """
declare <8 x double> @llvm.fabs.v8f64(<8 x double>)
declare <8 x double> @llvm.maximum.v8f64(<8 x double>, <8 x double>)
declare double @llvm.vector.reduce.fmaximum.v8f64(<8 x double>)

define double @tilewright_largest_error(ptr %got, ptr %want, i64 %count, double %absolute, double %relative) {
entry:
  %a0 = insertelement <8 x double> poison, double %absolute, i64 0
  %a = shufflevector <8 x double> %a0, <8 x double> poison, <8 x i32> zeroinitializer
  %r0 = insertelement <8 x double> poison, double %relative, i64 0
  %r = shufflevector <8 x double> %r0, <8 x double> poison, <8 x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %worst = phi <8 x double> [ zeroinitializer, %entry ], [ %larger, %loop ]
  %got.at = getelementptr float, ptr %got, i64 %i
  %narrow = load <8 x float>, ptr %got.at, align 4
  %g = fpext <8 x float> %narrow to <8 x double>
  %want.at = getelementptr double, ptr %want, i64 %i
  %w = load <8 x double>, ptr %want.at, align 8
  %difference = fsub <8 x double> %g, %w
  %distance = call <8 x double> @llvm.fabs.v8f64(<8 x double> %difference)
  %size = call <8 x double> @llvm.fabs.v8f64(<8 x double> %w)
  %scaled = fmul <8 x double> %r, %size
  %allowed = fadd <8 x double> %a, %scaled
  %error = fdiv <8 x double> %distance, %allowed
  %larger = call <8 x double> @llvm.maximum.v8f64(<8 x double> %worst, <8 x double> %error)
  %next = add nuw i64 %i, 8
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  %largest = call double @llvm.vector.reduce.fmaximum.v8f64(<8 x double> %larger)
  ret double %largest
}
"""


def largest_error(got: NDArray[np.float32], want: NDArray[np.float64], absolute: float, relative: float) -> float:
    """Return the largest of ``|got - want| / (absolute + relative * |want|)`` over all elements, and NaN where any
    is NaN. The number of elements is a multiple of ``LANES`` and not 0. Each step is rounded as NumPy rounds it.
    Other threads of Python may run meanwhile."""
    function = _FUNCTION(_library().addresses[_NAME])
    return float(function(got.ctypes.data, want.ctypes.data, len(got), absolute, relative))


@cache
def _library() -> LoadedLibrary:
    target = host_target()
    binary = compile_source(Source("llvm-ir", _TEXT, _NAME, ()), target)
    return keep_loaded(load_object(binary.code, (_NAME,), {}))
