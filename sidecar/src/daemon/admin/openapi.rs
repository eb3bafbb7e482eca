//! The OpenAPI document of the admin API, generated from the routes and the types.
//!
//! A test compares it with `sidecar/openapi.json`; `UPDATE_OPENAPI=1 cargo test -p cofferdam --lib admin::openapi` updates
//! that file.

use std::sync::LazyLock;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::error::ErrorBody;
use super::routes::{self, Access, REQUEST_TAG, RESPONSE_TAG, ROUTES, Route, RouteKind};
use super::{AdminRequest, AdminResponse};

/// The document, ending in a newline.
pub(super) static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let text = serde_json::to_string_pretty(&document()).expect("the document is plain JSON");
    format!("{text}\n")
});

const DESCRIPTION: &str = "Controls a Cofferdam sidecar. The same API is served on the admin socket, where no \
    authentication is needed, and on the port of `admin.tls`. A bearer token is for some grants: it sees and changes \
    nothing that belongs to others. Each connection carries one request.";

fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let requests = variants(AdminRequest::json_schema(&mut generator), REQUEST_TAG);
    let responses = variants(AdminResponse::json_schema(&mut generator), RESPONSE_TAG);
    let error_schema = schema_reference::<ErrorBody>(&mut generator);
    let mut paths = Map::new();
    for route in &ROUTES {
        let operation = operation(route, &requests, &responses, &error_schema);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation;
    }
    paths.insert(
        routes::DOCUMENT.into(),
        json!({"get": {
            "operationId": "openapi",
            "summary": "This document",
            "responses": {
                "200": {"description": "Done", "content": {"application/json": {"schema": {"type": "object"}}}},
                "default": error_response(&error_schema),
            },
        }}),
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cofferdam's admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {"certificate": []}],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {
                "certificate": {"type": "mutualTLS", "description": "Signed by an authority of `admin.client-ca-file`"},
                "token": {"type": "http", "scheme": "bearer", "description": "Created with `cofferdam token create`"},
            },
        },
    })
}

fn operation(
    route: &Route,
    requests: &Map<String, Value>,
    responses: &Map<String, Value>,
    error_schema: &Value,
) -> Value {
    let mut fields = requests[route.request].clone();
    let mut operation = json!({"operationId": route.request, "summary": route.summary});
    if route.access == Access::Administrator {
        operation["description"] = "Not for bearer tokens".into();
    }
    if let Some(variable) = route.variable() {
        let mut schema = remove_field(&mut fields, variable);
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        schema["minLength"] = 1.into();
        let mut parameter = json!({"name": variable, "in": "path", "required": true, "schema": schema});
        if let Some(description) = description {
            parameter["description"] = description;
        }
        operation["parameters"] = json!([parameter]);
    }
    if route.has_body() {
        let body = json!({"required": true, "content": {"application/json": {"schema": fields}}});
        operation["requestBody"] = body;
    }
    let schema = &responses[route.response];
    let (status, success) = match route.kind {
        RouteKind::Json => {
            ("200", json!({"description": "Done", "content": {"application/json": {"schema": schema}}}))
        }
        RouteKind::Events => (
            "200",
            json!({
                "description": "Server-sent events. `ready` comes first; the others are named after `event` in their data, \
                    which is one change; `lagged` means that changes were lost: list again",
                "content": {"text/event-stream": {"schema": schema}},
            }),
        ),
        RouteKind::Upgrade(protocol) => {
            let description = format!("The connection is a stream of `{protocol}` now");
            ("101", json!({"description": description}))
        }
    };
    operation["responses"] = json!({status: success, "default": error_response(error_schema)});
    operation
}

fn error_response(schema: &Value) -> Value {
    json!({"description": "Refused", "content": {"application/json": {"schema": schema}}})
}

/// The variants of a tagged enum by name, without the tag.
fn variants(schema: Schema, tag: &str) -> Map<String, Value> {
    let mut schema = schema.to_value();
    let variants = schema["oneOf"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let by_name = variants.into_iter().map(|mut variant| {
        let field = remove_field(&mut variant, tag);
        (field["const"].as_str().expect("a variant has a name").to_owned(), variant)
    });
    by_name.collect()
}

/// Removes a field from the schema of an object, and returns the field's schema.
fn remove_field(schema: &mut Value, field: &str) -> Value {
    if let Some(required) = schema["required"].as_array_mut() {
        required.retain(|name| name != field);
    }
    schema["properties"].as_object_mut().and_then(|properties| properties.remove(field)).unwrap_or_default()
}

fn schema_reference<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_openapi_file_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(path, &*DOCUMENT).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == *DOCUMENT,
            "openapi.json is out of date: run `UPDATE_OPENAPI=1 cargo test -p cofferdam --lib admin::openapi`"
        );
    }

    #[test]
    fn every_request_and_response_of_a_route_is_described() {
        let document = document();
        for route in &ROUTES {
            let operation = &document["paths"][route.path][route.method.as_str().to_lowercase()];
            assert_eq!(operation["operationId"], route.request);
            let fields = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(fields.is_object(), route.has_body(), "{}", route.request);
            assert!(fields["properties"][REQUEST_TAG].is_null());
        }
        let enroll =
            &document["paths"]["/v1/enrolments"]["post"]["requestBody"]["content"]["application/json"];
        assert_eq!(enroll["schema"]["required"], json!(["grant"]));
        assert_eq!(enroll["schema"]["additionalProperties"], json!(false));
        let parameters = &document["paths"]["/v1/attach/{enrolment}/pipe"]["post"]["parameters"];
        assert_eq!(parameters[0]["name"], "enrolment");
    }
}
