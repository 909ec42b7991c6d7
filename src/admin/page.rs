//! The report as HTML, rendered here, so that reading needs no scripts: [`Page`].
//!
//! It computes nothing. Invariant: every text passes [`escaped`], and only the style and the
//! script of `page.html` may run.

use std::{fmt, sync::LazyLock};

use askama::{Template, filters::Escaper};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use sha2::{Digest, Sha256};

use super::{escape::escaped, report::Report};

const TEMPLATE: &str = include_str!("page.html");

/// The whole page.
#[derive(Template)]
#[template(path = "page.html")]
pub(super) struct Page<'r> {
    pub(super) report: &'r Report,
    /// The lines of an explanation, if one was asked for.
    pub(super) explanation: Vec<String>,
}

/// The escaper of the template.
#[derive(Clone, Copy)]
struct Escaped;

impl Escaper for Escaped {
    fn write_escaped_str<W: fmt::Write>(&self, mut page: W, text: &str) -> fmt::Result {
        page.write_str(&escaped(text))
    }
}

/// Allows the style and the script of the template, by their hashes, and nothing else.
pub(super) fn content_security_policy() -> HeaderValue {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
        let hash = |element: &str| {
            let after = TEMPLATE.split_once(&format!("<{element}>")).unwrap_or_default().1;
            let content = after.split_once(&format!("</{element}>")).unwrap_or_default().0;
            STANDARD.encode(Sha256::digest(content))
        };
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            hash("style"),
            hash("script")
        );
        HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
    });
    POLICY.clone()
}
