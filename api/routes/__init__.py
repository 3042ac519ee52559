"""REST routes, a file for each noun."""
