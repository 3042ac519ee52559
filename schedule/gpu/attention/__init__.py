"""Attention on Hopper, by TMA and wgmma, in one launch (sketch ``cuda_attention``).

What comes in is an ``Attention`` (``schedule.problems.attention``) and a setting of the knobs. A CTA has a tile of
queries, which stays in shared memory, and goes through blocks of keys. Scores, weights and the sums stay in registers;
only where two warpgroups share the columns of V, weights go through shared memory.

``space``           the sketch: knobs, quantities, and what the modules below say of a setting
``sizes``           the knobs, and the record of all sizes that follow from a setting
``constraints``     which settings are legal
``prior``           the estimated time of a setting
``kernel``          the launch: warp roles, and the persistent loop over tiles of queries
``tile_scheduler``  the order of the tiles, and the blocks of keys that the queries of a tile see
``operand_tiles``   Q, K and V in shared memory: stages, TMA boxes
``mainloop``        the loop over blocks of keys: mbarriers, TMA loads, both products
``roles``           which queries, and which columns of V, a warpgroup has
``weight_exchange`` weights of one warpgroup for another one, where they share the columns of V
``softmax``         scores become weights, with running maxima and sums of rows
``place_forms``     what a score says of its place, from registers of the thread
``score_prefetch``  what a score reads of other tensors, one block ahead
``partials``        what CTAs that share the keys of a tile leave behind, and the launch that combines it
``epilogue``        from accumulators to the output, stored by TMA
"""
