"""From CUDA C++ text to a cubin.

``compiler.compile_source`` takes a ``Source`` and returns a ``Binary``. NVRTC compiles without a GPU or a driver, a
cache on disk
keeps what was compiled, and gates refuse kernels that spill or that the device cannot hold.
"""
