"""The results database: tables, migrations, queries. The only folder that imports SQLAlchemy."""
