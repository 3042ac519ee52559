"""Programs that show the product at work: ``python -m examples.NAME``."""
