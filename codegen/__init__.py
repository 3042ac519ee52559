"""From schedule to binary: passes over the kernel IR, and one backend per target kind."""
