//! Matching of calls by rules.

use tonic::{Code, Request};
use tower_ratelimit::{Policy, Rule};

use super::{GET, LIST, ListRequest, Shop, connect, hourly, layer, product, shop, start};

const ONCE: &str = "tiers: [{ limit: 24, window: 1d, burst: 1 }]";

/// The outcome of one call per method, in order.
async fn asked(policy: Policy) -> [Code; 4] {
    let mut shop = shop(layer(policy)).await;
    let mut codes = [Code::Unknown; 4];
    for (n, code) in codes.iter_mut().enumerate() {
        let result = match n {
            0 | 1 => shop.get(product("a")).await.map(|_| ()),
            _ => shop.list(ListRequest { most: 1 }).await.map(|_| ()),
        };
        *code = result.map_or_else(|status| status.code(), |()| Code::Ok);
    }
    codes
}

const OK: Code = Code::Ok;
const NO: Code = Code::ResourceExhausted;

#[tokio::test]
async fn rules_match_a_method_or_a_service_or_all() {
    for (paths, expected) in [
        (&[GET][..], [OK, NO, OK, OK]),
        (&[LIST], [OK, OK, OK, NO]),
        // One pattern is one endpoint with one counter.
        (&["/shop.v1.Products/*"], [OK, NO, NO, NO]),
        (&["/shop.v1.Products/{method}"], [OK, NO, NO, NO]),
        (&["/*/Get"], [OK, NO, OK, OK]),
        (&["/{*all}"], [OK, NO, NO, NO]),
        (&[GET, LIST], [OK, NO, OK, NO]),
        (&["/shop.v1.Orders/*"], [OK, OK, OK, OK]),
        (&["/shop.v1.Products"], [OK, OK, OK, OK]),
        (&[], [OK, NO, NO, NO]),
    ] {
        let rule = paths.iter().fold(Rule::new("rule").tier(hourly(1)), |rule, path| rule.path(*path));
        assert_eq!(asked(Policy::new().rule(rule)).await, expected, "{paths:?}");
        let paths = format!("{paths:?}");
        let matched = if paths == "[]" { String::new() } else { format!("match: {{ paths: {paths} }}, ") };
        let policy = Policy::from_yaml(&format!("rules: [{{ id: rule, {matched}{ONCE} }}]")).unwrap();
        assert_eq!(asked(policy).await, expected, "{paths}");
    }
}

#[tokio::test]
async fn a_method_with_its_own_rule_skips_the_fallback() {
    let yaml = format!(
        "rules: [{{ id: get, match: {{ methods: [POST], paths: [{GET}] }}, tiers: [{{ concurrent: 5 }}] }},
        {{ id: others, fallback: true, {ONCE} }}]"
    );
    assert_eq!(asked(Policy::from_yaml(&yaml).unwrap()).await, [OK, OK, OK, NO]);
}

/// A router such as tonic's.
#[tokio::test]
async fn one_service_of_a_server_is_limited() {
    use tonic::transport::Server;
    use tower::Layer;
    let limited = layer(hourly(1)).layer(super::ProductsServer::new(Shop));
    let router = Server::builder().add_service(Named(limited));
    let mut shop = connect(&start(|incoming| router.serve_with_incoming(incoming)).await).await;
    shop.get(Request::new(product("a"))).await.unwrap();
    assert_eq!(shop.get(Request::new(product("a"))).await.unwrap_err().code(), NO);
}

/// A named tonic service.
#[derive(Clone)]
struct Named<S>(S);

impl<S> tonic::server::NamedService for Named<S> {
    const NAME: &'static str = "shop.v1.Products";
}

impl<S: tower::Service<R>, R> tower::Service<R> for Named<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}
