//! Loads each protected server with three times what it can take, from another core.
//!
//! An open loop: requests are sent at random times, whatever became of those before. So a
//! slow server gets no less load. A caller gives up after a second and closes its
//! connection.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    served::PROTECTIONS,
    server::{self, Random, Second, TIMEOUT},
};

type Caller = Client<hyper_util::client::legacy::connect::HttpConnector, Empty<Bytes>>;

const UNLOADED: usize = 5;
const OVERLOADED: usize = 15;
const AFTER: usize = 12;

/// Prints a table for each kind of handler, of the protections with this in their names.
pub(crate) fn run(part: &str) -> Result<(), Box<dyn Error>> {
    // The server has the first core; this process, with all of its threads, the second.
    Command::new("taskset").args(["-cp", "1", &std::process::id().to_string()]).stdout(Stdio::null()).status()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for handler in ["pool", "inline"] {
        let bare = Server::start(PROTECTIONS[0], handler)?;
        let capacity = runtime.block_on(bare.capacity());
        drop(bare);
        println!("\n### handler: {handler}; {capacity:.0} requests a second\n");
        println!("| protection | goodput | p99 (at 0.3 of the capacity) | critical in time | normal after |");
        println!("|---|---:|---:|---:|---:|");
        for name in PROTECTIONS.into_iter().filter(|name| name.contains(part)) {
            let server = Server::start(name, handler)?;
            println!("| {name} | {} |", runtime.block_on(server.measure(capacity)));
        }
    }
    Ok(())
}

/// A child process: this binary as a server, on the first core.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(protection: &str, handler: &str) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(env::current_exe()?).args(["server", protection, handler]);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let mut port = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut port)?;
        Ok(Self { process, url: format!("http://127.0.0.1:{}/", port.trim()) })
    }

    /// Answers a second to four callers that each wait for theirs.
    async fn capacity(&self) -> f64 {
        const SECONDS: u64 = 5;
        let end = Instant::now() + Duration::from_secs(SECONDS);
        let callers = (0..4).map(|_| {
            let (client, url) = (client(), self.url.clone());
            tokio::spawn(async move {
                let mut answers = 0;
                while Instant::now() < end {
                    answers += u64::from(ask(&client, &url, "normal").await == Some(StatusCode::OK));
                }
                answers
            })
        });
        let mut answers = 0;
        for caller in callers.collect::<Vec<_>>() {
            answers += caller.await.unwrap_or(0);
        }
        answers as f64 / SECONDS as f64
    }

    async fn measure(&self, capacity: f64) -> String {
        let seconds = Arc::new(Mutex::new(vec![Second::default(); UNLOADED + OVERLOADED + AFTER]));
        let (client, start, mut random) = (client(), Instant::now(), Random::new(1));
        let (mut at, mut end) = (0.0, 0.0);
        for (length, load) in [(UNLOADED, 0.3), (OVERLOADED, 3.0), (AFTER, 0.3)] {
            end += length as f64;
            loop {
                at -= random.part().ln() / (load * capacity);
                if at >= end {
                    break;
                }
                sleep_until(start + Duration::from_secs_f64(at)).await;
                let is_critical = random.part() <= 0.1;
                tokio::spawn(call(client.clone(), self.url.clone(), is_critical, (at as usize, Arc::clone(&seconds))));
            }
            at = end;
        }
        // The last callers have given up by then.
        sleep(2 * TIMEOUT).await;
        let seconds = seconds.lock().expect("no thread panicked").clone();
        let (unloaded, later) = seconds.split_at(UNLOADED);
        let (during, after) = later.split_at(OVERLOADED);
        let normal = server::recovery(after).map_or_else(|| format!("not in {AFTER} s"), |after| format!("{after} s"));
        let (unloaded, during) = (server::summary(unloaded, capacity), server::summary(during, capacity));
        let millis = |p99: Option<u128>| p99.map_or_else(|| "gave up".into(), |millis| format!("{millis} ms"));
        format!(
            "{:.1}% | {} ({}) | {:.1}% | {normal}",
            during.goodput * 100.0,
            millis(during.p99),
            millis(unloaded.p99),
            during.critical * 100.0
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that died already answers nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client() -> Caller {
    Client::builder(TokioExecutor::new()).build_http()
}

/// `None` if the caller gave up.
async fn ask(client: &Caller, url: &str, priority: &str) -> Option<StatusCode> {
    let request = Request::get(url).header("x-priority", priority).body(Empty::new()).ok()?;
    Some(timeout(TIMEOUT, client.request(request)).await.ok()?.ok()?.status())
}

async fn call(client: Caller, url: String, is_critical: bool, (second, seconds): (usize, Arc<Mutex<Vec<Second>>>)) {
    let sent = Instant::now();
    let status = ask(&client, &url, if is_critical { "critical" } else { "normal" }).await;
    let mut seconds = seconds.lock().expect("no thread panicked");
    let second = &mut seconds[second];
    second.sent += 1;
    second.critical += usize::from(is_critical);
    match status {
        Some(StatusCode::OK) => {
            second.latencies.push(sent.elapsed().as_millis());
            second.good += 1;
            second.good_critical += usize::from(is_critical);
        }
        Some(_) => second.rejected += 1,
        None => {}
    }
}
