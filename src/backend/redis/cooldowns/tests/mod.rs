//! What is published, and how it is written and read.

mod message;
mod outbox;
