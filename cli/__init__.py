"""The command line. Every command is a client of the service's HTTP API.

Arguments and options come in; text or one JSON document goes to standard output, and an exit code (``exits``) to the
shell. ``context`` finds the service: the one of ``--url``, the one that runs on the database, or one that the command
runs itself. ``main`` has the table of commands, each of which is a file. ``tables`` and ``follow`` print answers.
"""
