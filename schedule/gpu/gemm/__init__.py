"""Large matrix products on Hopper, by TMA and wgmma (sketches ``cuda_gemm`` and ``cuda_gemm_swap_ab``), and on
data-center Blackwell, by TMA and tcgen05 (sketch ``cuda_gemm_tcgen05``). Rows of products may be reduced, and not
stored (sketch ``cuda_gemm_row_reduction``).

What comes in is a ``Gemm`` (``schedule.problems.gemm``) and a setting of the knobs. What goes out is a kernel of one
launch. Others may stand before it: they repack operands whose rows TMA cannot load, pack operands that wgmma cannot
take as they lie, or list the tiles of groups of rows. One stands behind it for stream-K, and where rows are reduced.

``space``           the sketch: knobs, quantities, and what the modules below say of a setting
``sizes``           the knobs, and the record of all sizes that follow from a setting
``constraints``     which settings are legal
``prior``           the estimated time of a setting
``pruning``         which legal settings are worth a measurement
``kernel``          the launch: warp roles, the persistent loop over tiles, ping-pong, split-K and stream-K
``mainloop``        the loop over k: mbarriers, TMA loads, wgmma
``tensor_memory``   the same loop with tcgen05, and accumulators in tensor memory
``block_scales``    scales of blocks of k: packed, loaded beside the operands, copied to tensor memory
``tcgen05_space``   the sketch for Blackwell: its knobs, and what is promising
``swap_ab_space``   the sketch of products whose sides change places
``row_reduction``   the epilogue that reduces rows, and what the launch behind it joins; ``row_reduction_space`` has the
                    sketch of such products
``mma_atom``        which wgmma multiplies operands of which types, and what these ask of operands and accumulators
``k_atoms``         how k is taken apart, that of convolutions included
``operand_stages``  one operand in shared memory: stages, TMA boxes, multicast
``epilogue``        from accumulators to outputs, stored by TMA, as staged rows, or from registers
``result_box``      what a TMA store writes of an output, and which outputs can be stored so or as staged rows
``tile_scheduler``  the order of the tiles (rasterisation)
``grouped``         the tiles of groups of rows, which a first launch lists at run time
``stream_k``        the work units of stream-K, and the launch that adds them up
``repack``          the launch that copies operands to aligned rows
``shifted_rows``    operands whose rows begin anywhere, which a producer warpgroup copies to the stages without that
``fragments``       A in registers, where its rows lie along m and shared memory would need them along k
``pack``            the launches that make operands K-major, and split float32 into planes
``promotion``       block sums that are added to accumulators in float32, with scales
"""
