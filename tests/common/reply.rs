//! A response, and its rate limit headers parsed by third-party code.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use sfv::{BareItem, Item, List, ListEntry, Parser};

/// A complete response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    /// All lines of a header as one list. Empty if the header is absent.
    pub(crate) fn field(&self, name: &str) -> String {
        let lines = self.headers.get_all(name).iter().map(|line| line.to_str().unwrap());
        lines.collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn integer(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or_else(|_| panic!("{name}: {:?}", self.headers))
    }

    /// `x-ratelimit-limit`, `-remaining` and `-reset`.
    pub(crate) fn trio(&self) -> [u64; 3] {
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].map(|name| self.integer(name))
    }

    /// `RateLimit-Policy`, parsed by RFC 9651: each policy's name and parameters.
    pub(crate) fn policies(&self) -> Vec<(String, BTreeMap<String, i64>)> {
        self.items("ratelimit-policy")
    }

    /// `RateLimit`, parsed by RFC 9651: each policy's name and parameters.
    pub(crate) fn statuses(&self) -> Vec<(String, BTreeMap<String, i64>)> {
        self.items("ratelimit")
    }

    fn items(&self, name: &str) -> Vec<(String, BTreeMap<String, i64>)> {
        let list: List = Parser::new(&self.field(name)).parse().unwrap();
        let item = |entry| match entry {
            ListEntry::Item(Item { bare_item: BareItem::String(name), params }) => {
                let integer = |value: BareItem| value.as_integer().map(i64::from).unwrap();
                let params = params.into_iter().map(|(key, value)| (key.as_str().to_owned(), integer(value)));
                (name.as_str().to_owned(), params.collect())
            }
            other => panic!("not a string with parameters: {other:?}"),
        };
        list.into_iter().map(item).collect()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Parameters in the form that [`Reply::policies`] returns.
pub(crate) fn params<const N: usize>(of: [(&str, i64); N]) -> BTreeMap<String, i64> {
    of.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
