//! A PostgreSQL whose users OpenBao creates: the database engine, roles whose users expire after seconds, worlds with a
//! server that queries it, and checks of which users are left afterwards.

use std::collections::BTreeMap;

use vaultrs::api::database::requests::{PostgreSQLConnectionRequestBuilder, SetRoleRequestBuilder};
use vaultrs::database::{connection, role};

use crate::openbao::OpenBao;
use crate::postgres::{OWNER_PASSWORD, Postgres};
use crate::process::process_ids;
use crate::server::Server;
use crate::vault::{self, prepared};
use crate::world::Builder;

/// An OpenBao and a PostgreSQL; dropped in this order, because OpenBao has connections to PostgreSQL.
#[derive(Debug)]
pub struct Database {
    pub bao: OpenBao,
    pub postgres: Postgres,
}

/// How long the leases of a role's users last, in Vault's notation: from each read or renewal, and in total.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    pub ttl: &'static str,
    pub max_ttl: &'static str,
}

/// Longer than any test: such a user is removed by revocation, not by expiry.
pub const LONG: LeaseTimes = LeaseTimes { ttl: "1h", max_ttl: "24h" };

impl Database {
    /// Starts both servers, mounts the engine, and writes the policy of `agent`.
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

    /// Configures the engine's connection to PostgreSQL, without testing it.
    #[track_caller]
    pub fn connect(&self, password: &str) {
        let listens_at = self.postgres.listens_at;
        let url =
            format!("postgresql://{{{{username}}}}:{{{{password}}}}@{listens_at}/postgres?sslmode=disable");
        let mut wanted = PostgreSQLConnectionRequestBuilder::default();
        wanted.plugin_name("postgresql-database-plugin").allowed_roles(["*".to_owned()]).connection_url(url);
        wanted.username("postgres").password(password).verify_connection(false);
        self.bao.operator("connect the database", async |client| {
            connection::postgres(client, "database", "test", Some(&mut wanted)).await
        });
    }

    /// Writes a role whose users can only log in. Their revocation also closes their connections.
    #[track_caller]
    pub fn role(&self, name: &str, times: LeaseTimes) {
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
        wanted.db_name("test").default_ttl(times.ttl).max_ttl(times.max_ttl);
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

    /// Gives a server the URL of the user in the secret `secret`.
    pub fn with_url(&self, server: Server, secret: &str) -> Server {
        let url = self.postgres.url(&format!("{{{secret}.username}}"), &format!("{{{secret}.password}}"));
        let host = format!("hosts = [\"{}\"]", self.postgres.listens_at);
        server.env("DATABASE_URL", &url).confine(&host)
    }

    /// The users that OpenBao created and that still exist.
    #[track_caller]
    pub fn users(&self) -> Vec<String> {
        self.postgres.query("SELECT rolname FROM pg_roles WHERE rolname LIKE 'v-%' ORDER BY 1")
    }

    /// How long ago a user was created, in seconds.
    #[track_caller]
    pub fn age(&self, user: &str) -> f64 {
        let sql =
            format!("SELECT extract(epoch FROM clock_timestamp() - at) FROM made WHERE name = '{user}'");
        let age = self.postgres.query(&sql).first().and_then(|age| age.parse().ok());
        age.expect("the creation of every user was recorded")
    }

    /// The users of OpenBao that are connected.
    #[track_caller]
    pub fn connected(&self) -> Vec<String> {
        self.postgres
            .query("SELECT DISTINCT usename FROM pg_stat_activity WHERE usename LIKE 'v-%' ORDER BY 1")
    }

    /// By process id: the URL of this database in the environment of each process that has one.
    pub fn urls_in_processes(&self) -> BTreeMap<u32, String> {
        let end = format!("@{}/postgres", self.postgres.listens_at);
        let url_of = |id: u32| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).ok()?;
            let entries = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            let url = entries.filter_map(|entry| entry.strip_prefix("DATABASE_URL=").map(str::to_owned));
            Some((id, url.into_iter().find(|url| url.ends_with(&end))?))
        };
        process_ids().filter_map(url_of).collect()
    }

    /// The database URL in the environment of the only process that has it.
    #[track_caller]
    pub fn url_in_process(&self) -> String {
        let urls = self.urls_in_processes();
        assert_eq!(urls.len(), 1, "not one process has a database URL: {urls:?}");
        urls.into_values().next().expect("it was counted")
    }
}

/// The lines of a secret whose user name is public, so that a test can compare it with the database.
pub fn user_of(role: &str) -> String {
    format!("vault = \"database/creds/{role}\"\npublic = [\"username\"]")
}
