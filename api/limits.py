"""Defines the bounds of what crosses the wire. The request parser, the wire types and the documents use them."""

MAX_BODY_BYTES = 1 << 20
MAX_RECORDS_BYTES = 4 << 30
"""The largest body of records to import, which is spooled to a file."""
MAX_JSON_DEPTH = 300
"""How deeply arrays and objects may be nested. An expression of 128 levels needs two each, and there is a body around
it."""
MAX_TASKS = 64
MAX_MODEL_WORKLOADS = 256
MAX_LOOKUP_KEYS = 1_000
"""How many workloads one request may look up."""
MAX_TEXT = 1 << 18
"""How many characters the text form of a workload may have."""
MAX_PAGE_SIZE = 500
MAX_EVENT_STREAMS = 64
"""How many event streams may be open: each holds one thread of the server."""
MAX_WAIT_SECONDS = 30.0
MAX_BODY_SECONDS = 120.0
"""How long a body may take to arrive, but for records."""
MAX_BODY_PAUSE_SECONDS = 20.0
"""How long nothing of a body may arrive."""
MAX_STREAMS_OF_A_USER = 12
"""How many event streams one user may have open, where keys are wanted."""
MAX_REQUESTS_OF_A_USER = 24
"""How many requests of one user may be answered at the same moment: fewer than the server has threads."""
KEEP_ALIVE_SECONDS = 15.0
RETRY_AFTER_SECONDS = 2
QUOTA_RETRY_AFTER_SECONDS = 30
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"
TAG_PATTERN = r"^[A-Za-z0-9._-]{1,48}$"
MAX_TAGS = 16
MAX_NOTES = 10_000
MAX_SCOPES = 4
KEY_ID_PATTERN = r"^[0-9a-f]{12}$"
TARGET_PATTERN = r"^[A-Za-z0-9_.:+-]{1,64}$"
UNIT_PATTERN = r"^[A-Za-z0-9_.:+-]{1,64}$"
FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
CHANNEL_PATTERN = r"^[a-z]{1,16}$"
KEY_PATTERN = r"^[0-9a-f]{64}$"
IDEMPOTENCY_KEY_PATTERN = r"^[!-~]{1,64}$"
MAX_ID = (1 << 63) - 1
"""The largest id of a row."""
