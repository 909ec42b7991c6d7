//! A source that the test speaks for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::sync::mpsc;
use tower_ratelimit::policy_source::{Document, Next, PolicySource, SourceError, Update};

/// What a source says, in the order in which it is sent.
pub(crate) fn fake() -> (Voice, Fake) {
    let (sender, said) = mpsc::unbounded_channel();
    let (gone, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    (Voice { sender, gone: Arc::clone(&gone), asked: Arc::clone(&asked) }, Fake { name: "fake", said, gone, asked })
}

pub(crate) struct Voice {
    sender: mpsc::UnboundedSender<Result<Update, &'static str>>,
    gone: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

pub(crate) struct Fake {
    name: &'static str,
    said: mpsc::UnboundedReceiver<Result<Update, &'static str>>,
    gone: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Voice {
    pub(crate) fn says(&self, document: Document) {
        self.sender.send(Ok(Update::Changed(document))).unwrap();
    }

    pub(crate) fn says_nothing_new(&self) {
        self.sender.send(Ok(Update::Unchanged)).unwrap();
    }

    pub(crate) fn fails(&self, why: &'static str) {
        self.sender.send(Err(why)).unwrap();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Fake {
    pub(crate) fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}

impl PolicySource for Fake {
    fn name(&self) -> String {
        self.name.into()
    }

    fn next(&mut self) -> Next<'_> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            match self.said.recv().await {
                Some(said) => said.map_err(SourceError::new),
                None => std::future::pending().await,
            }
        })
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}
