"""The LLVM backend: LLVM IR text, compiled in process by llvmlite."""
