"""The interpreter of launches: all threads of some blocks run in lockstep as NumPy arrays, without a device.

``run`` takes the launches of a kernel and its global memory and runs them, a chunk of blocks at a time; it raises
KernelFault. ``context`` holds what is known of a launch and the state of a chunk. ``expressions``, ``statements``,
``address`` and ``access`` turn nodes into closures on that state. ``memory`` holds global, shared and private memory,
and ``happens_before`` knows what orders two threads, so that a race is found wherever a barrier is missing.

Asynchronous operations are written down while they are in flight: ``async_copy``, ``mbarrier`` (with bulk copies),
``tma_load``, ``tma_store`` and ``wgmma``. Copies complete as late as they may, and until then nothing may access their
target. ``mma`` runs the matrix instructions of warps, ``setmaxnreg`` counts registers.
"""
