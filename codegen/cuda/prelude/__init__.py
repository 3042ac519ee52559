"""Holds the device functions that emitted CUDA C++ calls: thin wrappers of PTX instructions, and arithmetic.

``prelude.prelude`` takes the names of the functions that a kernel uses. It returns the text of those and of what they
call, so that an emitted kernel needs no header and shows nothing that it does not use. Each function is a
``DeviceFunction`` in the file of the instructions that it wraps:

- ``launch``: ``griddepcontrol`` (programmatic dependent launch), the index of a warp
- ``global_memory``: vector and predicated loads, loads that L1 does not keep, unaligned loads, prefetches into L2
- ``shared_memory``: addresses, ``fence.proxy.async``
- ``cp_async``: ``cp.async`` and its groups
- ``mbarrier``: ``mbarrier`` init, arrive, expect_tx, wait
- ``tma``: ``cp.async.bulk`` and ``cp.async.bulk.tensor``, tensor maps
- ``cluster``: ``barrier.cluster``, loads from distributed shared memory
- ``mma``: ``mma.sync``, ``ldmatrix``, ``stmatrix``
- ``wgmma``: ``wgmma.mma_async``, its descriptors and fences, barriers of warpgroups, ``setmaxnreg``
- ``tcgen05``: tensor memory and ``tcgen05.mma``
- ``half``: conversions and packing of 16-bit floats
- ``arithmetic``: operators as the IR defines them, and fast approximations
"""
