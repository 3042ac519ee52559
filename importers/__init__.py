"""Models of other systems as graphs. ``fx`` reads what torch traces; it is the only file that imports torch."""
