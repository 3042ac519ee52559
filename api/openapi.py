"""Makes the OpenAPI document from the routes. ``openapi.json`` beside this file holds it.

``python -m tilewright.api.openapi`` writes the file. A test checks that the two are equal, so that a change of the wire
is seen in review.
"""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from .. import __version__
from ..te.schema import workload_definitions, workload_schema
from .access import OPEN_PATHS
from .problem import ProblemDetails
from .routes import ROUTES
from .scopes import scope_of

_SCHEMAS = "#/components/schemas"
DOCUMENT = Path(__file__).parent / "openapi.json"
DESCRIPTION = """Tilewright tunes tensor expressions: submit a job, follow it, fetch the best schedule and its evidence.

Every failure is a problem document (RFC 9457) whose `code` is stable and whose `field` says which part of the request
is at fault. Lists are pages: pass `next_page_token` on until it is empty. Unknown fields are refused. A service that
others can reach wants a key with every request but `/healthz` and `/readyz`: `Authorization: Bearer KEY`. The key needs
the scope that `x-tilewright-scope` names, or `admin`, and sees the rows of its tenant."""


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """Return the document of ``app``: that of FastAPI, without FastAPI's own 422."""
    document = get_openapi(
        title="Tilewright", version=__version__, description=DESCRIPTION, routes=app.routes, openapi_version="3.1.0"
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Workload"] = workload_schema(_SCHEMAS)
    schemas.update(workload_definitions(_SCHEMAS))
    schemas.update(
        models_json_schema([(ProblemDetails, "serialization")], ref_template=f"{_SCHEMAS}/{{model}}")[1]["$defs"]
    )
    for name in ("ExpressionIn", "LookupIn", "ExplainIn", "ExportIn", "ModelWorkloadIn"):
        schemas[name]["properties"]["workload"] = {
            "anyOf": [{"$ref": f"{_SCHEMAS}/Workload"}, {"type": "null"}],
            "description": "A workload in its JSON form.",
        }
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path not in OPEN_PATHS:
                operation["security"] = [{"key": []}]
                operation["x-tilewright-scope"] = scope_of([method.upper()], path)
    return document


def document_text() -> str:
    """Return what ``openapi.json`` must hold for the present routes. This needs no service."""
    app = FastAPI()
    for router in ROUTES.values():
        app.include_router(router)
    return json.dumps(openapi_of(app), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document_text(), encoding="utf-8")
    print(f"wrote {DOCUMENT.name}")
