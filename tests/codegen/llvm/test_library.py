"""Exported kernels are used without Tilewright: from C, and through apache-tvm-ffi from NumPy, torch and JAX."""

import ctypes
import importlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from tilewright.codegen.backend import Packaging
from tilewright.codegen.export import exported
from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.llvm.header import header
from tilewright.codegen.llvm.link import shared_library
from tilewright.codegen.lowering import lower, lowering_stages
from tilewright.core.errors import InvalidParameter, UnsupportedTarget
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import sketches_for
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

MATMUL = OPERATORS["matmul"].workload({"m": 300, "n": 640, "k": 40})
SOFTMAX = OPERATORS["softmax"].workload({"rows": 33, "columns": 65})
RELU = OPERATORS["elementwise"].workload({"shape": [9, 40], "functions": ["relu"], "dtype": "bfloat16"})
OF_THE_C_LIBRARY = {
    *("abort", "aligned_alloc", "free", "madvise", "memcpy", "memset", "snprintf"),
    *("syscall", "sigdelset", "sigfillset", "sched_getaffinity", "sched_getcpu", "sched_setaffinity"),
    *("cos", "sin", "cosf", "sinf"),
}
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

PROGRAM = """
#include "kernel.h"
#include <stdio.h>
static float a[300 * 40], b[40 * 640], c[300 * 640];
int main(void) {
  if (fread(a, sizeof a, 1, stdin) != 1 || fread(b, sizeof b, 1, stdin) != 1) return 2;
  for (int n = 0; n < 3; ++n) tilewright_product(a, b, c);
  return fwrite(c, sizeof c, 1, stdout) != 1;
}
"""


def schedule_for(work: Workload, target: Target, with_workspace: bool = False) -> Schedule:
    space = sketches_for(work, target)[0].space(work, target, limit=200)
    schedules = [space.schedule(n) for n in range(len(space))]
    if not with_workspace:
        return schedules[0]
    return next(s for s in schedules if lower(work, target, s).workspace)


@cache
def files_of(work: Workload, name: str, with_workspace: bool = False) -> dict[str, bytes]:
    target = host_target()
    return dict(exported(work, target, schedule_for(work, target, with_workspace), Packaging(name, True)))


def written(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "kernel.so"


def operands(seed: int = 0) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    shapes = ((300, 40), (40, 640))
    return [*(random.random(shape, np.float32) for shape in shapes), np.zeros((300, 640), np.float32)]


@needs_compiler
def test_a_c_program_is_built_from_the_header_and_the_object(tmp_path: Path) -> None:
    written(files_of(MATMUL, "product", True), tmp_path)
    (tmp_path / "main.c").write_text(PROGRAM)
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-o", "main", "main.c", "kernel.o", "-lm", "-pthread"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert built.returncode == 0, built.stderr
    a, b, c = operands()
    ran = subprocess.run(["./main"], cwd=tmp_path, input=a.tobytes() + b.tobytes(), capture_output=True, timeout=60)
    assert ran.returncode == 0
    np.testing.assert_allclose(np.frombuffer(ran.stdout, np.float32).reshape(c.shape), a @ b, rtol=1e-5)


@needs_compiler
def test_the_library_is_called_by_many_threads_and_by_a_forked_child(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(written(files_of(MATMUL, "product", True), tmp_path)))

    def run(seed: int) -> bool:
        a, b, c = operands(seed)
        library.tilewright_product(*(ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)))
        return bool(np.allclose(c, a @ b, rtol=1e-5))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(24)))
    a, b, c = operands()
    addresses = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
    wanted = a @ b
    child = os.fork()
    if child == 0:
        library.tilewright_product(*addresses)
        os._exit(0 if np.allclose(c, wanted, rtol=1e-5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def from_numpy(array: np.ndarray[Any, Any]) -> Any:
    return array


def from_torch(array: np.ndarray[Any, Any]) -> Any:
    return importlib.import_module("torch").from_numpy(array)


def from_dlpack(array: np.ndarray[Any, Any]) -> Any:
    return tvm_ffi.from_dlpack(array)


@needs_compiler
@pytest.mark.parametrize("of", [from_numpy, from_torch, from_dlpack])
def test_tvm_ffi_calls_it_on_tensors_of(of: Callable[[np.ndarray[Any, Any]], Any], tmp_path: Path) -> None:
    if of is from_torch:
        pytest.importorskip("torch")
    module = tvm_ffi.load_module(str(written(files_of(MATMUL, "product"), tmp_path)))
    a, b, c = operands()
    assert module.product(of(a), of(b), of(c)) is None
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@needs_compiler
def test_a_call_of_an_exported_kernel_looks_at_its_constants_again(tmp_path: Path) -> None:
    work = OPERATORS["matmul"].workload({"m": 300, "n": 640, "k": 40, "constant_weights": True})
    module = tvm_ffi.load_module(str(written(files_of(work, "product", True), tmp_path)))
    for seed in range(2):
        a, b, c = operands(seed)
        module.product(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@needs_compiler
def test_sixteen_bit_floats_come_from_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = tvm_ffi.load_module(str(written(files_of(RELU, "relu"), tmp_path)))
    x = torch.linspace(-1, 1, 360).reshape(9, 40).to(torch.bfloat16)
    y = torch.zeros_like(x)
    module.relu(x, y)
    assert torch.equal(y, torch.relu(x))


@needs_compiler
def test_it_is_a_function_of_jax(tmp_path: Path) -> None:
    jax, bridge = pytest.importorskip("jax"), pytest.importorskip("jax_tvm_ffi")
    module = tvm_ffi.load_module(str(written(files_of(SOFTMAX, "softmax"), tmp_path)))
    bridge.register_ffi_target("tilewright.softmax", module.softmax, ["args", "rets"], platform="cpu")
    x = jax.numpy.asarray(np.random.default_rng(0).random((33, 65), np.float32))
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    found = jax.jit(lambda x: jax.ffi.ffi_call("tilewright.softmax", result)(x))(x)
    np.testing.assert_allclose(found, jax.nn.softmax(x), rtol=1e-5)


@needs_compiler
def test_what_does_not_fit_is_refused_and_named(tmp_path: Path) -> None:
    product = tvm_ffi.load_module(str(written(files_of(MATMUL, "product"), tmp_path))).product
    a, b, c = operands()
    odd = np.zeros(c.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(c.shape)
    both = np.zeros(a.size + c.size, np.float32)
    refused: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        ((a, b), TypeError, r"product takes 3 tensors \(A, B, C\), not 2"),
        ((a, b, 3), TypeError, "C is no tensor"),
        ((a, b, c.astype(np.float64)), TypeError, r"type code 2, 64 bits, 1 lanes; needed: float32 \(2, 32, 1\)"),
        ((a, b.astype(np.int32), c), TypeError, "B has elements of DLPack type code 0, 32 bits"),
        ((a, b, c[0]), ValueError, "C has 1 dimensions, needed: 2"),
        ((a, b[:, :639], c), ValueError, "B has extent 639 along dimension 1, needed: 640"),
        ((a, b, np.zeros((640, 300), np.float32).T), ValueError, "C is not contiguous: stride 1 along dimension 0"),
        ((a, b, odd), ValueError, "C does not start at a multiple of 4 bytes"),
        ((both[:12000].reshape(300, 40), b, both[-c.size - 1 : -1].reshape(c.shape)), ValueError, "C overlaps A"),
    ]
    for arguments, kind, said in refused:
        with pytest.raises(kind, match=said):
            product(*arguments)
    assert not c.any()


def undefined(code: bytes) -> set[str]:
    """Return the undefined symbols of an ELF object of 64 bits, little-endian."""
    (sections,) = struct.unpack_from("<Q", code, 40)
    count = struct.unpack_from("<H", code, 60)[0]
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, sections + 64 * n) for n in range(count)]
    symbols = next(h for h in headers if h[1] == 2)
    names = headers[symbols[6]][4]
    found = set()
    for at in range(symbols[4] + 24, symbols[4] + symbols[5], 24):
        name, _, _, section = struct.unpack_from("<IBBH", code, at)
        if section == 0:
            found.add(code[names + name : code.index(b"\0", names + name)].decode())
    return found


@pytest.mark.parametrize("name", ["x86-64+avx512f+fma", "aarch64", "aarch64+sve", "riscv64+v+zvl256b"])
@pytest.mark.parametrize("work", [MATMUL, SOFTMAX])
def test_an_object_needs_the_c_library_alone(name: str, work: Workload) -> None:
    target = target_named(name)
    files = exported(work, target, schedule_for(work, target))
    outside = {n for n in undefined(files["kernel.o"]) if not n.startswith(("pthread_", "."))}
    assert outside - OF_THE_C_LIBRARY == {"TVMFFIErrorSetRaisedFromCStr"}
    assert "kernel.so" not in files


def test_without_a_linker_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedTarget, match=r"looked for cc, gcc, clang, .*its object can be exported"):
        shared_library(b"", host_target())
    with pytest.raises(UnsupportedTarget, match=r"looked for riscv64-linux-gnu-gcc\)"):
        shared_library(b"", target_named("riscv64+v"))
    cuda = Target("cuda", "sm_90a", (), 132, 16)
    with pytest.raises(UnsupportedTarget, match="kernels for processors"):
        exported(SOFTMAX, cuda, schedule_for(SOFTMAX, cuda), Packaging("softmax", True))


def test_headers_avoid_the_words_of_c() -> None:
    x = placeholder((2, 3), "bool", name="int")
    work = workload(compute((2, 3), lambda i, j: x[i, j], name="y"))
    lowered = lowering_stages(work, host_target(), schedule_for(work, host_target()))
    text = header(lowered.source, "copy", target_named("aarch64+sve"))
    assert "void tilewright_copy(const uint8_t *int_, uint8_t *y);" in text
    assert " * int_  input, bool[2, 3], 0 or 1" in text and " * It needs sve.\n" in text
    with pytest.raises(InvalidParameter, match="'no name' is no name"):
        Packaging("no name")
