"""The HTTP interface: REST routes, the dashboard, and the Python client.

``routes`` holds the routes, one file for each noun. ``requests`` and ``responses`` are the models of what comes in and
goes out; ``problem`` is the body of every failure. ``guard`` and ``strict_route`` refuse what the API does not take.
``server`` serves the application of ``app``, and ``local_service`` finds the service that runs on a database.
``client`` and ``client_errors`` need the extra ``client`` only.
"""
