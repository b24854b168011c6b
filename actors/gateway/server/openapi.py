"""The OpenAPI 3.1 document, made from the route table that is also what is served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    BodyTooLarge,
    CallTimeout,
    MalformedBody,
    NoSuchActor,
    NotAllowed,
    Overloaded,
    WrongToken,
)
from actorgrid.models import ErrorBody
from actorgrid.sizes import STATE_KEY_MAX

from .codec import JSON, MSGPACK
from .route import Route

REF = "#/components/schemas/{model}"
_PART = re.compile(r"\{([a-z_]+)(?::[^}]*)?\}")


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The whole document as plain values."""
    routes = tuple(routes)
    asked = {model for route in routes for model in (route.request, route.query) if model is not None}
    given = {route.answer for route in routes if not isinstance(route.answer, str)} | {ErrorBody}
    named, schemas = models_json_schema(
        [(model, "validation") for model in sorted(asked, key=_name)]
        + [(model, "serialization") for model in sorted(given, key=_name)],
        ref_template=REF,
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.documented_path, {})[route.method.lower()] = _operation(route, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "actorgrid",
            "version": version,
            "summary": "The admin API of an actorgrid host.",
            "description": "JSON, or msgpack by Content-Type and Accept: bytes are base64 texts in JSON and bin in"
            " msgpack. Errors name the condition and say what was asked, what was found and what to try.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _operation(route: Route, named: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {
            **{str(status): _success(route, named) for status in (route.status, *route.other)},
            **_errors(route, named),
        },
        "security": [{"token": []}] if route.token else [],
    }
    if route.request is not None:
        schema = named[(route.request, "validation")]
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}}
    return found


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "maxLength": STATE_KEY_MAX}}
        for name in _PART.findall(route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = route.query.model_json_schema(ref_template=REF)
    required = schema.get("required", [])
    found = []
    for name, field in schema.get("properties", {}).items():
        parameter = {"name": name, "in": "query", "required": name in required, "schema": dict(field)}
        if "description" in field:
            parameter["description"] = parameter["schema"].pop("description")
        found.append(parameter)
    return found


def _success(route: Route, named: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(route.answer, str):
        schema: dict[str, Any] = {"type": "string"}
        if route.answer == "application/octet-stream":
            schema = {}
        elif route.answer == "application/json":
            schema = {"type": "object"}
        return {"description": route.summary, "content": {route.answer: {"schema": schema}}}
    schema = named[(route.answer, "serialization")]
    return {"description": route.summary, "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}}


def errors_of(route: Route) -> tuple[type[ActorGridError], ...]:
    """Everything an operation may refuse with: its own conditions and those of its kind."""
    common: list[type[ActorGridError]] = [BadRequest]
    if route.token:
        common += [WrongToken, NotAllowed, Overloaded, NoSuchActor, CallTimeout]
    if route.request is not None:
        common += [MalformedBody, BodyTooLarge]
    return tuple(dict.fromkeys((*route.errors, *common)))


def _errors(route: Route, named: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for error in errors_of(route):
        by_status.setdefault(error.http_status, []).append(error.__name__)
    schema = named[(ErrorBody, "serialization")]
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
            "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}},
        }
        for status, codes in sorted(by_status.items())
        if status not in (route.status, *route.other)
    }
