//! Structured fields (RFC 9651): checks that a line is well-formed, and passes on
//! the parts that limits are in.
//!
//! No tree is built. Invariant: a line is accepted exactly if the RFC's parser
//! accepts it, which a test compares with another implementation.

use std::{borrow::Cow, time::Duration};

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// A part of a line, in order.
#[derive(Debug, PartialEq)]
pub(super) enum Part<'h> {
    /// The key of the member that follows, in a dictionary.
    Key(&'h str),
    /// A member.
    Member(Value<'h>),
    /// A parameter of the last member.
    Parameter(&'h str, Value<'h>),
}

/// A bare item, as far as limits are concerned.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'h> {
    /// A number that is not negative, as a duration, which keeps its fraction.
    Number(Duration),
    /// A string or a token.
    Text(Cow<'h, str>),
    /// Anything else, such as an inner list.
    Other,
}

/// Reads a list; `None` if it is malformed, at whatever part.
pub(super) fn read_list<'h>(line: &'h str, see: &mut impl FnMut(Part<'h>)) -> Option<()> {
    let mut rest = Rest(line.trim_matches(' '));
    rest.members(|rest| rest.member(see))
}

/// Reads a dictionary; `None` if it is malformed, at whatever part.
pub(super) fn read_dictionary<'h>(line: &'h str, see: &mut impl FnMut(Part<'h>)) -> Option<()> {
    let mut rest = Rest(line.trim_matches(' '));
    rest.members(|rest| {
        see(Part::Key(rest.key()?));
        if rest.eat('=') {
            return rest.member(see);
        }
        see(Part::Member(Value::Other));
        rest.parameters(see)
    })
}

/// What is left to read of a line.
struct Rest<'h>(&'h str);

impl<'h> Rest<'h> {
    fn eat(&mut self, char: char) -> bool {
        let rest = self.0.strip_prefix(char);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'h str {
        let end = self.0.bytes().position(|byte| !is_part(byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at_checked(end).unwrap_or_default();
        self.0 = rest;
        taken
    }

    fn first(&self) -> Option<u8> {
        self.0.bytes().next()
    }

    /// Members between commas.
    fn members(&mut self, mut member: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        let is_blank = |byte| matches!(byte, b' ' | b'\t');
        while !self.0.is_empty() {
            member(self)?;
            self.take_while(is_blank);
            if self.0.is_empty() {
                break;
            }
            if !self.eat(',') {
                return None;
            }
            self.take_while(is_blank);
            // A comma is between two members.
            self.first()?;
        }
        Some(())
    }

    fn member(&mut self, see: &mut impl FnMut(Part<'h>)) -> Option<()> {
        let value = if self.eat('(') { self.inner_list()? } else { self.value()? };
        see(Part::Member(value));
        self.parameters(see)
    }

    /// After its parenthesis.
    fn inner_list(&mut self) -> Option<Value<'h>> {
        loop {
            self.take_while(|byte| byte == b' ');
            if self.eat(')') {
                return Some(Value::Other);
            }
            self.value()?;
            self.parameters(&mut |_| {})?;
            if !matches!(self.first()?, b' ' | b')') {
                return None;
            }
        }
    }

    fn parameters(&mut self, see: &mut impl FnMut(Part<'h>)) -> Option<()> {
        while self.eat(';') {
            self.take_while(|byte| byte == b' ');
            let key = self.key()?;
            let value = if self.eat('=') { self.value()? } else { Value::Other };
            see(Part::Parameter(key, value));
        }
        Some(())
    }

    fn key(&mut self) -> Option<&'h str> {
        matches!(self.first()?, b'a'..=b'z' | b'*').then_some(())?;
        Some(self.take_while(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    fn value(&mut self) -> Option<Value<'h>> {
        match self.first()? {
            b'-' | b'0'..=b'9' => self.number().map(|(number, _)| number),
            b'"' => self.string().map(Value::Text),
            b'a'..=b'z' | b'A'..=b'Z' | b'*' => Some(Value::Text(self.take_while(is_token).into())),
            b':' => self.bytes(),
            b'?' => (self.eat('?') && (self.eat('0') || self.eat('1'))).then_some(Value::Other),
            // A date is a whole number.
            b'@' => (self.eat('@') && self.number()?.1).then_some(Value::Other),
            b'%' => self.display_string(),
            _ => None,
        }
    }

    /// The number, and whether it is an integer.
    fn number(&mut self) -> Option<(Value<'h>, bool)> {
        let is_negative = self.eat('-');
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        let fraction = if self.eat('.') { Some(self.take_while(|byte| byte.is_ascii_digit())) } else { None };
        let most = if fraction.is_some() { 12 } else { 15 };
        if !(1..=most).contains(&whole.len()) || fraction.is_some_and(|digits| !(1..=3).contains(&digits.len())) {
            return None;
        }
        let millis: u64 = format!("{:0<3}", fraction.unwrap_or_default()).parse().ok()?;
        let number = Duration::from_secs(whole.parse().ok()?) + Duration::from_millis(millis);
        let value = if is_negative && !number.is_zero() { Value::Other } else { Value::Number(number) };
        Some((value, fraction.is_none()))
    }

    fn string(&mut self) -> Option<Cow<'h, str>> {
        self.eat('"').then_some(())?;
        let mut text = Cow::Borrowed("");
        loop {
            let plain = self.take_while(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'));
            text += plain;
            if self.eat('"') {
                return Some(text);
            }
            let is_escape = self.eat('\\');
            let escaped = self.0.get(..1).filter(|char| is_escape && matches!(*char, "\"" | "\\"))?;
            self.0 = &self.0[1..];
            text += escaped;
        }
    }

    /// Base64 between colons.
    fn bytes(&mut self) -> Option<Value<'h>> {
        const LENIENT: GeneralPurpose = GeneralPurpose::new(
            &STANDARD,
            GeneralPurposeConfig::new()
                .with_decode_allow_trailing_bits(true)
                .with_decode_padding_mode(DecodePaddingMode::Indifferent),
        );
        self.eat(':').then_some(())?;
        let text = self.take_while(|byte| byte != b':');
        (self.eat(':') && LENIENT.decode(text).is_ok()).then_some(Value::Other)
    }

    /// Percent-encoded UTF-8 in quotes.
    fn display_string(&mut self) -> Option<Value<'h>> {
        (self.eat('%') && self.eat('"')).then_some(())?;
        let text = self.take_while(|byte| matches!(byte, b' '..=b'~') && byte != b'"');
        self.eat('"').then_some(())?;
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let mut escapes = text.split('%').skip(1).map(str::as_bytes);
        let are_valid = escapes.all(|escape| escape.len() >= 2 && escape[..2].iter().all(is_digit));
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        (are_valid && decoded.is_ok()).then_some(Value::Other)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

#[cfg(test)]
mod tests;
