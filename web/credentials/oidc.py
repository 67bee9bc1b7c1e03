"""Sign-in by OpenID Connect: the authorization code flow with PKCE, and the renewal of its tokens.

This file alone talks to the provider. The messages are oauthlib's and the proof of a token is joserfc's
(docs/decisions/0027). The ID token is what the API server takes, so the provider and the client must be those that
the API server is configured with.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

from web.credentials.session import Session
from web.problems import Problem, RenewalRefused, SignedOut

log = structlog.get_logger(__name__)

#: Signatures of ID tokens: only those with a public key.
_ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"]
#: Seconds for one request to the provider, and for which its description and keys are kept.
_SECONDS, _KEEP = 10.0, 3600.0
#: Bytes of an answer of the provider.
_LARGEST = 1024 * 1024
#: Seconds by which clocks may differ.
_LEEWAY = 60
#: Seconds before its end at which a token is renewed: a stream must not outlive it.
RENEW = 120
REFUSED = "Your sign-in could not be completed: the provider refused it."


@dataclass(frozen=True)
class Provider:
    """Where people sign in. `ca` is PEM text of the authorities to trust, None for the system's."""

    issuer: str
    client_id: str
    client_secret: str = ""
    scopes: tuple[str, ...] = ("openid", "email", "groups", "offline_access")
    ca: str | None = None


class Attempt(msgspec.Struct, frozen=True):
    """A sign-in that is under way; the browser keeps it sealed. `to` is the page to return to."""

    state: str
    nonce: str
    verifier: str
    to: str


class _Described(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class _Refused(SignedOut):
    """The provider gives no token for what was sent."""


class Oidc:
    """One provider. `redirect` is the address at which it sends people back."""

    def __init__(self, provider: Provider, redirect: str, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` is Unix time in seconds."""
        self._provider = provider
        self._redirect = redirect
        self._clock = clock
        self._tls = ssl.create_default_context(cadata=provider.ca)
        self._http: aiohttp.ClientSession | None = None
        self._described: tuple[float, _Described] | None = None
        self._keys: tuple[float, KeySet] | None = None
        #: Renewals that are under way, by the token that they spend: a provider may take each only once.
        self._renewing: dict[str, asyncio.Task[Session]] = {}

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def begin(self, to: str) -> tuple[str, Attempt]:
        """Return the address at the provider, and what must come back. Raise Problem."""
        described = await self._describe()
        client = WebApplicationClient(self._provider.client_id)
        attempt = Attempt(secrets.token_urlsafe(24), secrets.token_urlsafe(24), client.create_code_verifier(64), to)
        try:
            address = client.prepare_request_uri(
                described.authorization_endpoint,
                redirect_uri=self._redirect,
                scope=list(self._provider.scopes),
                state=attempt.state,
                nonce=attempt.nonce,
                code_challenge=client.create_code_challenge(attempt.verifier, "S256"),
                code_challenge_method="S256",
            )
        except OAuth2Error as error:
            raise _unusable(_said(error)) from None
        return address, attempt

    async def finish(self, query: str, attempt: Attempt) -> Session:
        """Return the session that the answer of the provider, a query string, brings. Raise Problem."""
        client = WebApplicationClient(self._provider.client_id)
        try:
            # The address is only parsed; its host plays no part.
            answer = client.parse_request_uri_response(f"https://localhost/?{query}", state=attempt.state)
        except OAuth2Error as error:
            raise SignedOut(f"The sign-in failed: {_said(error)}") from None
        body = client.prepare_request_body(
            code=answer["code"],
            redirect_uri=self._redirect,
            include_client_id=True,
            code_verifier=attempt.verifier,
            **self._secret(),
        )
        session, claims = await self._tokens(client, body, "")
        if not secrets.compare_digest(str(claims.get("nonce")), attempt.nonce):
            raise SignedOut("The sign-in failed: the token is not for this attempt.")
        return session

    def lasts(self, session: Session, early: float) -> bool:
        """Return False shortly before the end of a token that can be renewed: `early` seconds, less than `RENEW`."""
        return not (session.expires and session.refresh) or session.expires - early > self._clock()

    async def renewed(self, session: Session) -> Session:
        """Return the session with a token that lasts, the same one if it does. Raise SignedOut or Problem.

        A provider may take a token for renewal only once, and another replica may spend it at the same time. The one
        that comes second goes on with the session that it has, as long as that is valid.
        """
        if not session.expires or session.expires - RENEW > self._clock():
            return session
        if not session.refresh:
            if session.expires > self._clock():
                return session
            raise SignedOut("Your sign-in has expired.")
        task = self._renewing.get(session.refresh)
        if task is None:
            task = self._renewing[session.refresh] = asyncio.create_task(self._renew(session))
            task.add_done_callback(lambda _: asyncio.get_running_loop().call_later(30, self._forget, session.refresh))
        try:
            return await asyncio.shield(task)
        except _Refused:
            if session.expires > self._clock():
                return session
            raise RenewalRefused(REFUSED, hashlib.sha256(session.refresh.encode()).hexdigest()[:32]) from None

    def _forget(self, refresh: str) -> None:
        self._renewing.pop(refresh, None)

    async def _renew(self, session: Session) -> Session:
        client = WebApplicationClient(self._provider.client_id)
        body = client.prepare_refresh_body(
            refresh_token=session.refresh, client_id=self._provider.client_id, **self._secret()
        )
        renewed, _ = await self._tokens(client, body, session.refresh)
        return renewed

    def _secret(self) -> dict[str, str]:
        return {"client_secret": self._provider.client_secret} if self._provider.client_secret else {}

    async def _tokens(self, client: WebApplicationClient, body: str, refresh: str) -> tuple[Session, Mapping[str, Any]]:
        """Return the session that a request for tokens brings, and the claims of its ID token."""
        described = await self._describe()
        status, text = await self._request("POST", described.token_endpoint, body)
        try:
            found = client.parse_request_body_response(text)
        except (OAuth2Error, Warning) as error:
            log.info("the provider gave no token", status=status, error=getattr(error, "error", str(error)))
            raise _Refused(REFUSED) from None
        token = found.get("id_token")
        if not isinstance(token, str):
            raise _unusable("it sent no ID token: is the scope openid allowed?")
        claims = await self._proven(token, described)
        expires = claims["exp"]
        return Session(token, str(found.get("refresh_token") or refresh), int(expires)), claims

    async def _proven(self, token: str, described: _Described) -> Mapping[str, Any]:
        """Return the claims of a token that this provider signed for us. Raise SignedOut."""
        try:
            try:
                decoded = jwt.decode(token, await self._key_set(described), algorithms=_ALGORITHMS)
            except (JoseError, ValueError):
                # The provider may have changed its keys.
                self._keys = None
                decoded = jwt.decode(token, await self._key_set(described), algorithms=_ALGORITHMS)
            jwt.JWTClaimsRegistry(
                now=int(self._clock()),
                leeway=_LEEWAY,
                iss={"essential": True, "value": described.issuer},
                aud={"essential": True, "value": self._provider.client_id},
                exp={"essential": True},
            ).validate(decoded.claims)
        except (JoseError, ValueError) as error:
            log.warning("an ID token is not valid", error=type(error).__name__)
            raise SignedOut("Your sign-in could not be completed: the provider's token is not valid.") from None
        return decoded.claims

    async def _describe(self) -> _Described:
        now = self._clock()
        if self._described is None or now - self._described[0] > _KEEP:
            issuer = self._provider.issuer.rstrip("/")
            _, text = await self._request("GET", f"{issuer}/.well-known/openid-configuration")
            try:
                found = msgspec.json.decode(text, type=_Described)
            except msgspec.MsgspecError as error:
                raise _unusable(f"its description is not valid: {error}") from None
            if found.issuer.rstrip("/") != issuer:
                raise _unusable(f"it calls itself {_line(found.issuer)}")
            self._described = now, found
        return self._described[1]

    async def _key_set(self, described: _Described) -> KeySet:
        now = self._clock()
        if self._keys is None or now - self._keys[0] > _KEEP:
            _, text = await self._request("GET", described.jwks_uri)
            try:
                self._keys = now, KeySet.import_key_set(msgspec.json.decode(text))
            except (msgspec.MsgspecError, JoseError, ValueError, TypeError, KeyError):
                raise _unusable("its keys cannot be read") from None
        return self._keys[1]

    async def _request(self, method: str, url: str, body: str | None = None) -> tuple[int, str]:
        """Return status and text of an answer. Raise Problem for none, and for a failed GET."""
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=_SECONDS)
            self._http = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=True)
        kind = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
        headers = {**kind, "Accept": "application/json"}
        try:
            async with self._http.request(
                method, url, data=body, headers=headers, ssl=self._tls, allow_redirects=False
            ) as answer:
                text = (await answer.content.read(_LARGEST)).decode("utf-8", "replace")
                if method == "GET" and answer.status != HTTPStatus.OK:
                    raise _unusable(f"it answered {answer.status}")
                return answer.status, text
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _unusable(_line(str(error)) or type(error).__name__) from None


def _said(error: OAuth2Error) -> str:
    return _line(error.description or error.error or type(error).__name__)


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _unusable(why: str) -> Problem:
    return Problem(
        HTTPStatus.BAD_GATEWAY,
        f"The sign-in provider cannot be used: {why}",
        "Try again later, or sign in with a token. An administrator may check --oidc-issuer.",
    )
