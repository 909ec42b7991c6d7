//! A gateway in front of a language model: requests, input tokens and output tokens are
//! limited together, for each API key and for its organization. Answers are streamed (SSE).
//!
//! Each request reserves its prompt and the first hundred tokens of its answer. On
//! `/v1/chat` the handler reserves a hundred more before it sends them, and the stream ends
//! with an error event where the limit is reached. On `/v1/finish` every answer is
//! finished, and what it took above the limit is a debt, which is paid back before the next
//! request is admitted.
//!
//!     cargo run --example llm_gateway --features axum

use std::convert::Infallible;

use axum::{
    Extension, Router,
    response::sse::{Event, Sse},
    routing::post,
};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tower_ratelimit::{
    ChargeHandle, ConfigError, Dimension, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, Rule, Tenant, cost,
    tenant,
};

const INPUT: &str = "input-tokens";
const OUTPUT: &str = "output-tokens";
/// Output tokens that are reserved at a time.
const STEP: u64 = 100;

/// Stands for the model: as many tokens as the prompt asks for.
fn complete(prompt: &str) -> impl Stream<Item = String> + Send + use<> {
    let tokens: u64 = prompt.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(10);
    stream::iter(1..=tokens).then(async |n| {
        // A model takes its time: others are served meanwhile.
        tokio::task::yield_now().await;
        format!("t{n} ")
    })
}

/// What an answer has taken. Dropped with its stream, also where the caller hangs up.
struct Meter {
    charge: ChargeHandle,
    sent: u64,
    reserved: u64,
    may_go_into_debt: bool,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.charge.settle_in(OUTPUT, self.sent);
    }
}

impl Meter {
    fn new(charge: ChargeHandle, may_go_into_debt: bool) -> Self {
        Self { charge, sent: 0, reserved: STEP, may_go_into_debt }
    }

    /// Counts one more token. The error is what the caller is told.
    async fn count(&mut self) -> Result<(), String> {
        if self.sent == self.reserved && !self.may_go_into_debt {
            self.charge.try_add_in(OUTPUT, STEP).await.map_err(|rejected| rejected.to_string())?;
            self.reserved += STEP;
        }
        self.sent += 1;
        Ok(())
    }
}

fn answer(meter: Meter, prompt: &str) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
    let tokens = Box::pin(complete(prompt));
    Sse::new(stream::unfold(Some((meter, tokens)), async |state| {
        let (mut meter, mut tokens) = state?;
        let Some(token) = tokens.next().await else {
            return Some((Ok(Event::default().data("[DONE]")), None));
        };
        Some(match meter.count().await {
            Ok(()) => (Ok(Event::default().data(token)), Some((meter, tokens))),
            Err(reason) => (Ok(Event::default().event("error").data(reason)), None),
        })
    }))
}

/// Ends the answer where the limit is reached.
async fn chat(
    Extension(charge): Extension<ChargeHandle>,
    prompt: String,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    answer(Meter::new(charge, false), &prompt)
}

/// Finishes every answer.
async fn finish(
    Extension(charge): Extension<ChargeHandle>,
    prompt: String,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    answer(Meter::new(charge, true), &prompt)
}

/// The keys of the organization `acme` are `acme.one`, `acme.two` and so on. A real
/// gateway looks its keys up.
fn organization(head: &RequestHead<'_>) -> Option<Tenant> {
    let key = head.headers().get("x-api-key")?.to_str().ok()?;
    Some(Tenant::new(key.split_once('.')?.0))
}

/// A token has some four bytes.
fn prompt_tokens(head: &RequestHead<'_>) -> u64 {
    let length = head.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    length.unwrap_or(0).div_ceil(4).max(1)
}

fn policy() -> Policy {
    let of_organization = |id| Rule::new(id).per([Dimension::key("organization")]);
    Policy::new()
        .rule(Rule::new("requests").tier(Quota::per_minute(20)))
        .rule(Rule::new("input").unit(INPUT).tier(Quota::per_minute(2_000)))
        .rule(Rule::new("output").unit(OUTPUT).tier(Quota::per_hour(400)).settle(true))
        .rule(of_organization("organization-input").unit(INPUT).tier(Quota::per_minute(5_000)))
        .rule(of_organization("organization-output").unit(OUTPUT).tier(Quota::per_hour(900)).settle(true))
}

fn app() -> Result<Router, ConfigError> {
    let layer = RateLimitLayer::new(RateLimiter::new(policy())?)
        .tenant(tenant::header("x-api-key"))
        .key("organization", tenant::from_fn(organization))
        .cost_in(INPUT, cost::from_fn(prompt_tokens))
        .cost_in(OUTPUT, STEP);
    Ok(Router::new().route("/v1/chat", post(chat)).route("/v1/finish", post(finish)).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app()?).await?)
}
