"""The command line: every command speaks to the service's HTTP API, a running one or one of its own."""
