"""Products of a matrix A with at most 64 rows and a large matrix B, whose reading from memory takes most of the time.

What comes in is a ``Gemm`` (``schedule.problems.gemm``) and a setting of the knobs; what goes out is a kernel.
``cuda_skinny_mma`` feeds mma.sync by cp.async, on all architectures. ``cuda_skinny_tma`` feeds wgmma by TMA, on Hopper.
``cuda_skinny_mixed`` takes a B that is stored in another form than it is multiplied in, and computes it in registers.
Each has a space (knobs, constraints, rules of thumb, prior), a record of the sizes that follow from a setting, and a
mainloop that writes the kernel. ``prior`` has the roofline that both share with ``cuda_gemv``, ``mma_tiles`` the tiles
in shared memory that ``cuda_mlp`` has too.
"""
