"""Runs a small OpenID provider over HTTP, which signs everybody in whom the test names."""

import json
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from jwt.algorithms import ECAlgorithm

CLIENT, SECRET = "tilewright-test", "secret-of-the-client"


class IdentityProvider:
    """``claims`` are what it says of whoever comes next, over what is right. A token is signed with ``key`` by
    ``algorithm``; its header has ``key_id``. Tests change them to forge tokens."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.claims: dict[str, Any] = {"sub": "u1", "email": "ada@example.com", "tilewright_tenant": "team-a"}
        self.published = generate_private_key(SECP256R1())
        self.key: Any = self.published
        self.algorithm = "ES256"
        self.key_id = "k1"
        self.codes: dict[str, dict[str, str]] = {}

    def document(self) -> dict[str, str]:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return {"issuer": self.address, **{name: f"{self.address}/{path}" for name, path in names.items()}}

    def keys(self) -> dict[str, Any]:
        key = ECAlgorithm.to_jwk(self.published.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": "k1", "use": "sig", "alg": "ES256"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """Return where a browser goes back to."""
        assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (CLIENT, "code", "S256")
        code = secrets.token_urlsafe(8)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.address})}"

    def token(self, form: dict[str, str]) -> dict[str, str] | None:
        """Return the tokens for a code, which is good once; None for a wrong one."""
        asked = self.codes.pop(form["code"], None)
        given = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if asked is None or given != asked["code_challenge"] or form["client_secret"] != SECRET:
            return None
        now = int(time.time())
        right = {"iss": self.address, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
        claims = {name: value for name, value in {**right, **self.claims}.items() if value is not None}
        token = jwt.encode(claims, self.key, algorithm=self.algorithm, headers={"kid": self.key_id})
        return {"id_token": token, "access_token": "x", "token_type": "Bearer"}


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Run a provider during the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            if path == "/authorize":
                self.send_response(302)
                asked = {name: values[0] for name, values in query.items()}
                self.send_header("Location", provider.authorize(asked))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            found = {"/.well-known/openid-configuration": provider.document, "/keys": provider.keys}[path]()
            self._answer(200, found)

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            tokens = provider.token({name: values[0] for name, values in parse_qs(text).items()})
            self._answer(400 if tokens is None else 200, tokens or {"error": "invalid_grant"})

        def _answer(self, status: int, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = IdentityProvider(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield provider
        server.shutdown()
