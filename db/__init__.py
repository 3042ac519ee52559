"""The results database. This is the only folder that imports SQLAlchemy.

``RecordStore`` (``store``) is what other folders use: each of its methods is one transaction. The frozen values of
``rows`` and the nouns of ``core/`` come in and go out; no row of a table leaves this folder. ``engine`` opens SQLite or
PostgreSQL, ``lock`` lets one process at a time open an embedded database, and ``migrate`` takes a database to the
schema of ``tables``. ``jobs``, ``trials``, ``recording``, ``best``, ``catalog`` and ``models`` hold the queries.
``retention`` deletes what is old, and ``partitions`` keeps the events of a server's database by month.
``best_records`` follows from the trials: ``best`` keeps it, and ``transfers`` learns from it. ``ReleaseStore``
(``release_store``) keeps releases. ``json_lines`` carries records to another database, and ``renaming`` gives old
records today's names.

``FleetStore`` (``fleet_store``, reached as ``RecordStore.fleet``) is the part for many processes that work on one
database: ``units``, ``leases`` with fences, ``claims`` of tasks, ``attempts``, ``tenants`` and their fair share,
``job_ends``, ``flights`` of equal tasks and ``adoption`` of records. ``clock`` is the database's own time.
"""
