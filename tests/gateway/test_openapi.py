"""The served document is valid OpenAPI 3.1, names every limit, and each limit is the one that is held to."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel, ValidationError

from actorgrid.actors.gateway.server.application import ROUTES
from actorgrid.actors.gateway.server.openapi import document
from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.errors import BadRequest, CommandTooLarge
from actorgrid.models import TaskRequest
from actorgrid.sizes import STATE_KEY_MAX
from actorgrid.supervisors.inspection import SetTrace, Suspend

DOCUMENT = document(ROUTES, "1")
SCHEMAS = DOCUMENT["components"]["schemas"]
ASKED = sorted({model for route in ROUTES for model in (route.request, route.query) if model}, key=lambda m: m.__name__)
HELD_ELSEWHERE = {("TraceRequest", "events"), ("SuspendRequest", "for_s")}
"""By the server that is asked, or with an error of its own: each has a test below."""


def unlimited(schema: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Where in *schema* a text, list, map or number has no end."""
    if isinstance(schema, list):
        for number, part in enumerate(schema):
            yield from unlimited(part, (*path, number))
    if not isinstance(schema, dict):
        return
    ends = {
        "string": ("maxLength", "enum", "const", "pattern", "format"),
        "array": ("maxItems",),
        "integer": ("maximum", "exclusiveMaximum"),
        "number": ("maximum", "exclusiveMaximum"),
    }
    kind = schema.get("type")
    if isinstance(kind, str) and kind in ends and not any(end in schema for end in ends[kind]):
        yield path
    if kind == "object" and schema.get("additionalProperties") and "maxProperties" not in schema:
        yield path
    for name, part in schema.items():
        yield from unlimited(part, (*path, name))


def of_requests() -> set[str]:
    """The schemas that bodies are made of."""
    found: set[str] = set()

    def follow(part: Any) -> None:
        if isinstance(part, list):
            for each in part:
                follow(each)
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                follow(SCHEMAS[name])
            for each in part.values():
                follow(each)

    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            follow(operation.get("requestBody"))
    return found


@pytest.mark.system
def test_the_document_is_valid() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


def schemas_of(part: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each schema of the document that stands for itself, with where it stands."""
    if isinstance(part, list):
        for number, each in enumerate(part):
            yield from schemas_of(each, f"{path}/{number}")
    elif isinstance(part, dict):
        for name, each in part.items():
            if name == "schema":
                yield f"{path}/{name}", each
            else:
                yield from schemas_of(each, f"{path}/{name}")


ALL_SCHEMAS = [*schemas_of(DOCUMENT["paths"], ""), *((f"#/{name}", schema) for name, schema in SCHEMAS.items())]
ONLY_PYTHON = re.compile(r"\(\?(P[<=>]|[aiLmsux-]+[):]|\(|>|#)|\\[AZ]|[*+?}]\+|\[\[:")
"""What a pattern of Python may have and one of ECMA-262 not."""


def parts_of(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """*schema* and each schema in it; names of properties are not taken for keywords."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for name in ("properties", "patternProperties", "$defs"):
        for key, part in schema.get(name, {}).items():
            yield from parts_of(part, f"{path}/{name}/{key}")
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, part in enumerate(schema.get(name, ())):
            yield from parts_of(part, f"{path}/{name}/{number}")
    for name in ("items", "additionalProperties", "propertyNames", "contains", "not"):
        yield from parts_of(schema.get(name), f"{path}/{name}")


def alone(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* as a document of its own, with what it refers to."""
    moved = json.dumps({**schema, "$defs": SCHEMAS}).replace("#/components/schemas/", "#/$defs/")
    whole: dict[str, Any] = json.loads(moved)
    return whole


def test_each_schema_is_one_of_the_draft_by_itself() -> None:
    json.dumps(DOCUMENT, allow_nan=False)
    assert len(ALL_SCHEMAS) > 500
    of_the_draft = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    wrong = []
    for path, schema in ALL_SCHEMAS:
        wrong += [(path, each.message) for each in of_the_draft.iter_errors(schema)]
        for place, part in parts_of(schema, path):
            name = str(part.get("$ref", "#/components/schemas/ErrorBody"))
            if name.removeprefix("#/components/schemas/") not in SCHEMAS:
                wrong.append((place, f"refers to {name}, which is not there"))
            if "pattern" in part and (ONLY_PYTHON.search(part["pattern"]) or not re.compile(part["pattern"])):
                wrong.append((place, f"{part['pattern']} is no pattern of ECMA-262"))
            given = [*part.get("examples", ()), *([part["default"]] if "default" in part else ())]
            by_itself = Draft202012Validator(alone(part)) if given else None
            for value in given:
                errors = by_itself.iter_errors(value) if by_itself is not None else ()
                wrong += [(place, f"{value!r} is not valid here: {error.message}") for error in errors]
    assert wrong == []


@pytest.mark.parametrize("pattern", [r"(?P<a>x)", r"x\Z", r"\Ax", r"(?i)x", r"x++", r"(?>x)", r"(?P=a)"])
def test_patterns_that_only_python_knows_are_found(pattern: str) -> None:
    assert ONLY_PYTHON.search(pattern)


def test_parts_of_paths_and_names_of_operations_are_declared_once() -> None:
    operations = [(path, each) for path, methods in DOCUMENT["paths"].items() for each in methods.values()]
    for path, operation in operations:
        declared = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
        assert sorted(declared) == sorted(re.findall(r"\{([^{}]*)\}", path)), path
        assert all(each["required"] for each in operation["parameters"] if each["in"] == "path")
        twice = Counter((each["name"], each["in"]) for each in operation["parameters"])
        assert max(twice.values(), default=1) == 1, path
    assert max(Counter(operation["operationId"] for _, operation in operations).values()) == 1
    assert max(Counter(re.sub(r"\{[^{}]*\}", "{}", path) for path in DOCUMENT["paths"]).values()) == 1


def test_everything_that_is_asked_has_a_limit() -> None:
    found = [place for name in sorted(of_requests()) for place in unlimited(SCHEMAS[name], (name,))]
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                found += unlimited(parameter["schema"], (operation["operationId"], parameter["name"]))
    assert found == []


def limits() -> Iterator[tuple[type[BaseModel], str, dict[str, Any]]]:
    for model in ASKED:
        for name, field in model.model_json_schema().get("properties", {}).items():
            for part in field.get("anyOf", [field]):
                if {"maximum", "maxLength", "maxItems"} & part.keys() and (model.__name__, name) not in HELD_ELSEWHERE:
                    yield model, name, part


@pytest.mark.parametrize(
    ("model", "name", "part"), [pytest.param(*each, id=f"{each[0].__name__}.{each[1]}") for each in limits()]
)
def test_each_limit_is_the_one_that_is_held_to(model: type[BaseModel], name: str, part: dict[str, Any]) -> None:
    def refused(value: Any) -> bool:
        """Whether the field is refused for being over its limit."""
        try:
            model.model_validate({name: value})
        except ValidationError as error:
            kinds = ("less_than_equal", "string_too_long", "too_long")
            return any(each["type"] in kinds and each["loc"][0] == name for each in error.errors())
        return False

    if "maximum" in part:
        most = part["maximum"]
        within, over = most, most + max(1, abs(most) // 2**40)
    elif "maxLength" in part:
        within, over = "a" * part["maxLength"], "a" * (part["maxLength"] + 1)
    else:
        within, over = ["a"] * part["maxItems"], ["a"] * (part["maxItems"] + 1)
    assert not refused(within)
    assert refused(over)


def test_limits_that_servers_hold_to_are_theirs() -> None:
    trace = SCHEMAS["TraceRequest"]["properties"]["events"]
    SetTrace(trace["maximum"])
    with pytest.raises(BadRequest):
        SetTrace(trace["maximum"] + 1)
    suspend = SCHEMAS["SuspendRequest"]["properties"]["for_s"]
    Suspend(suspend["maximum"])
    with pytest.raises(BadRequest):
        Suspend(suspend["maximum"] + 1)
    properties = SCHEMAS["TaskRequest"]["properties"]
    argument = properties["command"]["items"]["maxLength"]
    check_exec(["x" * argument], {})
    with pytest.raises(CommandTooLarge):
        check_exec(["x" * (argument + 1)], {})
    assert properties["env"]["additionalProperties"]["maxLength"] == argument
    assert TaskRequest(command=["true"], env={"A": "x" * (argument + 1)}), "left to check_exec, whose error says more"


def test_a_part_of_a_path_is_held_to_its_limit(town: Any) -> None:
    assert town.http("GET", "/api/jobs/" + "x" * STATE_KEY_MAX).status == 404
    reply = town.http("GET", "/api/jobs/" + "x" * (STATE_KEY_MAX + 1))
    assert (reply.status, reply.error["code"]) == (400, "BadRequest")
    assert f"at most {STATE_KEY_MAX}" in reply.error["found"]
