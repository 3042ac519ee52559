"""``python -m benchmarks SUITE [--rows GLOB] [--trials N] [--seed N] [--json FILE] [--set NAME=VALUE]``.

Every suite takes ``--set commit=HASH`` where the checkout does not say which commit it is. The result file says
``"complete": false`` while rows are missing: those of a run that was killed are all that it had measured.
"""

import argparse
import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path

from benchmarks.environment import clean, libraries
from benchmarks.suite import NoRows, Options, Result, Suite, commit

SUITES = {
    "cpu": "benchmarks.cpu",
    "cpu-models": "benchmarks.cpu_models",
    "ranking": "benchmarks.ranking",
    "service": "benchmarks.service",
    "service-stall": "benchmarks.service_stall",
    "dashboard": "benchmarks.dashboard",
    "dynamic": "benchmarks.dynamic",
    "fleet": "benchmarks.fleet",
    "fleet-kills": "benchmarks.fleet_kills",
    "fleet-faults": "benchmarks.fleet_faults",
    "fleet-cancel": "benchmarks.fleet_cancel",
    "fleet-load": "benchmarks.fleet_load",
    "fleet-restarts": "benchmarks.fleet_restarts",
    "fleet-share": "benchmarks.fleet_share",
    "kill": "benchmarks.kill",
    "links": "benchmarks.links",
    "machine-code": "benchmarks.machine_code",
    "many-tasks": "benchmarks.many_tasks",
    "model-start": "benchmarks.model_start",
    "models": "benchmarks.models",
    "modules": "benchmarks.modules",
    "planted": "benchmarks.planted",
    "h200-attention": "benchmarks.h200_attention",
    "h200-convolution": "benchmarks.h200_convolution",
    "h200-grouped": "benchmarks.h200_grouped",
    "h200-memory": "benchmarks.h200_memory",
    "h200-products": "benchmarks.h200_products",
    "h200-stored": "benchmarks.h200_stored",
    "h200-types": "benchmarks.h200_types",
    "prior-check": "benchmarks.prior_check",
    "prior-search": "benchmarks.prior_search",
    "products-check": "benchmarks.products_check",
    "record": "benchmarks.record",
    "recorded-ahead": "benchmarks.recorded_ahead",
    "recorded-search": "benchmarks.recorded_search",
    "relaxed-lookups": "benchmarks.relaxed_lookups",
    "reproducibility": "benchmarks.reproducibility",
    "retune": "benchmarks.retune",
    "sanitizer": "benchmarks.sanitizer",
    "faults": "benchmarks.faults",
    "families": "benchmarks.families",
    "search": "benchmarks.search_share",
    "search-score": "benchmarks.search_score",
    "spaces": "benchmarks.spaces",
    "sweep": "benchmarks.sweep",
    "wrong-constants": "benchmarks.wrong_constants",
}
"""Name -> module with ``run``; a module is loaded when its suite is asked for, since peers are heavy."""

_FOR_CPU = {"OPENBLAS_THREAD_TIMEOUT": "20", "THP_MEM_ALLOC_ENABLE": "1"}
ENVIRONMENT = {"cpu": _FOR_CPU, "cpu-models": _FOR_CPU}
"""Suite -> variables that libraries read when they are loaded. NumPy's threads spin for 2^20 cycles after a call, where
they would keep a processor from all others for a tenth of a second; PyTorch asks for huge pages, as NumPy does."""

LIBRARIES = ("numpy", "llvmlite", "xgboost-cpu", "scikit-learn", "torch", "sqlalchemy", "fastapi", "ray")


def main() -> int:
    """Run one suite, print its rows and summary, write its JSON; 0 when every bar was met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--rows", default="*", metavar="GLOB", help="only rows whose name matches")
    parser.add_argument("--trials", type=int, metavar="N", help="trials for each row, where a suite tunes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the result")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the suite")
    given = parser.parse_args()
    removed = clean()
    os.environ.update(ENVIRONMENT.get(given.suite, {}))
    run: Suite = import_module(SUITES[given.suite]).run
    started = datetime.now(UTC).isoformat(timespec="seconds")
    load = os.getloadavg()

    def keep(result: Result, complete: bool = False) -> None:
        if given.json is None:
            return
        document = {
            "suite": given.suite,
            "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
            "commit": options.extra.get("commit") or commit(),
            "started": started,
            "complete": complete,
            "device": {"machine": platform.machine(), "cores": os.cpu_count(), "load_at_start": load, **result.device},
            "toolchain": {"python": platform.python_version(), **_versions(), **result.toolchain},
            "libraries": libraries(),
            "environment": {"removed": removed, "set": ENVIRONMENT.get(given.suite, {})},
            "settings": {"rows": options.rows, "trials": options.trials, "seed": options.seed, **result.settings},
            "rows": list(result.rows),
            "summary": {**result.summary, "passed": complete and result.passed},
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        written = given.json.with_suffix(".part")
        written.write_text(json.dumps(document, indent=1) + "\n")
        written.replace(given.json)

    options = Options(given.rows, given.trials, given.seed, dict(s.split("=", 1) for s in given.set), keep)
    try:
        result = run(options)
    except NoRows as error:
        parser.error(str(error))
    keep(result, complete=True)
    for row in result.rows:
        print("  ".join(f"{name}={_short(value)}" for name, value in row.items() if not isinstance(value, dict | list)))
    print("summary:", json.dumps(result.summary), "passed" if result.passed else "FAILED")
    return 0 if result.passed else 1


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
