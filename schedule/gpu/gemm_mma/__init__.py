"""Large matrix products by mma.sync, fed by cp.async in several stages, for every architecture (sketch
``cuda_gemm_mma``)."""
