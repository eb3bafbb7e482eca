//! A PostgreSQL whose users OpenBao makes: the database engine, roles with lives of seconds, worlds with a server that
//! asks it, and what is left of those users afterwards.

use std::collections::BTreeMap;

use vaultrs::api::database::requests::{PostgreSQLConnectionRequestBuilder, SetRoleRequestBuilder};
use vaultrs::database::{connection, role};

use crate::openbao::OpenBao;
use crate::postgres::{OWNER_PASSWORD, Postgres};
use crate::process::process_ids;
use crate::server::Server;
use crate::vault::{self, prepared};
use crate::world::Builder;

/// OpenBao goes first: it has connections to the other.
#[derive(Debug)]
pub struct Database {
    pub bao: OpenBao,
    pub postgres: Postgres,
}

/// How long the users of a role live, as Vault writes it: after a read or a renewal, and in all.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub ttl: &'static str,
    pub max_ttl: &'static str,
}

/// Longer than any test: such a user ends by revocation, not by expiry.
pub const LONG: Life = Life { ttl: "1h", max_ttl: "24h" };

impl Database {
    /// Both servers, the engine between them, and what `agent` may read.
    #[track_caller]
    pub fn start() -> Option<Self> {
        let postgres = Postgres::start()?;
        let bao = prepared(OpenBao::dev())?;
        bao.mount("database", "database");
        bao.policy("agent", &[("database/creds/*", &["read"]), ("secret/data/github", &["read"])]);
        postgres.query("CREATE TABLE made (name text PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())");
        let database = Self { bao, postgres };
        database.connect(OWNER_PASSWORD);
        Some(database)
    }

    /// Tells the engine how to reach PostgreSQL, without trying.
    #[track_caller]
    pub fn connect(&self, password: &str) {
        let place = self.postgres.place;
        let url = format!("postgresql://{{{{username}}}}:{{{{password}}}}@{place}/postgres?sslmode=disable");
        let mut wanted = PostgreSQLConnectionRequestBuilder::default();
        wanted.plugin_name("postgresql-database-plugin").allowed_roles(["*".to_owned()]).connection_url(url);
        wanted.username("postgres").password(password).verify_connection(false);
        self.bao.operator("connect the database", async |client| {
            connection::postgres(client, "database", "test", Some(&mut wanted)).await
        });
    }

    /// A role whose users may read and write; their end cuts their connections too.
    #[track_caller]
    pub fn role(&self, name: &str, life: Life) {
        let creation = [
            "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'",
            "INSERT INTO made (name) VALUES ('{{name}}')",
        ];
        let revocation = [
            "ALTER ROLE \"{{name}}\" NOLOGIN",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{{name}}'",
            "DROP ROLE IF EXISTS \"{{name}}\"",
        ];
        let mut wanted = SetRoleRequestBuilder::default();
        wanted.db_name("test").default_ttl(life.ttl).max_ttl(life.max_ttl);
        wanted.creation_statements(creation.map(str::to_owned));
        wanted.revocation_statements(revocation.map(str::to_owned));
        self.bao.operator("write a role of the database", async |client| {
            role::set(client, "database", name, Some(&mut wanted)).await
        });
    }

    /// A world whose secret `db` is a user of this role.
    pub fn world(&self, role: &str) -> Builder {
        vault::world(&self.bao).secret("db", &user_of(role))
    }

    /// A server with the URL of the user that the secret `secret` has.
    pub fn with_url(&self, server: Server, secret: &str) -> Server {
        let url = self.postgres.url(&format!("{{{secret}.username}}"), &format!("{{{secret}.password}}"));
        server.env("DATABASE_URL", &url)
    }

    /// The users that OpenBao made and that are there.
    #[track_caller]
    pub fn users(&self) -> Vec<String> {
        self.postgres.query("SELECT rolname FROM pg_roles WHERE rolname LIKE 'v-%' ORDER BY 1")
    }

    /// How long ago it was made, in seconds.
    #[track_caller]
    pub fn age(&self, user: &str) -> f64 {
        let sql =
            format!("SELECT extract(epoch FROM clock_timestamp() - at) FROM made WHERE name = '{user}'");
        let age = self.postgres.query(&sql).first().and_then(|age| age.parse().ok());
        age.expect("every user was written down when it was made")
    }

    /// Those of them that are connected.
    #[track_caller]
    pub fn connected(&self) -> Vec<String> {
        self.postgres
            .query("SELECT DISTINCT usename FROM pg_stat_activity WHERE usename LIKE 'v-%' ORDER BY 1")
    }

    /// The URL in the environment of each process that has one of this database.
    pub fn urls(&self) -> BTreeMap<u32, String> {
        let end = format!("@{}/postgres", self.postgres.place);
        let url_of = |id: u32| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).ok()?;
            let entries = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            let url = entries.filter_map(|entry| entry.strip_prefix("DATABASE_URL=").map(str::to_owned));
            Some((id, url.into_iter().find(|url| url.ends_with(&end))?))
        };
        process_ids().filter_map(url_of).collect()
    }

    /// The URL of the one process that has one.
    #[track_caller]
    pub fn url(&self) -> String {
        let urls = self.urls();
        assert_eq!(urls.len(), 1, "one process has a credential: {urls:?}");
        urls.into_values().next().expect("it was counted")
    }
}

/// The lines of a secret: its user's name is public, so that a test can compare it with the database.
pub fn user_of(role: &str) -> String {
    format!("vault = \"database/creds/{role}\"\npublic = [\"username\"]")
}
