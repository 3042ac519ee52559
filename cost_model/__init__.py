"""Cost models: features with units and a version, models behind one port, honest metrics."""
