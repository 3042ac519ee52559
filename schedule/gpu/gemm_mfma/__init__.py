"""Large matrix products on the MFMA instructions of AMD's graphics processors (sketch ``amdgpu_gemm``)."""
