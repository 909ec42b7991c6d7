//! Throughput of `Split`: one shared key with a limit of 2,000,000 a second, and
//! two threads that send as fast as they can. Compares `Split` alone and as one
//! of three instances with a Redis INCR for each request over loopback.
//!
//! Three seconds touch four windows, so up to 2,666,666 a second are admitted.
//!
//! `cargo bench --features redis --bench split`. It starts its own
//! `redis-server`.

use std::{
    error::Error,
    future::Future,
    net::TcpListener,
    pin::pin,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tokio::time::interval;
use tower_ratelimit::{
    Algorithm, Descriptor, Quota, RateLimiter,
    backend::{Backend, Local, Share, Split},
};

const THREADS: usize = 2;
const LIMIT: u64 = 2_000_000;
const SECONDS: u64 = 3;

type Failure = Box<dyn Error + Send + Sync>;

/// A Redis server. Dropping this stops it.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Result<Self, Failure> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, url: format!("redis://127.0.0.1:{port}") })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error changes nothing at the end of the benchmark.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Default)]
struct Count {
    requests: Arc<AtomicU64>,
    admitted: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Count {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn wait(&self) {
        tokio::time::timeout(Duration::from_secs(SECONDS), std::future::pending::<()>()).await.unwrap_or_default();
        self.over.store(true, Ordering::Relaxed);
    }

    fn print(&self, name: &str) {
        let a_second = |count: &AtomicU64| count.load(Ordering::Relaxed) / SECONDS;
        println!(
            "{name:<44} {:>12} requests a second, {:>9} admitted",
            a_second(&self.requests),
            a_second(&self.admitted)
        );
    }
}

async fn decisions(name: &str, limit: u64, backend: impl Backend) -> Result<(), Failure> {
    let quota = Quota::per_second(limit).algorithm(Algorithm::FixedWindow);
    let limiter = RateLimiter::builder().policy(quota).backend(backend).build()?;
    let count = Count::default();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (limiter, count) = (limiter.clone(), count.clone());
            thread::spawn(move || {
                let request = Descriptor::new("/").tenant("acme");
                let (mut requests, mut admitted) = (0, 0);
                while !count.is_over() {
                    for _ in 0..256 {
                        let decision = match pin!(limiter.check(&request)).poll(&mut Context::from_waker(Waker::noop()))
                        {
                            Poll::Ready(decision) => decision,
                            Poll::Pending => return,
                        };
                        requests += 1;
                        admitted += u64::from(decision.is_allowed());
                    }
                }
                count.requests.fetch_add(requests, Ordering::Relaxed);
                count.admitted.fetch_add(admitted, Ordering::Relaxed);
            })
        })
        .collect();
    count.wait().await;
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?;
    }
    count.print(name);
    Ok(())
}

/// Counts with `tasks` tasks over one multiplexed connection for each thread.
async fn increments(name: &str, url: &str, tasks: usize) -> Result<(), Failure> {
    let client = redis::Client::open(url)?;
    let mut retry = interval(Duration::from_millis(20));
    let mut connections = Vec::new();
    while connections.len() < THREADS {
        retry.tick().await;
        // The server may still be starting.
        connections.extend(client.get_multiplexed_async_connection().await);
    }
    let count = Count::default();
    let callers: Vec<_> = (0..tasks)
        .map(|task| {
            let (mut connection, count) = (connections[task % THREADS].clone(), count.clone());
            tokio::spawn(async move {
                while !count.is_over() {
                    let count_so_far: u64 = redis::cmd("INCR").arg("acme").query_async(&mut connection).await?;
                    count.requests.fetch_add(1, Ordering::Relaxed);
                    count.admitted.fetch_add(u64::from(count_so_far <= LIMIT * SECONDS), Ordering::Relaxed);
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    count.wait().await;
    for task in callers {
        task.await??;
    }
    count.print(name);
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let server = Server::start()?;
    decisions("Local", LIMIT, Local::new()).await?;
    decisions("Split, the only instance", LIMIT, Split::new(Share::new(0, 1)?)).await?;
    decisions("Split, one of three, 2,000,000 for each", 3 * LIMIT + 1, Split::new(Share::new(1, 3)?)).await?;
    increments("Redis INCR, 2 at once", &server.url, 2).await?;
    increments("Redis INCR, 512 at once", &server.url, 512).await?;
    Ok(())
}
