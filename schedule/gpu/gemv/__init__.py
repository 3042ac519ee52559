"""Matrix products with very few rows, by plain arithmetic (sketch ``cuda_gemv``)."""
