"""Devices: enumerate, load a binary, allocate, launch, time; and running a tuned kernel in the user's process."""
