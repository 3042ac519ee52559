"""Holds the lowering pipeline, from a schedule to machine code.

A kernel of the IR, which a sketch wrote, comes in. Passes rewrite it, a backend emits source text (LLVM IR or CUDA
C++), and a compiler makes a binary of that. What goes out is a ``backend.CompiledKernel``, or text of every stage for
people.

- ``lowering``: the pipeline as a whole; ``backend``: its values and the contract of backends; ``backends``: their table
- ``passes``: rewrites of the IR; ``llvm``, ``cuda``, ``amdgpu``: one backend each
- ``shared_memory``: the layout of shared memory, for all graphics processors
- ``layers``, ``line_origins``: which lines of one layer come from which of another
- ``memory_traffic``, ``matrix_use``: what a kernel asks of memory and of matrix units
- ``export``: a schedule as files for use elsewhere; ``c_names``: identifiers of C
"""
