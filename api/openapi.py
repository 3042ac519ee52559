"""The OpenAPI document: made from the routes, kept in ``openapi.json`` beside this file.

``python -m tilewright.api.openapi`` writes it; a test holds the two equal, so a change of the wire is seen in review.
"""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from .. import __version__
from ..te.schema import workload_definitions, workload_schema
from .routes import ROUTES

_SCHEMAS = "#/components/schemas"
_TEXT = {"type": "string"}
DOCUMENT = Path(__file__).parent / "openapi.json"
DESCRIPTION = """Tilewright tunes tensor expressions: submit a job, follow it, fetch the best schedule and its evidence.

Every failure is a problem document (RFC 9457) whose `code` is stable and whose `field` says which part of the request
is at fault. Lists are pages: pass `next_page_token` on until it is empty. Unknown fields are refused."""


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The document of ``app``: FastAPI's, with its own 422 taken out."""
    document = get_openapi(
        title="Tilewright", version=__version__, description=DESCRIPTION, routes=app.routes, openapi_version="3.1.0"
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Workload"] = workload_schema(_SCHEMAS)
    schemas.update(workload_definitions(_SCHEMAS))
    for name in ("ExpressionIn", "LookupIn", "ExplainIn", "ExportIn"):
        schemas[name]["properties"]["workload"] = {
            "anyOf": [{"$ref": f"{_SCHEMAS}/Workload"}, {"type": "null"}],
            "description": "A workload in its JSON form.",
        }
    for operations in document["paths"].values():
        for operation in operations.values():
            for answer in operation["responses"].values():
                _problem_only(answer)
    return document


def _problem_only(answer: dict[str, Any]) -> None:
    """FastAPI describes a model under the route's own media type too; problems come as application/problem+json."""
    content = answer.get("content", {})
    problem = content.get("application/problem+json")
    if problem is not None:
        for kind in [kind for kind, other in content.items() if other.get("schema") in (problem["schema"], _TEXT)]:
            if kind != "application/problem+json":
                del content[kind]


def document_text() -> str:
    """The text of ``openapi.json`` as the routes want it; needs no service."""
    app = FastAPI()
    for router in ROUTES.values():
        app.include_router(router)
    return json.dumps(openapi_of(app), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document_text(), encoding="utf-8")
    print(f"wrote {DOCUMENT.name}")
