use proptest::prelude::*;
use sfv::{
    BareItemFromInput, KeyRef,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor},
};

use super::*;

/// The parts as the crate `sfv` reads them.
#[derive(Default)]
struct Seen<'h>(Vec<Part<'h>>);

fn value<'h>(item: &BareItemFromInput<'h>) -> Value<'h> {
    let number =
        |scaled: i64| u64::try_from(scaled).map_or(Value::Other, |it| Value::Number(Duration::from_millis(it)));
    match item {
        BareItemFromInput::Integer(integer) => number(i64::from(*integer) * 1_000),
        BareItemFromInput::Decimal(decimal) => number(i64::from(decimal.as_integer_scaled_1000())),
        BareItemFromInput::String(text) => Value::Text(text.as_str().to_owned().into()),
        BareItemFromInput::Token(text) => Value::Text(text.as_str().to_owned().into()),
        _ => Value::Other,
    }
}

impl<'h> ListVisitor<'h> for Seen<'h> {
    type Error = std::convert::Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'h>, Self::Error> {
        Ok(self)
    }
}

impl<'h> DictionaryVisitor<'h> for Seen<'h> {
    type Error = std::convert::Infallible;

    fn entry(&mut self, key: &'h KeyRef) -> Result<impl EntryVisitor<'h>, Self::Error> {
        self.0.push(Part::Key(key.as_str()));
        Ok(self)
    }
}

impl<'h> ItemVisitor<'h> for &mut Seen<'h> {
    type Error = std::convert::Infallible;

    fn bare_item(self, item: BareItemFromInput<'h>) -> Result<impl ParameterVisitor<'h>, Self::Error> {
        self.0.push(Part::Member(value(&item)));
        Ok(self)
    }
}

impl<'h> ParameterVisitor<'h> for &mut Seen<'h> {
    type Error = std::convert::Infallible;

    fn parameter(&mut self, key: &'h KeyRef, item: BareItemFromInput<'h>) -> Result<(), Self::Error> {
        self.0.push(Part::Parameter(key.as_str(), value(&item)));
        Ok(())
    }
}

impl<'h> EntryVisitor<'h> for &mut Seen<'h> {
    fn inner_list(self) -> Result<impl InnerListVisitor<'h>, Self::Error> {
        self.0.push(Part::Member(Value::Other));
        Ok(Inner(self))
    }
}

/// Sees only the parameters of the inner list itself.
struct Inner<'s, 'h>(&'s mut Seen<'h>);

impl<'h> InnerListVisitor<'h> for Inner<'_, 'h> {
    type Error = std::convert::Infallible;

    fn item(&mut self) -> Result<impl ItemVisitor<'h>, Self::Error> {
        Ok(Ignored)
    }

    fn finish(self) -> Result<impl ParameterVisitor<'h>, Self::Error> {
        Ok(self.0)
    }
}

fn check(line: &str) {
    let (mut list, mut dictionary) = (Seen::default(), Seen::default());
    let is_list = sfv::Parser::new(line).parse_list_with_visitor(&mut list).is_ok();
    let is_dictionary = sfv::Parser::new(line).parse_dictionary_with_visitor(&mut dictionary).is_ok();

    let mut parts = Vec::new();
    assert_eq!(read_list(line, &mut |part| parts.push(part)).is_some(), is_list, "list: {line:?}");
    if is_list {
        assert_eq!(parts, list.0, "list: {line:?}");
    }
    let mut parts = Vec::new();
    assert_eq!(read_dictionary(line, &mut |part| parts.push(part)).is_some(), is_dictionary, "dictionary: {line:?}");
    if is_dictionary {
        assert_eq!(parts, dictionary.0, "dictionary: {line:?}");
    }
}

#[test]
fn lines_are_read_as_by_another_implementation() {
    for line in [
        "",
        " ",
        "  a ",
        "\ta",
        "a\t",
        "a,b",
        "a ,\tb",
        "a,",
        ",a",
        "a b",
        "a;b",
        "a; b=1",
        "a ;b",
        "a;B",
        "a;*x=2",
        "a=1, b=2",
        "a=1,a=3",
        "a, b;c=?1",
        "a=(1 2);q=3",
        "(",
        "()",
        "( a )",
        "(a b",
        "(a,b)",
        "(\"x\";q=1 2.5);r=1",
        "1",
        "-1",
        "-",
        "-0",
        "--1",
        "1.",
        ".1",
        "1.5",
        "1.2345",
        "-0.0",
        "-0.5",
        "123456789012345",
        "1234567890123456",
        "123456789012.5",
        "1234567890123.5",
        "1e3",
        "00",
        "\"a\"",
        "\"a\\\"b\\\\\"",
        "\"a\\b\"",
        "\"a",
        "\"\u{e9}\"",
        "\"a\tb\"",
        "*a/b:c",
        "a!#$%&'*+-.^_`|~",
        "a(b",
        ":YQ==:",
        ":YQ:",
        ":YR==:",
        ":Y:",
        ":====:",
        ":a b:",
        "::",
        ":",
        "?0",
        "?1",
        "?2",
        "?",
        "@1",
        "@-1",
        "@1.5",
        "@",
        "%\"a%20%c3%a9\"",
        "%\"%C3%A9\"",
        "%\"%c3\"",
        "%\"%2\"",
        "%a",
        "%\"a\"b",
        "a=",
        "a=;b",
        "a==1",
        "a;b=",
        "\"burst\";r=50;t=30, \"daily\";r=900;t=7200",
        "\u{e9}",
        "\"\\\u{e9}\"",
    ] {
        check(line);
    }
}

proptest! {
    #[test]
    fn any_line_is_read_as_by_another_implementation(
        line in "([a-c*A]{0,2}|[ \t]|[=;,()\"\\\\?@%:.-]|[0-9]{1,14}|\"[a%\\\\\"]{0,3}\"|:[YQ=]{0,4}:|%\"[a%c39]{0,6}\"|\u{e9}){0,12}"
    ) {
        check(&line);
    }
}
