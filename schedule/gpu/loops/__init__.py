"""Any workload as launches of plain loops (sketch ``cuda_loops``): used where no kernel class matches."""
