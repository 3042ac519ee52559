"""Alembic's folder. ``env.py`` is given a connection, and brings its database to the schema of a revision by running
the migrations of ``versions/``.
"""
