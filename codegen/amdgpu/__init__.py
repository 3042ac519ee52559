"""The backend for AMD's graphics processors: LLVM IR text, compiled in process by llvmlite."""
