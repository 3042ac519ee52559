"""Large matrix products on Hopper: TMA loads, wgmma, persistent tiles, split-K and stream-K (sketch ``cuda_gemm``)."""
