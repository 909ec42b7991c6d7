//! The server under load: an axum hello server, bare or behind one limiter.

use std::{io::Write, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use tower_governor::governor::GovernorConfigBuilder;

use crate::{
    contenders::API_KEY,
    decision::{Limitador, PLENTY, REFILL},
    layers::{ByApiKey, axum_governor_quota},
};

pub const BARE: &str = "no layer";
pub const TOWER_GOVERNOR: &str = "tower_governor";
pub const TOWER_GOVERNOR_HEADERS: &str = "tower_governor, headers";
pub const AXUM_GOVERNOR: &str = "axum-governor";
pub const LIMITADOR: &str = "limitador";
#[cfg(feature = "ours")]
pub const OURS: &str = "tower-ratelimit";
#[cfg(feature = "ours")]
pub const OURS_HEADERS: &str = "tower-ratelimit, headers";

/// Serves on the loopback interface. Prints its port when it is ready.
pub fn serve(name: &str, port: u16) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let app = limited(name, Router::new().route("/", get(|| async { "hello" })));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        axum::serve(listener, app).await
    })
}

fn limited(name: &str, app: Router) -> Router {
    match name {
        BARE => app,
        TOWER_GOVERNOR => {
            let config = builder().key_extractor(ByApiKey).finish().expect("a valid configuration");
            app.layer(tower_governor::GovernorLayer::new(config))
        }
        TOWER_GOVERNOR_HEADERS => {
            let config = builder().key_extractor(ByApiKey).use_headers().finish();
            let config = config.expect("a valid configuration");
            app.layer(tower_governor::GovernorLayer::new(config))
        }
        AXUM_GOVERNOR => app.layer(axum_governor()),
        LIMITADOR => app.layer(from_fn_with_state(Arc::new(Limitador::new()), limitador)),
        #[cfg(feature = "ours")]
        OURS => app.layer(ours(false)),
        #[cfg(feature = "ours")]
        OURS_HEADERS => app.layer(ours(true)),
        other => panic!("no server is called {other:?}"),
    }
}

fn builder() -> GovernorConfigBuilder<
    tower_governor::key_extractor::PeerIpKeyExtractor,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
> {
    let mut builder = GovernorConfigBuilder::default();
    builder.period(REFILL).burst_size(PLENTY);
    builder
}

fn axum_governor() -> axum_governor::GovernorLayer<String> {
    use axum_governor::{GovernorConfigBuilder, GovernorLayer, extractor::Header};

    let config =
        GovernorConfigBuilder::default().with_extractor(Header(&API_KEY)).quota_default(axum_governor_quota()).finish();
    GovernorLayer::new(config.expect("a valid configuration"))
}

/// `limitador` has no layer, so this is the middleware that a user would write.
async fn limitador(State(limiter): State<Arc<Limitador>>, request: Request, next: Next) -> Response {
    let value = request.headers().get(&API_KEY).and_then(|value| value.to_str().ok());
    if limiter.allows(value.unwrap_or_default()) {
        next.run(request).await
    } else {
        StatusCode::TOO_MANY_REQUESTS.into_response()
    }
}

#[cfg(feature = "ours")]
fn ours(headers: bool) -> tower_ratelimit::RateLimitLayer {
    use crate::ours::{headers as our_headers, limiter, plenty};

    let layer = tower_ratelimit::RateLimitLayer::new(limiter(plenty()));
    layer.tenant(tower_ratelimit::tenant::header(API_KEY.as_str())).headers(our_headers(headers))
}
