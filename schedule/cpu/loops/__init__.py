"""Any workload as tiled, vectorised, unrolled and parallel loops (sketch ``cpu_loops``)."""
