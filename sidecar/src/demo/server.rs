//! The demo's MCP server: a shop's order book behind an API key. It runs on the host, with the key.

use std::process::ExitCode;

use cofferdam_base::text::hex;
use ring::digest;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::{ServerHandler, ServiceExt, tool, tool_handler, tool_router, transport};

/// The variable in which the server expects its key.
pub(crate) const KEY_VARIABLE: &str = "SHOP_API_KEY";
/// The variable with the SHA-256 of the valid key, by which the shop checks the key.
pub(crate) const VALID_KEY_VARIABLE: &str = "SHOP_GOOD_KEY_SHA256";

pub(crate) fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: start the demo server\n  caused by: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(async {
        let service = Shop { tools: Shop::tools() }
            .serve(transport::stdio())
            .await
            .map_err(|error| error.to_string())?;
        service.waiting().await.map_err(|error| error.to_string())
    });
    match served {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: serve MCP on stdio\n  caused by: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone)]
struct Shop {
    tools: ToolRouter<Self>,
}

#[tool_handler(router = self.tools)]
impl ServerHandler for Shop {}

#[tool_router(router = tools)]
impl Shop {
    #[tool(description = "List the shop's open orders")]
    async fn list_orders(&self) -> String {
        match key_is_valid() {
            true => "order 1001: 2 lanterns\norder 1002: 1 diving bell\n(the shop accepted the key)".into(),
            false => "401: the shop does not accept this key".into(),
        }
    }

    #[tool(description = "Print the environment of the server, as a careless or hostile server might")]
    async fn print_environment(&self) -> String {
        let key = std::env::var(KEY_VARIABLE).unwrap_or_default();
        let hex = hex(key.as_bytes());
        format!("{KEY_VARIABLE}={key}\nthe same in hex: {hex}")
    }

    #[tool(description = "Delete all orders")]
    async fn delete_orders(&self) -> String {
        "all orders are gone".into()
    }
}

fn key_is_valid() -> bool {
    let key = std::env::var(KEY_VARIABLE).unwrap_or_default();
    let valid = std::env::var(VALID_KEY_VARIABLE).unwrap_or_default();
    fingerprint(&key) == valid
}

/// SHA-256 in hex.
pub(crate) fn fingerprint(key: &str) -> String {
    hex(digest::digest(&digest::SHA256, key.as_bytes()).as_ref())
}
