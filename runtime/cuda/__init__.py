"""NVIDIA devices. ``driver`` is the only file that speaks to the CUDA driver, ``nvml`` the only one that reads the
card's sensors, ``arrays`` the only one that knows other libraries' arrays; importing any of them loads nothing."""
