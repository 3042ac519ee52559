"""The committed description equals the application's, and describes every route with its failures."""

import json

import httpx2

from tilewright.api.openapi import DOCUMENT, document_text
from tilewright.api.routes import ROUTES


def test_the_committed_document_is_the_applications() -> None:
    assert DOCUMENT.read_text() == document_text(), "run python -m tilewright.api.openapi and look at the difference"


def test_the_served_document_is_the_committed_one(http: httpx2.Client) -> None:
    assert http.get("/openapi.json").json() == json.loads(DOCUMENT.read_text())


def test_every_operation_has_an_id_a_description_and_its_problems() -> None:
    document = json.loads(DOCUMENT.read_text())
    operations = [o for path in document["paths"].values() for o in path.values()]
    assert len({o["operationId"] for o in operations}) == len(operations) >= 19
    for operation in operations:
        assert operation["description"] and {"400", "422", "503"} <= set(operation["responses"])
        for status, answer in operation["responses"].items():
            if status >= "400" and operation["operationId"] != "isReady":
                assert list(answer["content"]) == ["application/problem+json"]


def test_what_clients_send_is_closed() -> None:
    schemas = json.loads(DOCUMENT.read_text())["components"]["schemas"]
    sent = {name: schema for name, schema in schemas.items() if name.endswith("In")}
    assert len(sent) >= 6 and all(schema["additionalProperties"] is False for schema in sent.values())


def test_the_table_of_routes_has_a_file_for_each_noun() -> None:
    assert all(router.routes for router in ROUTES.values())
