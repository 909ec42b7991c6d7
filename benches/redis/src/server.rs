//! The Redis server that all contenders share.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::AnyError;

/// A `redis-server` process. Dropping this stops it.
pub struct Server {
    process: Child,
    port: u16,
}

impl Server {
    pub async fn start() -> Result<Self, AnyError> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Self { process: launch(port)?, port };
        server.answers().await?;
        Ok(server)
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again after it was killed, without its data.
    pub async fn restart(&mut self) -> Result<(), AnyError> {
        self.process = launch(self.port)?;
        self.answers().await
    }

    async fn answers(&self) -> Result<(), AnyError> {
        let start = Instant::now();
        while self.version().await.is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("`redis-server` does not answer".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `Redis 7.0.15`
    pub async fn version(&self) -> Result<String, AnyError> {
        let mut connection = redis::Client::open(self.url())?.get_multiplexed_async_connection().await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        let valkey = field("valkey_version:").map(|version| format!("Valkey {version}"));
        let redis = field("redis_version:").map(|version| format!("Redis {version}"));
        valkey.or(redis).ok_or_else(|| "a server of no version".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(port: u16) -> Result<Child, AnyError> {
    let launched = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .spawn();
    launched.map_err(|error| format!("`redis-server` is needed: {error}").into())
}
