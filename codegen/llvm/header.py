"""Writes the C header of an exported kernel."""

from collections.abc import Mapping
from textwrap import wrap

from ...core.target import Target
from ..backend import KernelParameter, Source
from ..c_names import KEYWORDS
from .interface import arguments_of, calls_thread_pool, function_name

_TYPES: Mapping[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
}
_NOTES = {
    **dict.fromkeys(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), ", as bits"),
    "bool": ", 0 or 1",
}

_TEMPLATE = """\
/* {name}: a kernel for {target}, written by Tilewright.
{features} *
 * Arrays lie in row-major order without gaps, start at multiples of their elements' size, and what is written overlaps
 * nothing else. Any thread may call; calls run one after the other.{threads}
 * To link kernel.o: the C library, its mathematics, threads (cc ... kernel.o -lm -pthread).
 * From Python: apache-tvm-ffi's load_module("kernel.so").{name}({tensors}), on CPU tensors of any library with DLPack.
 */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/*
{lines}
 */
void {function}({declared});

#ifdef __cplusplus
}}
#endif

#endif
"""
_THREADS = """
 * {count} threads work on a call, the caller among them; the others start with the first call and sleep in between."""


def header(source: Source, name: str, target: Target) -> str:
    """Return the header. It declares the function of ``codegen.llvm.interface`` and says what it takes."""
    arguments = [(_c_name(p.name), p) for p in arguments_of(source)]
    width = max(len(called) for called, _ in arguments)
    lines = [f" * {called:<{width}}  {p.role}, {_shape(p)}" for called, p in arguments]
    declared = [f"{'const ' if p.role == 'input' else ''}{_TYPES[p.dtype.name]} *{called}" for called, p in arguments]
    return _TEMPLATE.format(
        name=name,
        target=target,
        features=_features(target),
        threads=_THREADS.format(count=target.threads) if calls_thread_pool(source) else "",
        tensors=", ".join(called for called, _ in arguments),
        guard=f"TILEWRIGHT_{name.upper()}_H",
        function=function_name(name),
        lines="\n".join(lines),
        declared=", ".join(declared),
    )


def _features(target: Target) -> str:
    """Return the lines that say which extensions the processor must have."""
    if not target.features:
        return ""
    return "".join(f" * {line}\n" for line in wrap(f"It needs {', '.join(target.features)}.", 110))


def _shape(parameter: KernelParameter) -> str:
    return f"{parameter.dtype}[{', '.join(map(str, parameter.shape))}]{_NOTES.get(parameter.dtype.name, '')}"


def _c_name(name: str) -> str:
    return f"{name}_" if name in KEYWORDS else name
