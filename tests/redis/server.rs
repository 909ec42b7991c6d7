//! Real `redis-server` processes: started, killed, frozen, thawed, restarted.
//! All tests on real servers start them here.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use redis::{Client, Cmd, ErrorKind, FromRedisValue, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The settings of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    arguments: Vec<String>,
    password: Option<String>,
    file: Option<String>,
    socket: bool,
    sentinel: bool,
    silent: bool,
}

impl Options {
    /// A setting of `redis-server`: `--NAME VALUE..`.
    pub(crate) fn set<const N: usize>(mut self, name: &str, values: [&str; N]) -> Self {
        self.arguments.push(format!("--{name}"));
        self.arguments.extend(values.map(str::to_owned));
        self
    }

    /// The password of the default user.
    pub(crate) fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", [password])
    }

    /// A node of a cluster, which does not take another one for dead on a busy machine.
    pub(crate) fn cluster(self) -> Self {
        self.set("cluster-enabled", ["yes"]).set("cluster-node-timeout", ["15000"])
    }

    /// A sentinel, with its settings file, to which it writes.
    pub(crate) fn sentinel(mut self, file: String) -> Self {
        (self.sentinel, self.file) = (true, Some(file));
        self
    }

    /// Does not reply to plain connections, so `start` does not wait for one.
    #[cfg(feature = "tls")]
    pub(crate) fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// Reached over a Unix socket.
    #[allow(dead_code, reason = "the tests of the link use it")]
    pub(crate) fn socket(mut self) -> Self {
        self.socket = true;
        self
    }

    pub(crate) async fn start(self) -> Server {
        for _ in 0..20 {
            if let Some(server) = Server::try_start(&self).await {
                return server;
            }
        }
        panic!("no `redis-server` could be started on any of 20 ports");
    }
}

/// A server. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Server {
    options: Options,
    port: u16,
    directory: PathBuf,
    process: Child,
    frozen: bool,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Options::default().start().await
    }

    pub(crate) fn options() -> Options {
        Options::default()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The port of the cluster bus, where servers before version 7 have it.
    pub(crate) fn bus(&self) -> u16 {
        self.port + 10_000
    }

    pub(crate) fn url(&self) -> String {
        match self.options.socket {
            true => format!("unix://{}/socket", self.directory.display()),
            false => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// `None` if another process has taken the port.
    async fn try_start(options: &Options) -> Option<Self> {
        let port = free_port();
        let directory = env::temp_dir().join(format!("tower-ratelimit-{}-{port}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let process = launch(options, port, &directory);
        let mut server = Self { options: options.clone(), port, directory, process, frozen: false };
        server.answers().await.then_some(server)
    }

    /// Waits until it replies; `false` if it has ended.
    async fn answers(&mut self) -> bool {
        let started = format!("`redis-server` on port {} to reply", self.port);
        until(&started, async || {
            if self.process.try_wait().unwrap().is_some() {
                assert!(self.log().contains("ddress already in use"), "`redis-server` has ended:\n{}", self.log());
                return Some(false);
            }
            if self.options.silent {
                return self.log().contains("eady to accept connections").then_some(true);
            }
            self.ask::<String>(&Cmd::ping()).await.ok().map(|_| true)
        })
        .await
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// A new connection of the test: what the backend does to its own must not
    /// affect it.
    pub(crate) async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let client = match &self.options.password {
            Some(password) => Client::open(format!("redis://:{password}@127.0.0.1:{}", self.port))?,
            None => Client::open(self.url())?,
        };
        let connecting = client.get_multiplexed_async_connection();
        let late = |_| RedisError::from((ErrorKind::Io, "no connection in time"));
        tokio::time::timeout(Duration::from_secs(2), connecting).await.map_err(late)?
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection().await?).await
    }

    /// Runs a command: `server.run("CONFIG", ["GET", "maxmemory"])`.
    pub(crate) async fn run<T: FromRedisValue, const N: usize>(&self, command: &str, arguments: [&str; N]) -> T {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.ask(redis::cmd(command).arg(&arguments[..])).await {
                Ok(reply) => return reply,
                // A sentinel disconnects all clients of a server that it has
                // promoted.
                Err(error) if error.is_io_error() && attempts < 5 => {}
                Err(error) => panic!("{command} {arguments:?}: {error}"),
            }
        }
    }

    /// All keys, sorted.
    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.run("KEYS", [pattern]).await;
        keys.sort();
        keys
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.thaw();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Stops the process. Its connections stay open, without replies.
    pub(crate) fn freeze(&mut self) {
        self.signal("STOP");
        self.frozen = true;
    }

    pub(crate) fn thaw(&mut self) {
        if self.frozen {
            self.signal("CONT");
            self.frozen = false;
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -{name}");
    }

    /// Restarts it on the same port, without data.
    pub(crate) async fn restart(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            self.kill();
        }
        self.process = launch(&self.options, self.port, &self.directory);
        assert!(self.answers().await, "another process has taken port {}", self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Best effort: it may have ended already.
        if self.frozen {
            let _ = Command::new("kill").args(["-CONT", &self.process.id().to_string()]).status();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// `REDIS_SERVER` names another one, such as `valkey-server`.
fn launch(options: &Options, port: u16, directory: &Path) -> Child {
    let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let log = directory.join("log");
    let _ = fs::remove_file(&log);
    let mut command = Command::new(&program);
    if let Some(text) = &options.file {
        let file = directory.join("settings");
        fs::write(&file, text).unwrap();
        command.arg(file);
    }
    let own = Options { arguments: Vec::new(), ..options.clone() }.set("bind", ["127.0.0.1"]);
    let mut own = own.set("dir", [directory.to_str().unwrap()]).set("logfile", [log.to_str().unwrap()]);
    if options.sentinel {
        own.arguments.push("--sentinel".into());
    } else {
        own = own.set("save", [""]).set("appendonly", ["no"]);
    }
    if options.socket {
        own = own.set("unixsocket", [directory.join("socket").to_str().unwrap()]);
    }
    if !options.silent {
        own = own.set("port", [&port.to_string()]);
    }
    let replace = |argument: &String| argument.replace("{port}", &port.to_string());
    command.args(own.arguments).args(options.arguments.iter().map(replace));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap_or_else(|error| {
        panic!("`{program}` is needed for these tests, `apt-get install redis-server` has it: {error}")
    })
}

/// A port that is free now. It is below those that the system gives to clients,
/// so that a server that is down for a while finds its own still free; and so is
/// the port of the cluster bus, 10,000 above.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 7_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    loop {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        // Processes that run at the same time begin far from each other.
        let port = FIRST + (nth + process.wrapping_mul(97) % COUNT) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Repeats `look` until it returns something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    const PATIENCE: Duration = Duration::from_secs(30);
    let start = Instant::now();
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(value) = look().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
    }
}
