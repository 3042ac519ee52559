"""What a compiled CUDA kernel consists of, for people to read.

It takes a source or a cubin and returns PTX, SASS, instruction counts, or a host program that launches the kernel.
"""
