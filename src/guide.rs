//! The guide: one page for each task. Most pages start with a program that runs.
//!
//! This module has no code. The pages are files in `docs/`, so they read the same
//! here and in the repository, and their Rust blocks are doc tests.
//!
//! | to | read |
//! |---|---|
//! | have a limit in a minute | [`quickstart`] |
//! | look up a key of the policy file | [`policy`] |
//! | limit by API key, address, or limits from a database | [`tenants`] |
//! | choose an algorithm | [`algorithms`] |
//! | choose a backend | [`backends`] |
//! | share limits through Redis or Valkey | [`redis`] |
//! | delay requests instead of rejecting them | [`waiting`] |
//! | stay within the limit of an API that you call | [`clients`] |
//! | combine it with other layers | [`layers`] |
//! | limit gRPC | [`grpc`] |
//! | run it in production: metrics, alerts, reload, drain | [`operating`] |
//! | test code that is rate limited | [`testing`] |
//! | find out what is wrong | [`troubleshooting`] |
//! | move from another rate limiter | [`migrating`] |
//! | see what other clients and servers do with it | [`interop`] |

// `links.md` comes first: its definitions of links replace those at the end of a
// page, which are for readers of the repository. Doc tests need most features.
macro_rules! pages {
    ($($name:ident $file:literal)*) => {$(
        #[doc = include_str!("guide/links.md")]
        #[cfg_attr(
            any(not(doctest), all(feature = "full", feature = "test-util")),
            doc = include_str!($file)
        )]
        pub mod $name {}
    )*};
}

pages! {
    quickstart "../docs/quickstart.md"
    policy "../docs/policy.md"
    tenants "../docs/tenants.md"
    algorithms "../docs/algorithms.md"
    backends "../docs/backends.md"
    redis "../docs/redis.md"
    waiting "../docs/waiting.md"
    clients "../docs/clients.md"
    layers "../docs/layers.md"
    grpc "../docs/grpc.md"
    operating "../docs/operating.md"
    testing "../docs/testing.md"
    troubleshooting "../docs/troubleshooting.md"
    migrating "../docs/migrating.md"
    interop "../docs/interop.md"
}
