"""The environment of worker children: what a child needs, and nothing else that its parent has.

A child runs code that was generated a moment ago. The parent's secrets, such as the password in the address of a
database, are none of its business.
"""

from collections.abc import Mapping
from pathlib import Path

ALLOWED = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR XDG_CACHE_HOME LD_LIBRARY_PATH PYTHONHOME PYTHONHASHSEED "
    "PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX PYTHONUTF8 PYTHONIOENCODING PYTHONWARNINGS PYTHONNOUSERSITE".split()
)
"""Variables that a child gets from its parent."""
PREFIXES = ("LC_", "CUDA_", "NVIDIA_")
"""So begin the names of further ones."""

RAY_AUTH_MODE = "RAY_AUTH_MODE"
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The CUDA driver shows the devices whose UUIDs this variable lists, numbered in that order, and none if it is empty
(CUDA C++ Programming Guide, "CUDA Environment Variables")."""


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environment`` that a child gets. No GPU is among them: whoever needs one names it."""
    kept = {name: value for name, value in environment.items() if name in ALLOWED or name.startswith(PREFIXES)}
    return {**kept, VISIBLE: ""}


def ray_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environment`` that a process needs which connects to a Ray cluster.

    Where a token is at hand, a cluster that ``ray start`` begins demands it (since 2.60), but a driver that is given an
    address does not show it unless ``RAY_AUTH_MODE`` says ``token`` when Ray is imported. So that is said here, unless
    the mode was chosen. A cluster without authentication answers to drivers with a token too.
    """
    found = {name: value for name, value in environment.items() if name.startswith("RAY_")}
    if RAY_AUTH_MODE not in found and _has_ray_token(environment):
        found[RAY_AUTH_MODE] = "token"
    return found


def _has_ray_token(environment: Mapping[str, str]) -> bool:
    """Return whether Ray finds a token where it looks for one (Ray documentation, "Token authentication")."""
    if environment.get("RAY_AUTH_TOKEN"):
        return True
    path = environment.get("RAY_AUTH_TOKEN_PATH")
    return (Path(path) if path else Path(environment.get("HOME", "/")) / ".ray" / "auth_token").is_file()


def visible(kind: str, uuid: str) -> dict[str, str]:
    """Return the variables with which a child sees the device ``uuid`` of a kind, as number 0, and no other."""
    return {VISIBLE: uuid} if kind == "cuda" else {}


def library_threads(count: int) -> dict[str, str]:
    """Variables that say how many threads NumPy's libraries use; a child reads them when it loads these."""
    return {name: str(count) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
