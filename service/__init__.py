"""The use cases of Tilewright, for the HTTP API, the command line and programs alike.

``Service`` (``service``) has one method for each use case; what it answers with are the frozen values of ``views``.
``Settings`` and a database come in. ``lookup`` finds the best schedule, ``explain`` shows what becomes of
one, and ``roofline`` says how fast it could be. ``releases`` freezes best schedules, and ``bundle`` is their file.
``wiring`` is the one file that joins search, executors, code generation and devices; ``targets`` parses how people name
devices.

Tasks are searched by child processes:

- ``task_worker_pool`` starts one for each device that has work, and ``task_worker`` is its loop;
- ``task_runner`` searches one task, and ``task_store`` is how it reaches the database;
- ``lease_keeper`` keeps its leases, and ``further_units`` leases more units for a task that may have several;
- ``worker_death`` says what became of a worker.
"""
