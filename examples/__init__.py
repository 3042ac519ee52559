"""Programs here show the product at work. ``python -m examples.NAME`` runs one; none is imported by the product."""
