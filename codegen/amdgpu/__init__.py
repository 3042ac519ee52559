"""The backend for AMD's graphics processors turns kernels of launches into LLVM IR, and that into object code.

A kernel after its passes comes in, and an ELF object goes out. llvmlite compiles in this process, so no such processor
and no ROCm are needed. Statements and expressions are those of ``codegen.llvm``; what lanes, warps and blocks do
together is added here.

- ``backend``: the contract of a backend; ``emit``: kernel IR -> LLVM IR; ``compile``: LLVM IR -> ELF object
- ``operations``: barriers, shuffles and MFMA as intrinsics of LLVM
"""
