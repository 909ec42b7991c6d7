//! A real `redis-server` behind a network in virtual time: [`Network`]. Each message
//! takes [`LATENCY`], replies are lost with their connection, and the store freezes, by
//! Tokio's paused clock.
//!
//! The scripts are those of the backend, and run on the server. The network only fills
//! in the time by which they decide: the virtual one, where a call has none.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream as Connection,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until},
};

use super::fleet::next_random;

/// How long a message takes one way.
pub(crate) const LATENCY: Duration = Duration::from_millis(1);

/// How long the store keeps counters beyond their use, in microseconds: real time may
/// pass faster than virtual time.
const RETENTION: u64 = 3_600_000_000;

/// A server of its own. Dropping it ends it.
struct Server {
    process: Child,
    directory: PathBuf,
}

impl Server {
    /// `REDIS_SERVER` names another one than `redis-server`.
    fn start() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = env::temp_dir().join(format!("tower-ratelimit-sim-{}-{nth}", std::process::id()));
        fs::create_dir_all(&directory).expect("a folder for the server");
        let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut command = Command::new(&program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        let process = command.arg(directory.join("server")).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let process = process.unwrap_or_else(|error| panic!("`{program}` is needed for the simulation: {error}"));
        let mut server = Self { process, directory };
        let log = BufReader::new(server.process.stdout.take().expect("its output"));
        let is_ready = log.lines().map_while(Result::ok).any(|line| line.contains("eady to accept connections"));
        assert!(is_ready, "`{program}` has ended");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Best effort: it may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What happens to messages.
#[derive(Debug, Default)]
struct Faults {
    /// Of a thousand replies.
    lost: u64,
    random: u64,
    frozen_until: Option<Instant>,
}

impl Faults {
    fn loses_reply(&mut self) -> bool {
        next_random(&mut self.random) % 1_000 < self.lost
    }
}

/// The way to the store. Dropping it ends the store.
pub(crate) struct Network {
    server: Server,
    faults: Mutex<Faults>,
    calls: AtomicU64,
    /// The virtual time, in nanoseconds since the Unix epoch, at `origin`.
    start: u64,
    origin: Instant,
}

impl Network {
    /// Starts a store whose clock is at `start` now. Of a thousand replies, `lost` are.
    pub(crate) fn start(start: u64, lost: u64) -> Arc<Self> {
        let faults = Mutex::new(Faults { lost, random: 0x2545_f491_4f6c_dd1d, frozen_until: None });
        let network = Self { server: Server::start(), faults, calls: AtomicU64::new(0), start, origin: Instant::now() };
        let network = Arc::new(network);
        let listener = UnixListener::bind(network.path()).expect("a socket");
        let weak = Arc::downgrade(&network);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(network) = weak.upgrade() else { return };
                network.connect(client);
            }
        });
        network
    }

    /// Where a backend connects to.
    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.path().display())
    }

    fn path(&self) -> PathBuf {
        self.server.directory.join("network")
    }

    /// Scripts that the store has run.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The store stops for a while. What is sent to it runs afterwards.
    pub(crate) fn freeze(&self, duration: Duration) {
        self.faults.lock().expect("no panic").frozen_until = Some(Instant::now() + duration);
    }

    fn connect(self: Arc<Self>, client: UnixStream) {
        let server = Connection::connect(self.server.directory.join("server")).expect("the server");
        let (reader, writer) = client.into_split();
        let ((commands, received), (replies, sent)) = (unbounded_channel(), unbounded_channel());
        tokio::spawn(read_commands(reader, commands));
        tokio::spawn(self.run(server, received, replies));
        tokio::spawn(write_replies(writer, sent));
    }

    /// Runs commands in their order, each when it arrives.
    async fn run(
        self: Arc<Self>,
        mut server: Connection,
        mut commands: UnboundedReceiver<(Instant, Vec<u8>)>,
        replies: UnboundedSender<(Instant, bool, Vec<u8>)>,
    ) {
        while let Some((sent, mut command)) = commands.recv().await {
            sleep_until(sent + LATENCY).await;
            while let Some(until) = self.frozen() {
                sleep_until(until).await;
            }
            let (mut is_lost, kept) = (false, keys_to_keep(&command));
            if fill_in_time(&mut command, self.store_now()) {
                self.calls.fetch_add(1, Ordering::Relaxed);
                is_lost = self.faults.lock().expect("no panic").loses_reply();
            }
            let Ok(reply) = exchange(&mut server, &command) else { return };
            for key in kept {
                exchange(&mut server, &[b"*2\r\n$7\r\nPERSIST\r\n", &*key].concat()).expect("the server");
            }
            if replies.send((Instant::now() + LATENCY, is_lost, reply)).is_err() {
                return;
            }
        }
    }

    /// Until when the store is frozen.
    pub(crate) fn frozen(&self) -> Option<Instant> {
        self.faults.lock().expect("no panic").frozen_until.filter(|until| *until > Instant::now())
    }

    /// In microseconds.
    fn store_now(&self) -> u64 {
        self.start / 1_000 + u64::try_from(self.origin.elapsed().as_micros()).expect("not that long")
    }
}

async fn read_commands(mut client: OwnedReadHalf, commands: UnboundedSender<(Instant, Vec<u8>)>) {
    let mut input = Vec::new();
    while client.read_buf(&mut input).await.is_ok_and(|read| read > 0) {
        while let Some(length) = frame(&input) {
            let rest = input.split_off(length);
            if commands.send((Instant::now(), std::mem::replace(&mut input, rest))).is_err() {
                return;
            }
        }
    }
}

async fn write_replies(mut client: OwnedWriteHalf, mut replies: UnboundedReceiver<(Instant, bool, Vec<u8>)>) {
    while let Some((at, is_lost, reply)) = replies.recv().await {
        sleep_until(at).await;
        if is_lost || client.write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// Takes no virtual time.
fn exchange(server: &mut Connection, command: &[u8]) -> std::io::Result<Vec<u8>> {
    server.write_all(command)?;
    let (mut reply, mut buffer) = (Vec::new(), [0; 65_536]);
    while frame(&reply) != Some(reply.len()) {
        match server.read(&mut buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => reply.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(reply)
}

/// The length of the first message of the Redis protocol, if it is whole.
fn frame(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")?;
    let end = line + 2;
    let number = || std::str::from_utf8(&bytes[1..line]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' | b'=' => {
            let end = usize::try_from(number()?).map_or(end, |length| end + length + 2);
            (end <= bytes.len()).then_some(end)
        }
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let count = number()? * if kind == b'%' { 2 } else { 1 };
            (0..count).try_fold(end, |at, _| Some(at + frame(bytes.get(at..).filter(|rest| !rest.is_empty())?)?))
        }
        _ => Some(end),
    }
}

/// Sets the time of a call that leaves it to the server. Whether it is the call of a
/// script that decides.
fn fill_in_time(command: &mut Vec<u8>, now: u64) -> bool {
    let Some(argument) = script_argument(command) else { return false };
    let (start, end) = argument;
    let text = &command[start..end];
    let head = match text.first() {
        Some(0x90..=0x9f) => 1,
        Some(0xdc) => 3,
        Some(0xdd) => 5,
        _ => return false,
    };
    // The time is a fixed zero, and for how long a counter is kept 32 bits.
    if text.get(head..head + 2) != Some(&[0, 0xce]) {
        return true;
    }
    let mut filled = text[..head].to_vec();
    for number in [now, RETENTION] {
        filled.push(0xcf);
        filled.extend(number.to_be_bytes());
    }
    filled.extend(&text[head + 6..]);
    let length_line = command[..start - 2].iter().rposition(|byte| *byte == b'$').expect("a length");
    let mut whole = command[..length_line].to_vec();
    whole.extend(format!("${}\r\n", filled.len()).bytes());
    whole.extend(filled);
    whole.extend(&command[end..]);
    *command = whole;
    true
}

/// Where the first argument of a script is in its call.
fn script_argument(command: &[u8]) -> Option<(usize, usize)> {
    let (keys, mut words) = script_words(command)?;
    words.nth(keys)
}

/// The records of leases and the sets of instances that a call names, as the protocol
/// writes them. The server would drop them after real seconds, in which less virtual time
/// may pass.
fn keys_to_keep(command: &[u8]) -> Vec<Vec<u8>> {
    let Some((keys, words)) = script_words(command) else { return Vec::new() };
    let keys = words.take(keys).map(|(start, end)| &command[start..end]);
    let kept = keys.filter(|key| key.ends_with(b":fleet") || key.windows(7).any(|part| part == b":lease:"));
    kept.map(|key| [format!("${}\r\n", key.len()).as_bytes(), key, b"\r\n"].concat()).collect()
}

/// How many keys the call of a script has, and where its keys and arguments are.
fn script_words(command: &[u8]) -> Option<(usize, impl Iterator<Item = (usize, usize)>)> {
    let mut at = frame_line(command)?;
    let mut words = std::iter::from_fn(move || {
        let start = at + frame_line(command.get(at..)?)?;
        let length = frame(&command[at..])?;
        at += length;
        Some((start, at - 2))
    });
    let (start, end) = words.next()?;
    if !command[start..end].to_ascii_uppercase().starts_with(b"EVAL") {
        return None;
    }
    let (start, end) = words.nth(1)?;
    Some((std::str::from_utf8(&command[start..end]).ok()?.parse().ok()?, words))
}

/// The length of the first line.
fn frame_line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|end| end == b"\r\n").map(|at| at + 2)
}
