"""The LLVM backend: kernels for processors.

A kernel in IR comes in (`ir.stmt.Kernel`, after the passes of `codegen/passes`); a relocatable ELF object goes out
(`codegen.backend.Binary`). LLVM runs in this process, through llvmlite. `emit.py` writes LLVM IR as text:
`statements.py` and `expressions.py` walk the IR, `memory.py` writes loads and stores, `arithmetic.py`, `casts.py` and
the mathematical functions (`math.py` lists them) write everything else, all through `writer.py` and `values.py`.
`compile.py` turns the text into machine code for one of the `architectures`. `instructions.py` counts what came out.

An exported kernel also needs `interface.py` (functions for C and for apache-tvm-ffi), `header.py`, `runtime_support.py`
(thread pool and scratch memory, as LLVM IR) and `link.py`. `codegen/amdgpu` uses the same writers for graphics
processors of AMD.
"""
