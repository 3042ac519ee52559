"""Matrix products with very few rows on a processor (sketch ``cpu_gemv``).

A product whose matrix lies along its columns comes in, and the kernel of one setting goes out. ``space`` describes the
settings, ``kernel`` writes the loops.
"""
