"""Whether a token of the identity provider is good, and who it says somebody is. Decides only: no clock, no socket.

Signatures are joserfc's work (RFC 7515, 7518), which is loaded where one is checked: it is of the extra ``oidc``. Which
of them are taken is said before the token is read (``algorithms``), and the key is looked for by its ``kid`` and kind:
what the token itself says of keys (``jwk``, ``jku``, ``x5c``) is not read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from actorgrid.errors import NotAllowed, NotSupported, WrongToken

TOKEN_MAX: Final = 32 * 1024
"""Characters of a token: some providers put hundreds of groups into one."""
GROUPS_MAX: Final = 2000
SUBJECT_MAX: Final = 255
KEY_ID_MAX: Final = 256
KEYS_MAX: Final = 64
RSA_BYTES: Final = (256, 1024)
"""A key of fewer bits is weak, one of more is for making others compute."""
INSTALL: Final = "pip install 'actorgrid[oidc]'"
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_TYPES: Final = {"id_token": ("", "jwt"), "access_token": ("", "jwt", "at+jwt", "application/at+jwt")}


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to be; times in seconds."""

    issuer: str
    client_id: str
    audience: str
    token: str
    algorithms: tuple[str, ...]
    user_claim: str
    user_domain: str
    groups_claim: str
    skew_s: float
    age_s: float


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """What a token says of its signature; nothing of it is proven."""

    algorithm: str
    key_id: str | None
    kind: str
    """The kind of key that the algorithm takes: RSA, EC or OKP."""


@dataclass(frozen=True, slots=True)
class ProviderKey:
    """A key of the provider: *material* is joserfc's."""

    key_id: str | None
    kind: str
    algorithm: str | None
    material: Any


@dataclass(frozen=True, slots=True)
class SignedInPerson:
    """Who a good token says somebody is: *user* without a tenant."""

    subject: str
    user: str
    groups: frozenset[str]


def check_extra() -> None:
    """Raises NotSupported where the extra is not installed. Loads it: for a thread."""
    try:
        import joserfc.jwk
        import joserfc.jwt  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "signing in by an identity provider needs a library that is not installed on this host",
            found=str(error),
            hint=f"{INSTALL} there, and start the agent again",
        ) from None


def read_keys(told: Sequence[Any]) -> list[ProviderKey]:
    """The keys for signatures among what the provider told, at most 64; what is none of them is left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    found: list[ProviderKey] = []
    for plain in told[:KEYS_MAX]:
        if not isinstance(plain, dict) or plain.get("use", "sig") != "sig" or str(plain.get("kty")) not in kinds:
            continue
        key_id, algorithm = plain.get("kid"), plain.get("alg")
        if not (key_id is None or (isinstance(key_id, str) and len(key_id) <= KEY_ID_MAX)):
            continue
        kind = str(plain["kty"])
        parts = {name: plain[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in plain}
        if kind == "RSA" and not RSA_BYTES[0] <= len(_decoded(str(plain.get("n")))) <= RSA_BYTES[1]:
            continue
        try:
            material = kinds[kind].import_key(parts)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
        found.append(ProviderKey(key_id, kind, algorithm if isinstance(algorithm, str) else None, material))
    return found


def read_header(token: str, rules: TokenRules) -> TokenHeader:
    """What *token* says of its signature. Raises WrongToken for what is none that is taken."""
    parts = token.split(".") if len(token) <= TOKEN_MAX and token.isascii() else []
    if len(parts) != 3:
        raise WrongToken(
            "that is no signed token (JWS, three parts)",
            asked=f"{len(token)} characters",
            found=f"at most {TOKEN_MAX} of ASCII",
        )
    header = _json_of(parts[0])
    algorithm, key_id, typ = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms:
        raise WrongToken(
            "the token is signed in a way that is not taken",
            asked=ascii(algorithm)[:60],
            found=", ".join(rules.algorithms),
            hint="the setting oidc.algorithms",
        )
    if "crit" in header:
        raise WrongToken("the token asks for extensions that nobody here knows", asked="crit")
    if not (key_id is None or (isinstance(key_id, str) and len(key_id) <= KEY_ID_MAX)):
        raise WrongToken("the token's kid is none", asked=ascii(key_id)[:60])
    if not isinstance(typ, str) or typ.lower() not in _TYPES[rules.token]:
        raise WrongToken(
            "that is another kind of token", asked=f"typ {ascii(typ)[:60]}", found=rules.token, hint="oidc.token"
        )
    return TokenHeader(algorithm, key_id, _KINDS[algorithm[:2]])


def find_key(keys: Sequence[ProviderKey], header: TokenHeader) -> ProviderKey | None:
    """The key that a token names; of one that names none, the only key that it can be."""
    fitting = [key for key in keys if key.kind == header.kind and key.algorithm in (None, header.algorithm)]
    if header.key_id is None:
        return fitting[0] if len(fitting) == 1 else None
    return next((key for key in fitting if key.key_id == header.key_id), None)


def check_token(
    token: str, header: TokenHeader, key: ProviderKey, rules: TokenRules, now_s: float, nonce: str = ""
) -> SignedInPerson:
    """Who *token* says somebody is. *now_s*: since the epoch; *nonce*: what was asked with, if anything was.

    Raises WrongToken for a token that is not good, NotAllowed for one that names nobody of use here.
    """
    claims = _verified(token, header, key)
    if claims.get("iss") != rules.issuer:
        raise _wrong("it is of another issuer", claims.get("iss"), rules.issuer)
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if rules.audience not in audiences:
        raise _wrong("it is for somebody else", audience, rules.audience)
    # OpenID Connect Core 1.0, 3.1.3.7: one for several says by azp who asked for it.
    if rules.token == "id_token" and (len(audiences) > 1 or "azp" in claims) and claims.get("azp") != rules.client_id:
        raise _wrong("another client asked for it (azp)", claims.get("azp"), rules.client_id)
    if not now_s < _time(claims, "exp") + rules.skew_s:
        raise _wrong("it has expired", f"exp {_time(claims, 'exp'):.0f}", f"it is {now_s:.0f}")
    if "nbf" in claims and not now_s + rules.skew_s >= _time(claims, "nbf"):
        raise _wrong("it is not good yet", f"nbf {_time(claims, 'nbf'):.0f}", f"it is {now_s:.0f}; are clocks right?")
    age_s = now_s - _time(claims, "iat")
    if not -rules.skew_s <= age_s <= rules.age_s + rules.skew_s:
        raise _wrong("it was not made just now", f"{age_s:.0f} s ago", f"at most {rules.age_s:.0f} s: sign in again")
    if "nonce" in claims and claims["nonce"] != nonce:
        raise _wrong("it was asked for by another sign-in (nonce)", claims["nonce"], "")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_MAX or not subject.isprintable():
        raise _wrong("it names nobody (sub)", subject, f"1 to {SUBJECT_MAX} characters")
    return SignedInPerson(subject, _user(claims, rules), _groups(claims, rules))


def key_id_for(token: str, length: int) -> bytes:
    """The id of the API key that is given for *token*: the same each time, so that the ledger gives one only.

    Of what is signed, not of the signature: of an ECDSA signature anybody makes a second one (r, n-s).
    """
    return hashlib.sha256(b"actorgrid sign in 1\0" + token.rpartition(".")[0].encode()).digest()[:length]


def _verified(token: str, header: TokenHeader, key: ProviderKey) -> dict[str, Any]:
    from joserfc import jws
    from joserfc.errors import JoseError

    # What a header holds beside what is known is not read (RFC 7515, 4.2). Its bounds are for 512 bytes of header and
    # keys of 6,144 bits; the whole token has ours.
    registry = jws.JWSRegistry(algorithms=[header.algorithm], strict_check_header=False)
    registry.max_header_length, registry.max_signature_length = TOKEN_MAX, 2048
    try:
        found = jws.deserialize_compact(token, key.material, registry=registry)
        claims = json.loads(found.payload)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WrongToken("the token's signature is not the provider's", found=str(error)[:100]) from None
    if not isinstance(claims, dict):
        raise WrongToken("the token holds no claims")
    return claims


def _user(claims: Mapping[str, Any], rules: TokenRules) -> str:
    name = _claim(claims, rules.user_claim)
    if not isinstance(name, str) or (rules.user_claim == "email" and claims.get("email_verified") is not True):
        raise NotAllowed(
            "the token does not say who you are",
            asked=f"the claim {rules.user_claim}",
            found="an address that the provider has not verified" if isinstance(name, str) else "none",
            hint="oidc.user_claim names the claim; oidc.scopes what is asked for",
        )
    if rules.user_domain:
        name, at, domain = name.rpartition("@")
        if not at or domain.lower() != rules.user_domain.lower():
            raise NotAllowed(
                "your name is of another domain", asked=ascii(f"{name}{at}{domain}")[:150], found=rules.user_domain
            )
    return name


def _groups(claims: Mapping[str, Any], rules: TokenRules) -> frozenset[str]:
    told = _claim(claims, rules.groups_claim)
    groups = [told] if isinstance(told, str) else told
    if not isinstance(groups, list) or len(groups) > GROUPS_MAX or not all(isinstance(each, str) for each in groups):
        raise NotAllowed(
            "the token does not say your groups",
            asked=f"the claim {rules.groups_claim}",
            found="none" if told is None else f"no list of at most {GROUPS_MAX} texts",
            hint="oidc.groups_claim names the claim; the provider may have to be told to put it into tokens",
        )
    return frozenset(groups)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of that name; of a name with dots that is no claim, what lies inside."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
        raise _wrong(f"its {name} is no time", value, "seconds since 1970")
    return float(value)


def _wrong(what: str, asked: Any, found: str) -> WrongToken:
    text = asked if isinstance(asked, str) else json.dumps(asked, default=str)
    return WrongToken(f"the identity provider's token is not taken: {what}", asked=ascii(text)[1:-1][:200], found=found)


def _json_of(part: str) -> dict[str, Any]:
    try:
        found = json.loads(_decoded(part))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise WrongToken("that is no signed token", found="its first part is no JSON object")
    return found


def _decoded(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (ValueError, binascii.Error):
        return b""
