"""Operations of graphics processors, a file for each feature of the PTX ISA that they stand for.

| file | statements | PTX |
|---|---|---|
| ``barrier`` | Barrier | ``bar.sync``, ``bar.warp.sync``, ``barrier.cluster`` |
| ``grid_barrier`` | GridBarrierArrive, GridBarrierWait | cooperative launches |
| ``flagged`` | FlaggedStore, FlaggedLoad, FlaggedPeek | ``st.relaxed``, ``ld.relaxed`` |
| ``cluster`` | ClusterLoadWait | loads of distributed shared memory |
| ``atomic`` | AtomicReduce | ``red`` |
| ``async_copy`` | CopyAsync, CopyAsyncCommit, CopyAsyncWait | ``cp.async`` |
| ``bulk_copy`` | BulkCopy, Prefetch | ``cp.async.bulk`` |
| ``mbarrier`` | MbarrierInit, MbarrierArrive, MbarrierArriveExpectTx, MbarrierWait | ``mbarrier`` |
| ``tma`` | TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait | ``cp.async.bulk.tensor`` |
| ``fence`` | AsyncProxyFence | ``fence.proxy.async`` |
| ``mma`` | Mma | ``mma.sync``; MFMA on AMD |
| ``ldmatrix`` | LoadMatrix, StoreMatrix | ``ldmatrix``, ``stmatrix`` |
| ``wgmma`` | WarpgroupMma, WarpgroupMmaWait | ``wgmma.mma_async`` |
| ``tcgen05`` | TensorMemoryMma, -Copy, -Commit, -Load, -Allocate, -Deallocate, BlockScaledMma | ``tcgen05`` |
| ``setmaxnreg`` | SetMaxRegisters | ``setmaxnreg`` |
| ``ordered_sequence`` | OrderedSequenceStart, OrderedSequenceWait, OrderedSequenceArrive | ``bar.arrive`` |

Launches stand in ``ir.stmt``. Shuffles and loads from other blocks of a cluster are expressions and stand in
``ir.expr``. A sketch emits these statements, the verifier (``ir.verifier``) checks their operands, the interpreter
(``ir.simt``) runs them, and the code generators turn each into instructions.

The memory model: all threads of a launch run the same statements. Within a block only a barrier orders two threads;
within a warp a Shuffle, a LoadMatrix, an Mma and a warp's barrier do so too. Threads that AtomicReduce the same
element need no order. Blocks of one cluster synchronise at the cluster's barrier, and those of a cooperative launch at
the barrier of the grid; other blocks of a launch never do. A value with a flag is seen by any block of a cooperative
launch, or any later block of another one, and orders nothing else.
Launches of a kernel run one after the other, and each sees all that the earlier ones wrote. Barriers, and statements
and expressions of whole warps and warpgroups, must be reached by all the threads that they synchronise, together.
"""
