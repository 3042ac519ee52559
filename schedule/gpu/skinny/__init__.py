"""Matrix products with up to 64 rows: by mma.sync (``cuda_skinny_mma``), and by TMA and wgmma (``cuda_skinny_tma``)."""
