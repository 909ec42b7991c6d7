//! The page in a real browser: Debian's `chromium`, without a window.

use std::{net::SocketAddr, process::Command, time::Duration};

use axum::{
    Router,
    response::Html,
    routing::{get, post_service},
};
use tower_ratelimit::{RateLimitedKind, admin::Admin};

use super::{limiter, policy, search, serve, serve_page};

/// The document as the browser has it, once its scripts have run and their requests are
/// answered.
async fn document(url: String) -> String {
    let browse = move || {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let profile = std::env::temp_dir().join(format!("tower-ratelimit-chromium-{}-{number}", std::process::id()));
        let fixed = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ];
        let output = Command::new("chromium")
            .args(fixed)
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(url)
            .output()
            .expect("`chromium` runs: scripts/test installs it");
        std::fs::remove_dir_all(profile).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    tokio::task::spawn_blocking(browse).await.unwrap()
}

fn admin_url(server: SocketAddr) -> String {
    format!("http://localhost:{}/admin", server.port())
}

#[tokio::test]
async fn its_own_script_runs_and_no_other() {
    let (limiter, _) = limiter(policy(5));
    let hostile = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>";
    limiter.block(hostile, Duration::from_secs(60)).unwrap();
    limiter.check(&search("acme")).await;
    let server = serve_page(Admin::new(limiter).reveal(true)).await;
    let url = format!("{}?path=/search&tenant=%3Cscript%3Edocument.title='owned'%3C/script%3E", admin_url(server));
    let document = document(url).await;
    assert!(document.contains("<title>Rate limits</title>"), "{document}");
    assert!(!document.contains("<fieldset disabled"), "the script has enabled the forms: {document}");
    assert!(document.contains("&lt;img src=x onerror="), "{document}");
    assert!(document.contains("tenant `&lt;script&gt;"), "{document}");
    assert_eq!(document.matches("<script").count(), 1, "{document}");
}

/// A parser of documents runs no scripts.
const READ: &str = r#"<script>
fetch("/admin").then(page => page.text()).then(text => {
  const page = new DOMParser().parseFromString(text, "text/html");
  const tiers = page.querySelector("table").rows[1].cells[1].textContent;
  document.title = `${tiers}; ${page.querySelectorAll("fieldset[disabled]").length} forms off`;
});
</script>"#;

#[tokio::test]
async fn it_reads_without_scripts() {
    let (limiter, _) = limiter(policy(5));
    let app = Router::new().route_service("/admin", Admin::new(limiter)).route("/read", get(async || Html(READ)));
    let server = serve(app).await;
    let document = document(format!("http://localhost:{}/read", server.port())).await;
    assert!(document.contains("<title>5 per 1d by token-bucket; 4 forms off"), "{document}");
}

/// A page of the same origin writes the real one into itself, and fills in its forms.
const DRIVE: &str = r#"<script>
const forms = [["block", { tenant: "mallory" }], ["override", { tenant: "acme", limit: "9", window: "1d" }]];
fetch("/admin").then(page => page.text()).then(async page => {
  document.open(); document.write(page); document.close();
  for (const [action, fields] of forms) {
    const form = document.querySelector(`form[data-action=${action}]`);
    for (const name in fields) form.elements[name].value = fields[name];
    const done = new Promise(resolve => new MutationObserver(resolve).observe(result, { childList: true }));
    form.requestSubmit();
    await done;
  }
});
</script>"#;

#[tokio::test]
async fn its_forms_act() {
    let (limiter, _) = limiter(policy(5));
    let admin = Admin::new(limiter.clone());
    let drive = post_service(admin.clone()).get(async || Html(DRIVE));
    let server = serve(Router::new().route_service("/admin", admin).route("/drive", drive)).await;
    let document = document(format!("http://localhost:{}/drive", server.port())).await;
    assert!(document.contains("the tenant has other tiers; reload to see it"), "{document}");
    assert_eq!(limiter.check(&search("mallory")).await.rejection(), Some(RateLimitedKind::Blocked));
    assert_eq!(limiter.check(&search("acme")).await.limit(), Some(9));
}

/// A site that an operator happens to visit tries all that a browser lets it try.
#[tokio::test]
async fn another_site_can_neither_act_nor_read() {
    let (limiter, _) = limiter(policy(5));
    let admin = serve_page(Admin::new(limiter.clone())).await;
    let attack = format!(
        r#"<iframe name="frame"></iframe>
<form method="post" target="frame" enctype="text/plain" action="{url}">
<input name='{{"action":"block","tenant":"acme","ttl":"1h","x":"' value='"}}'></form>
<script>
document.forms[0].submit();
const body = JSON.stringify({{ action: "block", tenant: "acme", ttl: "1h" }});
const tries = [
  fetch("{url}", {{ method: "POST", body, headers: {{ "x-tower-ratelimit": "1" }} }}),
  fetch("{url}", {{ method: "POST", body }}),
  fetch("{url}?format=json"),
];
Promise.allSettled(tries).then(all => document.title = all.map(one => one.status).join());
</script>"#,
        url = admin_url(admin)
    );
    let site = serve(Router::new().route("/", get(async move || Html(attack)))).await;
    let document = document(format!("http://127.0.0.1:{}/", site.port())).await;
    assert!(document.contains("<title>rejected,rejected,rejected</title>"), "{document}");
    assert!(limiter.check(&search("acme")).await.is_allowed());
}
