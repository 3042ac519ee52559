"""The knobs of all sketches that have a feature column each. What has one name means the same in all sketches.
Knobs of the steps of a chain (``step_1.tile_m``) have none: they are among the unlisted ones of ``features``."""

KNOBS: tuple[str, ...] = tuple(
    """
    arrangement atoms_m atoms_n block_k broadcast_preload buckets bulk_copies cluster_m cluster_n cluster_size
    column_parts column_taps column_tiles combine consumer_warpgroups contraction_path copies copy_bytes ctas_per_sm
    decomposition epilogue_stages evict_first group_heads group_m image_rows interleaved items items_x items_y
    joined_moments k_atoms k_unroll kc key_parts lanes lanes_n layout line_split m_blocks mma mma_n mr n_blocks
    nr_vectors order overlap overlapped pack pack_a pack_b padding permuted persistent piece_terms ping_pong pixels
    planes prefetch_depth prefetched_blocks producer_warpgroup q_stages raster_order repacked resident_b rounds
    row_storage row_taps row_tiles rows rows_per_cta rows_per_warp scanned score_tiles shared_filter shared_kv split_k
    split_k_slices split_kv split_rows splits staged staged_epilogue stages store store_alignment store_bytes stream_k
    swap_ab taps_innermost term_parts thread_m thread_n threads threads_per_output threads_per_row threads_x threads_y
    tile_d tile_h tile_in tile_k tile_kv tile_m tile_n tile_out tile_w tiles_h tiles_w unroll unroll_along unroll_axis
    vector_width vectorise vectors warps_k warps_m warps_n waves_m waves_n
    """.split()
)
