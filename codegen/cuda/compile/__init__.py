"""Compiles CUDA C++ text to a cubin.

``compiler.compile_source`` takes a ``Source`` and returns a ``CompiledKernel``. NVRTC (``nvrtc``) compiles without a
GPU or a driver, a cache on disk (``cache``) keeps what was compiled, and gates (``resources``) refuse kernels that
spill or that the device cannot hold.
"""
