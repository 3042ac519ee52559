"""The plain loop nest of a workload, and the analyses that loop primitives need: finding loops, dependences,
regions."""
