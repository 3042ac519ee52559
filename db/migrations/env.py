"""Alembic runs this file: it migrates over the connection that ``migrate.upgrade`` hands in, inside its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["metadata"],
    transactional_ddl=True,
    transaction_per_migration=False,
)
context.run_migrations()
