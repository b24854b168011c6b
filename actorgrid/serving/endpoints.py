"""Which methods of a class are served, of which kind, and what their requests have to look like."""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from actorgrid.errors import ActorGridError, MalformedBody, NotAService

from .service import BatchedMethod

SHOWN = 5
"""Errors of a body that are told at once."""
RESERVED = frozenset({"health", "metrics", "v1", "close"})
"""Names that no method is served under; ``close`` is called at the end."""
LANGUAGE = ("chat", "complete", "embed")
"""Methods with which a class is a language model: they are served under /v1."""


class EndpointKind(enum.Enum):
    """How a method is called."""

    BATCHED = "batched"
    CALL = "call"
    COROUTINE = "coroutine"
    STREAM = "stream"
    """A generator, whose steps run in the model's threads."""
    COROUTINE_STREAM = "coroutine stream"


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method that is served."""

    name: str
    kind: EndpointKind
    whole: bool
    """Whether the body is its one argument; else it is an object with its arguments by name."""
    adapter: TypeAdapter[Any]
    summary: str

    @property
    def streams(self) -> bool:
        """Whether it gives several values, one after the other."""
        return self.kind in (EndpointKind.STREAM, EndpointKind.COROUTINE_STREAM)

    def checked(self, body: bytes) -> Any:
        """The item, or the arguments by name, of a request's body. Raises MalformedBody."""
        try:
            if self.whole:
                return self.adapter.validate_json(body)
            model = self.adapter.validate_json(body.strip() or b"{}")
            return {name: getattr(model, name) for name in type(model).model_fields}
        except ValidationError as error:
            raise malformed(error, f"the request of {self.name}") from None


def malformed(error: ValidationError, what: str) -> MalformedBody:
    """What is wrong with a body, with the path of each part that is."""
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, each['loc'])) or '(the whole)'}: {each['msg']}" for each in wrong[:SHOWN]]
    paths = [".".join(map(str, each["loc"])) for each in wrong[:SHOWN]]
    return MalformedBody(f"{what} is wrong: {'; '.join(told)}", paths=paths)


def find_class(target: str) -> type:
    """The class that ``package.module:Class`` names. Raises NotAService, with what loading its module raised."""
    module_name, colon, class_name = target.partition(":")
    if not (colon and module_name and class_name):
        raise NotAService("a class is named as package.module:Class", asked=target[:200])
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except ActorGridError:
        raise
    except ModuleNotFoundError as error:
        raise NotAService(
            f"there is no module {error.name}", asked=target, hint=f"it was looked for from {here}"
        ) from error
    except AttributeError as error:
        raise NotAService(str(error), asked=target) from error
    except Exception as error:  # whatever a module of the user's raises while it loads
        raise NotAService(f"loading {module_name} raised {type(error).__name__}: {error}", asked=target) from error
    if not isinstance(found, type):
        raise NotAService(f"{target} is no class", found=type(found).__name__)
    return found


def served_methods(cls: type) -> dict[str, ServedMethod]:
    """The methods of *cls* that are served: all whose names have no underscore in front. Raises NotAService."""
    found: dict[str, ServedMethod] = {}
    for name in dir(cls):
        if name.startswith("_") or name == "close":
            continue
        value = inspect.getattr_static(cls, name)
        function = value.function if isinstance(value, BatchedMethod) else value
        if isinstance(value, staticmethod | classmethod | property | type) or not inspect.isfunction(function):
            continue
        if name in RESERVED:
            raise NotAService(f"no method can be called {name}: the server has that path", asked=cls.__qualname__)
        if name not in LANGUAGE:
            found[name] = _served(cls, name, function, isinstance(value, BatchedMethod))
    if not found and not any(hasattr(cls, name) for name in LANGUAGE):
        raise NotAService(
            f"{cls.__qualname__} has no method to serve",
            hint="methods without an underscore in front are served; chat, complete and embed under /v1",
        )
    return found


def kind_of(cls: type, name: str) -> EndpointKind:
    """How the method *name* of *cls* is called."""
    value = inspect.getattr_static(cls, name)
    if isinstance(value, BatchedMethod):
        return EndpointKind.BATCHED
    if inspect.isasyncgenfunction(value):
        return EndpointKind.COROUTINE_STREAM
    if inspect.iscoroutinefunction(value):
        return EndpointKind.COROUTINE
    return EndpointKind.STREAM if inspect.isgeneratorfunction(value) else EndpointKind.CALL


def _served(cls: type, name: str, function: Callable[..., Any], batched: bool) -> ServedMethod:
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:  # a name that is not there, or whatever an annotation raises
        raise NotAService(f"the annotations of {cls.__qualname__}.{name} cannot be read: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())[1:]
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    if batched:
        needed = [each for each in parameters if each.default is each.empty]
        if len(needed) != 1 or needed[0].kind not in (needed[0].POSITIONAL_ONLY, needed[0].POSITIONAL_OR_KEYWORD):
            raise NotAService(f"{cls.__qualname__}.{name} is batched: it has one parameter, a list of items")
        of_list = typing.get_args(hints.get(needed[0].name, Any))
        return ServedMethod(
            name, EndpointKind.BATCHED, True, _adapter(cls, name, of_list[0] if of_list else Any), summary
        )
    fields: dict[str, Any] = {}
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            raise NotAService(f"{cls.__qualname__}.{name} cannot be served: {each} has no name in a request")
        if each.name.startswith("_") or hasattr(_Arguments, each.name):
            raise NotAService(f"{cls.__qualname__}.{name} cannot be served: a parameter cannot be called {each.name}")
        fields[each.name] = (hints.get(each.name, Any), ... if each.default is each.empty else each.default)
    try:
        model = create_model(f"{name}Arguments", __base__=_Arguments, **fields)
    except (PydanticUserError, NameError, TypeError) as error:
        raise _no_schema(cls, name, error) from error
    return ServedMethod(name, kind_of(cls, name), False, _adapter(cls, name, model), summary)


def _adapter(cls: type, name: str, of: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(of)
    except (PydanticUserError, NameError, TypeError) as error:
        raise _no_schema(cls, name, error) from error


def _no_schema(cls: type, name: str, error: Exception) -> NotAService:
    return NotAService(f"what {cls.__qualname__}.{name} takes has no JSON form: {str(error).partition(chr(10))[0]}")


_Arguments = create_model("Arguments", __config__=ConfigDict(extra="forbid", protected_namespaces=()))
