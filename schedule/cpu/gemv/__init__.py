"""Matrix products with very few rows on a processor (sketch ``cpu_gemv``)."""
