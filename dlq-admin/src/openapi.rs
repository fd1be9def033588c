//! Description of the HTTP interface, from the table of routes.

use serde_json::{Map, Value, json};

use crate::params::Parameter;
use crate::routes::{self, Allowed, Kind, Route};
use crate::shown::SCHEMA_VERSION;

/// Returns the OpenAPI document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes::all().iter().filter(|route| route.kind == Kind::Api) {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "dlq-admin",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Dead letters: look at them, group them, send them back. Answers are the documents that the command `dlq` \
                prints as JSON; the parameters of a filter are its options. `{store}` may name a log of a broker too, which `stores` lists as one: routes \
                whose `x-logs` is false refuse it with 409, as those whose `x-stores` is false refuse a store.",
        },
        "paths": paths,
        // The empty one stands for consoles without a login, which the same document describes.
        "security": [{ "token": [] }, { "session": [] }, {}],
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "session": { "type": "apiKey", "in": "cookie", "name": crate::door::COOKIE },
            },
            "schemas": {
                "Document": {
                    "type": "object",
                    "required": ["schema_version"],
                    "properties": { "schema_version": { "const": SCHEMA_VERSION } },
                },
                "Error": {
                    "type": "object",
                    "required": ["schema_version", "error"],
                    "properties": {
                        "schema_version": { "const": SCHEMA_VERSION },
                        "error": {
                            "type": "object",
                            "required": ["status", "message"],
                            "properties": { "status": { "type": "integer" }, "message": { "type": "string" } },
                        },
                    },
                },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<_> = in_path(route.path).map(path_parameter).collect();
    // Those of a change stand in its body, where a generated client puts them.
    if !route.is_change() {
        parameters.extend(route.parameters().map(query_parameter));
    }
    let (kind, schema) = answer(route.path);
    let mut operation = json!({
        "summary": route.about,
        "operationId": operation_id(route),
        "parameters": parameters,
        "responses": {
            "200": { "description": "Done", "content": { kind: { "schema": schema } } },
            "default": {
                "description": "Not done, and why",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
            },
        },
    });
    if route.path.contains("{store}") {
        operation["x-logs"] = json!(route.serves.logs());
        operation["x-stores"] = json!(route.serves.stores());
    }
    if let Allowed::From(role) = route.allowed {
        operation["x-role"] = json!(role.as_str());
    }
    if route.is_change() {
        let header = json!({
            "name": "Idempotency-Key",
            "in": "header",
            "description": format!(
                "a request that is made again with the same key has the same answer and is not carried out again; the last {} are \
                 kept, in memory",
                crate::idempotency::MOST
            ),
            "schema": { "type": "string", "maxLength": crate::idempotency::LONGEST },
        });
        if let Some(parameters) = operation["parameters"].as_array_mut() {
            parameters.push(header);
        }
        operation["requestBody"] = json!({
            "description": "The parameters may stand in the query as well.",
            "required": route.parameters().any(|one| one.is_required),
            "content": {
                "application/json": { "schema": body(route) },
                "application/x-www-form-urlencoded": { "schema": body(route) },
            },
        });
    }
    operation
}

/// Returns the names in the path.
fn in_path(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn path_parameter(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

fn query_parameter(one: &Parameter) -> Value {
    json!({
        "name": one.name,
        "in": "query",
        "description": one.about,
        "required": one.is_required,
        "schema": schema(one),
    })
}

fn schema(one: &Parameter) -> Value {
    if one.is_many {
        json!({ "type": "array", "items": { "type": "string" } })
    } else {
        json!({ "type": "string" })
    }
}

fn body(route: &Route) -> Value {
    let mut properties = Map::new();
    for one in route.parameters() {
        let mut property = schema(one);
        property["description"] = json!(one.about);
        properties.insert(one.name.to_owned(), property);
    }
    let required: Vec<_> =
        route.parameters().filter(|one| one.is_required).map(|one| one.name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        // A parameter that is not known is refused, and generated clients should know before they send it.
        "additionalProperties": false,
    })
}

fn answer(path: &str) -> (&'static str, Value) {
    if path.ends_with("/events") {
        ("text/event-stream", json!({ "type": "string" }))
    } else if path.ends_with("/payload") {
        ("application/octet-stream", json!({ "type": "string", "format": "binary" }))
    } else {
        ("application/json", json!({ "$ref": "#/components/schemas/Document" }))
    }
}

/// Returns the name of an operation, such as `get_store_letters_id`.
fn operation_id(route: &Route) -> String {
    let parts = route.path.trim_start_matches("/api/v1/").split(['/', '.']);
    let parts = parts.map(|part| part.trim_matches(['{', '}']).replace('-', "_"));
    let name: Vec<_> = parts.collect();
    format!("{}_{}", route.method.as_str().to_ascii_lowercase(), name.join("_"))
}
