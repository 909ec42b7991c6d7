//! Log events, of all threads: a backend's tasks run on one of their own.

use std::{
    fmt::{Debug, Write},
    sync::{LazyLock, Mutex},
    thread::{self, ThreadId},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Registry,
    filter::LevelFilter,
    layer::{Context, Layer, SubscriberExt},
};

use super::server::Server;

static MESSAGES: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

pub(crate) fn start() {
    static STARTED: LazyLock<()> = LazyLock::new(|| {
        let all = Registry::default().with(Log.with_filter(LevelFilter::from_level(Level::INFO)));
        tracing::subscriber::set_global_default(all).unwrap();
    });
    LazyLock::force(&STARTED);
}

/// How often a text was logged about a server.
pub(crate) fn count(server: &Server, text: &str) -> usize {
    let servers = format!("servers=127.0.0.1:{} ", server.port());
    let messages = MESSAGES.lock().unwrap();
    messages.iter().filter(|(_, message)| message.contains(&servers) && message.contains(text)).count()
}

/// How often a text was logged on this thread: of a test on a single thread, by
/// its backends that run there.
pub(crate) fn count_here(text: &str) -> usize {
    let here = thread::current().id();
    let messages = MESSAGES.lock().unwrap();
    messages.iter().filter(|(thread, message)| *thread == here && message.contains(text)).count()
}

struct Log;

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        MESSAGES.lock().unwrap().push((thread::current().id(), message.0));
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}
