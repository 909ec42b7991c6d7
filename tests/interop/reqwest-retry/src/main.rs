//! reqwest with a rate limited server: `interop-reqwest-retry NAME URL TENANT`
//!
//! Sends `CALLS` requests at once and prints the status or the error of each.

use std::env;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};

type Error = Box<dyn std::error::Error + Send + Sync>;

const CALLS: usize = 20;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, url, tenant] = arguments.as_slice() else {
        return Err("usage: interop-reqwest-retry NAME URL TENANT".into());
    };
    let headers = HeaderMap::from_iter([("x-forwarded-for".parse()?, HeaderValue::from_str(tenant)?)]);
    let client = ClientBuilder::new(reqwest::Client::builder().default_headers(headers).build()?);
    let client = match name.as_str() {
        "reqwest" => client.build(),
        _ => {
            let policy = ExponentialBackoff::builder().build_with_max_retries(10);
            client.with(RetryTransientMiddleware::new_with_policy(policy)).build()
        }
    };
    let calls: Vec<_> =
        (0..CALLS).map(|call| tokio::spawn(status(client.clone(), format!("{url}?call={call}")))).collect();
    for call in calls {
        match call.await? {
            Ok(status) => println!("{status}"),
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}

async fn status(client: ClientWithMiddleware, url: String) -> Result<u16, Error> {
    let response = client.get(url).send().await?;
    let status = response.status().as_u16();
    response.bytes().await?;
    Ok(status)
}
