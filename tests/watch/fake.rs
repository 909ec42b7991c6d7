//! A source whose answers the test sends.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::sync::mpsc;
use tower_ratelimit::{
    BoxFuture,
    policy_source::{Document, PolicySource, SourceError},
};

/// A source, and the sender of its answers.
pub(crate) fn fake() -> (Script, Fake) {
    let (sender, answers) = mpsc::unbounded_channel();
    let (dropped, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    (
        Script { sender, dropped: Arc::clone(&dropped), asked: Arc::clone(&asked) },
        Fake { name: "fake", answers, dropped, asked },
    )
}

pub(crate) struct Script {
    sender: mpsc::UnboundedSender<Result<Option<Document>, &'static str>>,
    dropped: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

pub(crate) struct Fake {
    name: &'static str,
    answers: mpsc::UnboundedReceiver<Result<Option<Document>, &'static str>>,
    dropped: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Script {
    pub(crate) fn holds(&self, document: Document) {
        self.sender.send(Ok(Some(document))).unwrap();
    }

    pub(crate) fn is_unchanged(&self) {
        self.sender.send(Ok(None)).unwrap();
    }

    pub(crate) fn fails(&self, reason: &'static str) {
        self.sender.send(Err(reason)).unwrap();
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
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

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            match self.answers.recv().await {
                Some(answer) => answer.map_err(SourceError::new),
                None => std::future::pending().await,
            }
        })
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}
