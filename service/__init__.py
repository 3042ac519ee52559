"""The use cases of Tilewright, for the HTTP API, the command line and programs alike.

``Service`` (``service``) has one method for each use case; what it answers with are the frozen values of ``views``.
``Settings`` and a database come in. ``job_queue`` is the thread that takes jobs, ``job_runner`` runs one, and
``states`` says how a job may change. ``lookup`` finds the best schedule, ``explain`` shows what becomes of one, and
``roofline`` says how fast it could be. ``wiring`` is the one file that joins search, executors, code generation and
devices; ``targets`` parses how people name devices.
"""
