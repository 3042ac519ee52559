"""Shows what a compiled CUDA kernel consists of.

A source or a cubin comes in. PTX, SASS, the counts of instructions by class, or a host program that launches the kernel
go out.

- ``artifacts``: all forms of a source; ``disassemble``: SASS by nvdisasm; ``instructions``: classes of SASS
  instructions
- ``launcher``: a program around an exported kernel
"""
