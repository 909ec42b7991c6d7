//! Shares cooldowns between instances through the store. Sharing is best
//! effort and in the background: no request waits for it. The background tasks
//! start when they are first used.
//!
//! A cooldown is published for the instances that listen, and kept in a sorted
//! set for those that come later. Instances that listen have a connection of
//! their own for it.
//!
//! Invariant: a shared cooldown only slows down. It never ends one early.

mod message;
mod publisher;
mod subscriber;

pub(super) use self::{publisher::Publisher, subscriber::Subscriber};
