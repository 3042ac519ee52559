"""The CUDA backend turns kernel IR into CUDA C++ that needs no header, and that into a cubin.

It needs neither a GPU nor a driver. A kernel whose top-level statements are launches comes in; a ``Source``, a
``CompiledKernel`` with its resources, and text for people go out.

- ``backend``: the contract of a backend; ``passes``: which passes of ``codegen.passes`` run
- ``emit``: kernel IR -> CUDA C++; ``prelude``: the device functions that emitted code calls
- ``compile``: NVRTC, a cache, gates on resources; ``inspect``: PTX, SASS, instruction counts, a host program
"""
