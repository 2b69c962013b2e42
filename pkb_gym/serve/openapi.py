"""The OpenAPI description of the service, and the page that shows it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from fastapi import FastAPI

OPEN = frozenset({"/v1/health"})
"""Paths of the description that need no token."""

NO_SCRIPTS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}

STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: monospace; background: #f4f4f4; }
pre { padding: .5rem; overflow-x: auto; }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; }
"""


def add_description(app: FastAPI) -> None:
    """Adds /openapi.json and /docs: both without a token, and without scripts."""

    @functools.cache
    def description() -> dict[str, Any]:
        return _with_tokens(app.openapi())

    # No coroutines, as the first of them takes a moment.
    def openapi() -> Response:
        return Response(json.dumps(description()), media_type="application/json")

    def docs() -> Response:
        return Response(_page(description()), media_type="text/html", headers=NO_SCRIPTS)

    app.add_api_route("/openapi.json", openapi, include_in_schema=False, response_model=None)
    app.add_api_route("/docs", docs, include_in_schema=False, response_model=None)


def _with_tokens(description: dict[str, Any]) -> dict[str, Any]:
    """The description with the token that requests need."""
    description.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in description["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN else [{"token": []}]
            operation["responses"].pop("422", None)  # such requests are answered with 400
    return description


def _page(description: Mapping[str, Any]) -> str:
    """A page of HTML without scripts."""
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    operations = "".join(
        _operation(method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    records = "".join(_record(name, record) for name, record in sorted(description["components"]["schemas"].items()))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        "<p>The same as <a href='openapi.json'>OpenAPI</a>.</p>"
        f"<h2>Requests</h2>{operations}<h2>Records</h2>{records}</body></html>"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td>"
        f"<td>in the {escape(each['in'])}, {_type(each['schema'])}</td></tr>"
        for each in operation.get("parameters", [])
    )
    body = operation.get("requestBody")
    if body is not None:
        parameters += f"<tr><td>body</td><td>{_type(body['content']['application/json']['schema'])}</td></tr>"
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(answer['description'])}{_content(answer)}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    token = "" if operation["security"] else " No token is needed."
    return (
        f"<h3 id='{escape(operation['operationId'])}'><code>{method} {escape(path)}</code></h3>"
        f"<p>{escape(operation.get('summary', ''))}{token}</p><table>{parameters}{answers}</table>"
    )


def _content(answer: Mapping[str, Any]) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return f": {_type(schema)}" if schema else ""


def _record(name: str, record: Mapping[str, Any]) -> str:
    required = record.get("required", [])
    fields = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field in required else ' (optional)'}</td><td>{_type(schema)}</td>"
        f"<td>{escape(schema.get('description', ''))}</td></tr>"
        for field, schema in record.get("properties", {}).items()
    )
    values = ", ".join(f"<code>{escape(str(value))}</code>" for value in record.get("enum", []))
    about = escape(record.get("description", ""))
    return f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{about} {values}</p><table>{fields}</table>"


def _type(schema: Mapping[str, Any]) -> str:
    """A type in a few words, with links to records."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    return escape(str(schema.get("type", "any")))
