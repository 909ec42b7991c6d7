//! The guide: one page for each task. A page starts with a program, and names the
//! features that it needs.
//!
//! This module has no code. The pages are files in `docs/`, so they read the same
//! here and in the repository, and their Rust blocks are doc tests.
//!
//! | to | read |
//! |---|---|
//! | have a limit in a minute | [`quickstart`] |
//! | copy a whole program: proxies, JWT, logins, LLM tokens, monthly quotas | [`recipes`] |
//! | write a policy | [`policy`] |
//! | look up a key of the policy file | [`reference`](mod@reference) |
//! | check a policy, explain a request, replay a log | [`program`] |
//! | limit by API key, address, or limits from a database | [`tenants`] |
//! | choose an algorithm | [`algorithms`] |
//! | choose a backend | [`backends`] |
//! | share limits through Redis or Valkey | [`redis`] |
//! | delay requests instead of rejecting them | [`waiting`] |
//! | stay within the limit of an API that you call | [`clients`] |
//! | follow what an upstream says about its limit | [`feedback`] |
//! | combine it with other layers | [`layers`] |
//! | limit gRPC | [`grpc`] |
//! | run it in production: checklist, reload, drain | [`operating`] |
//! | choose limits from an access log, look at a page, help a customer | [`operators`] |
//! | watch it: metrics, alerts, log events | [`metrics`](mod@metrics) |
//! | test code that is rate limited | [`testing`] |
//! | decide what is served first, and shed the rest under overload | [`overload`] |
//! | find out what is wrong | [`troubleshooting`] |
//! | look up a warning code, `RL001` and others | [`codes`] |
//! | move from another rate limiter | [`migrating`] |
//! | see what common HTTP clients do with a rejection | [`interop`] |

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
    recipes "../docs/recipes.md"
    policy "../docs/policy.md"
    reference "../docs/reference.md"
    program "../docs/program.md"
    tenants "../docs/tenants.md"
    algorithms "../docs/algorithms.md"
    backends "../docs/backends.md"
    redis "../docs/redis.md"
    waiting "../docs/waiting.md"
    clients "../docs/clients.md"
    feedback "../docs/feedback.md"
    layers "../docs/layers.md"
    grpc "../docs/grpc.md"
    overload "../docs/overload.md"
    operating "../docs/operating.md"
    operators "../docs/operators.md"
    metrics "../docs/metrics.md"
    testing "../docs/testing.md"
    troubleshooting "../docs/troubleshooting.md"
    codes "../docs/codes.md"
    migrating "../docs/migrating.md"
    interop "../docs/interop.md"
}
