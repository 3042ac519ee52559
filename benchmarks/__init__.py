"""Speed, measured side by side: ``python -m benchmarks SUITE``."""
