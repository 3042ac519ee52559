"""Kernel classes for graphics processors, one folder each, and what several of them share.

A folder takes a problem and a target, describes the legal settings (``space``) and writes the launches of one setting
(``kernel``, or ``mainloop`` and ``epilogue``). Several of them share these files:

- ``occupancy``, ``peaks`` and ``quantities`` say what a device has, how fast it is, and what a setting takes of it;
- ``memory_prior`` and ``reduction_prior`` estimate times;
- ``staged_copies`` and ``multistage_gemm`` write mainloops by cp.async, and ``split_k`` adds partial sums up;
- ``block_reduce`` and ``warp_reduce_scatter`` reduce across threads;
- ``l2_prefetch`` prefetches ahead of the launch before, and ``tma_view`` shows tensors to TMA;
- ``triton`` is the sketch of kernels that a user wrote in Triton.
"""
