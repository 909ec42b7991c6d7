//! The program `tower-ratelimit`, as it is installed: what it prints, and its exit codes.
#![allow(clippy::unwrap_used)]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

const POLICY: &str = "
rules:
  - id: search
    match: { methods: [GET], paths: ['/v1/{index}'] }
    tiers: [{ limit: 60, window: 1m }]
    plans: { pro: [{ limit: 600, window: 1m }] }
  - id: login
    match: { paths: [/login] }
    per: [ip]
    tiers: [{ limit: 5, window: 15m, algorithm: anchored-window }]
    tenants: { '10.0.0.0/8': unlimited }
";

/// Runs the program with the policy as its standard input.
fn run(arguments: &[&str], policy: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tower-ratelimit"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    // It may end without reading its input.
    let _ = program.stdin.take().unwrap().write_all(policy.as_bytes());
    program.wait_with_output().unwrap()
}

/// The exit code, and what was printed to standard output and to standard error.
fn printed(arguments: &[&str], policy: &str) -> (i32, String, String) {
    let Output { status, stdout, stderr } = run(arguments, policy);
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_valid_policy_is_described() {
    let (code, out, error) = printed(&["check", "-"], POLICY);
    assert_eq!((code, &*error), (0, ""), "{out}");
    assert!(out.starts_with("search: GET /v1/{index}\n    counts by: tenant, and each path and method"), "{out}");
    assert!(out.contains("    plan pro: 600 in 1m\n"), "{out}");
    assert!(out.ends_with("-: 2 rules, 0 warnings\n"), "{out}");
}

#[test]
fn a_file_is_read_as_standard_input_is() {
    let file = std::env::temp_dir().join(format!("tower-ratelimit-cli-{}.yaml", std::process::id()));
    std::fs::write(&file, POLICY).unwrap();
    let name = file.to_str().unwrap();
    let (code, out, _) = printed(&["check", name], "");
    std::fs::remove_file(&file).unwrap();
    assert_eq!((code, out.replace(name, "-")), (0, printed(&["check", "-"], POLICY).1));
}

#[test]
fn warnings_fail_only_where_they_are_denied() {
    let costly = "rules: [{ id: a, cost: 9, tiers: [{ limit: 5, window: 1s }] }]";
    let (code, out, _) = printed(&["check", "-"], costly);
    assert!(code == 0 && out.contains("warning: rule `a`: tiers[0]: `5`: rejects every request"), "{code}: {out}");
    let (denied, same, _) = printed(&["check", "-", "--deny-warnings"], costly);
    assert_eq!((denied, same), (1, out));
    assert_eq!(printed(&["check", "--deny-warnings", "-"], POLICY).0, 0);
}

#[test]
fn an_invalid_policy_is_an_error_with_its_place() {
    for (policy, message) in [
        ("rules: [{ id: a, tiers: [{ limit: 5 }] }]", "-: rule `a`: tiers[0].window: is missing\n"),
        ("rules:\n  - id: a\n    tires: []\n", "did you mean `tiers`"),
        ("rules: [", "line"),
    ] {
        let (code, out, error) = printed(&["check", "-"], policy);
        assert_eq!((code, &*out), (1, ""), "{error}");
        assert!(error.contains(message), "{error}");
        assert_eq!(printed(&["explain", "-", "--path", "/"], policy).0, 1);
    }
}

#[test]
fn a_wrong_call_has_a_code_of_its_own() {
    for arguments in [
        &["check"][..],
        &["check", "/no/such/file"],
        &["check", "-", "--no-such-flag"],
        &["explain", "-"],
        &["explain", "-", "--path", "/", "--key", "ip"],
        &["no-such-command"],
        &[],
    ] {
        let (code, out, error) = printed(arguments, POLICY);
        assert_eq!((code, &*out), (2, ""), "{arguments:?}");
        assert!(!error.is_empty(), "{arguments:?}");
    }
    assert_eq!(printed(&["--help"], "").0, 0);
    assert!(printed(&["--version"], "").1.starts_with("tower-ratelimit "));
}

#[test]
fn the_schema_is_the_one_in_the_docs() {
    let (code, out, _) = printed(&["schema"], "");
    assert_eq!((code, &*out), (0, include_str!("../docs/policy.schema.json")));
}

#[test]
fn a_request_is_explained() {
    let search = ["explain", "-", "--method", "GET", "--path", "/v1/books?q=1", "--tenant", "acme", "--plan", "pro"];
    let (code, out, _) = printed(&search, POLICY);
    let lines = [
        "allowed",
        "search: applies, by /v1/{index}",
        "    counted by: tenant `acme`, endpoint `/v1/{index}`, method `GET`",
        "    search: 600 per 1m by token-bucket, from plan `pro`; 600 left",
        "login: does not match the path: it is for /login",
        "",
    ];
    assert_eq!((code, out), (0, lines.join("\n")));
    let json = run(&[&search[..], &["--json"]].concat(), POLICY).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["rules"][0]["tiers"][0]["remaining"], 600);

    let login = |ip| printed(&["explain", "-", "--method", "POST", "--path", "/login", "--key", ip], POLICY).1;
    assert!(login("ip=192.0.2.7").contains("counted by: ip `192.0.2.7`"));
    assert!(login("ip=10.1.2.3").ends_with("login: does not limit network `10.0.0.0/8`\n"));
}

#[test]
fn a_request_has_the_headers_that_are_given() {
    let policy = "rules: [{ id: calls, match: { headers: { mcp-method: [tools/call, tools/list] } }, status: 503, \
                  tiers: [{ limit: 5, window: 1s }] }]";
    let explained = |headers: &[&str]| {
        let headers = headers.iter().flat_map(|header| ["--header", header]);
        printed(&["explain", "-", "--path", "/mcp"].into_iter().chain(headers).collect::<Vec<_>>(), policy)
    };
    let (code, out, _) = explained(&["accept: */*", "MCP-Method: tools/call"]);
    assert!(code == 0 && out.contains("calls: applies"), "{out}");
    let (_, out, _) = explained(&["mcp-method: prompts/get"]);
    assert!(
        out.ends_with("calls: does not match the headers: it is for `mcp-method`: tools/call, tools/list\n"),
        "{out}"
    );
    assert_eq!(explained(&["mcp-method"]).0, 2);
    let (_, out, _) = printed(&["check", "-"], policy);
    assert!(out.contains("only headers: mcp-method tools/call, tools/list\n"), "{out}");
    assert!(out.contains("status: 503\n"), "{out}");
}

/// A hostile file or argument does not reach the terminal.
#[test]
fn control_characters_are_escaped() {
    let hostile = "rules: [{ id: a, tenants: { \"\\e[2Jx\": unlimited }, tiers: [{ limit: 5, window: 1s }] }]";
    let (code, out, error) = printed(&["check", "-"], hostile);
    assert!(!out.contains('\u{1b}') && !error.contains('\u{1b}'), "{out}{error}");
    assert!(code == 1 || out.contains("\\u{1b}[2Jx"), "{out}{error}");
    let (_, out, _) = printed(&["explain", "-", "--path", "/v1/x", "--tenant", "\u{1b}[2J"], POLICY);
    assert!(out.contains("tenant `\\u{1b}[2J`"), "{out}");
    let (_, _, error) = printed(&["check", "/\u{1b}[2J"], "");
    assert!(error.starts_with("/\\u{1b}[2J: "), "{error}");
}
