use super::*;

#[test]
fn the_position_of_a_parameter_is_found() {
    let position = ParameterPosition::find("/v1/{org}/x-{id}.json", "id").unwrap();
    assert_eq!(position.value("/v1/acme/x-7.json"), Some("7"));
    let position = ParameterPosition::find("/v1/{org}/x", "org").unwrap();
    assert_eq!(position.value("/v1/acme/x"), Some("acme"));
    assert_eq!(ParameterPosition::find("/v1/{org}", "id"), None);
}

#[test]
fn a_brace_closes_its_parameter_before_it_escapes_another() {
    let parameter = |prefix: &str, name: &str, suffix: &str| {
        Ok(Segment::Parameter { prefix: prefix.into(), name: name.into(), suffix: suffix.into() })
    };
    assert_eq!(Segment::parse("{{{a}}}"), parameter("{", "a", "}"));
    assert_eq!(Segment::parse("{{a}}"), Ok(Segment::Literal("{a}".into())));
    assert_eq!(Segment::parse("*"), parameter("", "", ""));
    assert_eq!(Segment::parse("{a{{b}"), Err(PARAMETER));
    assert_eq!(Segment::parse("{*}"), Err(PARAMETER));
    assert_eq!(Segment::parse("{*all}x"), Err(REST));
}

#[test]
fn a_path_as_sent_matches_byte_by_byte() {
    for (pattern, path, is_match) in [
        ("/", "/", true),
        ("/", "//", false),
        ("/healthz", "/healthz", true),
        ("/healthz", "/healthz/", false),
        ("/healthz", "//healthz", false),
        ("/healthz", "/%68ealthz", false),
        ("/healthz", "/healthZ", false),
        ("/healthz/", "/healthz/", true),
        ("/{a}/x", "/%2F/x", true),
        ("/{a}/x", "//x", false),
        ("/v-{a}.txt", "/v-1.txt", true),
        ("/v-{a}.txt", "/v-.txt", false),
        ("/v-{a}.txt", "/v-1%2Etxt", false),
        ("/{{a}}", "/{a}", true),
        ("/v1/{*rest}", "/v1", true),
        ("/v1/{*rest}", "/v1/", true),
        ("/v1/{*rest}", "/v1/a//b", true),
        ("/v1/{*rest}", "//v1/a", false),
        ("/caf\u{e9}", "/caf%C3%A9", true),
        ("/caf%C3%A9", "/caf%C3%A9", true),
        ("/caf%C3%A9", "/caf%c3%a9", false),
    ] {
        assert_eq!(matches_as_sent(pattern, path), is_match, "{pattern} {path}");
    }
}
