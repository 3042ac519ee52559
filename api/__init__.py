"""The web face: REST routes and wire types, the dashboard, the Python client."""
