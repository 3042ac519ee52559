"""Alembic's folder: ``env.py`` runs the migrations of ``versions/`` over a connection that is handed in."""
