//! The lines of logs, plain or compressed, [`Lines`], and the texts of their fields: by a
//! [`Pattern`], as nginx writes it in `log_format`, or of JSON objects.
//!
//! It knows no field. Invariants: it holds one line at a time, of at most [`LONGEST`] bytes. A
//! pattern's field ends where the next literal text begins; between quotes, a quote after a
//! backslash does not end it. A member of JSON is a text, a number or a boolean; another value
//! counts as missing.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use foldhash::fast::RandomState;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The longest line that is read; the rest of a longer one is left out.
pub(super) const LONGEST: usize = 64 * 1_024;

pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// Shares its position with the reader; `None` for standard input.
    file: Option<File>,
}

impl Lines {
    /// Opens a file; `-` is standard input.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = if path == Path::new("-") { None } else { Some(File::open(path)?) };
        let source: Box<dyn Read> = match &file {
            Some(file) => Box::new(file.try_clone()?),
            None => Box::new(io::stdin()),
        };
        let mut plain = BufReader::with_capacity(1 << 18, source);
        let is_compressed = plain.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = match is_compressed {
            true => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(plain))),
            false => Box::new(plain),
        };
        Ok(Self { reader, line: Vec::new(), file })
    }

    /// How much of the file is read, in percent; `None` where its length is not known.
    pub(super) fn percent(&self) -> Option<u64> {
        let mut file = self.file.as_ref()?;
        let (length, position) = (file.metadata().ok()?.len(), file.stream_position().ok()?);
        (position.saturating_mul(100)).checked_div(length).map(|percent| percent.min(100))
    }

    /// The next line without its end, and whether it is whole.
    pub(super) fn next(&mut self) -> io::Result<Option<(&[u8], bool)>> {
        self.line.clear();
        if self.reader.by_ref().take(LONGEST as u64 + 1).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        let has_end = self.line.last() == Some(&b'\n');
        let is_whole = has_end || self.reader.skip_until(b'\n')? == 0;
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), is_whole)))
    }
}

/// A field, and the literal text before it.
#[derive(Clone, Debug)]
struct Piece {
    before: String,
    /// Where its value is stored; `None` where replay does not need it.
    slot: Option<usize>,
}

/// The form of a line.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pieces: Vec<Piece>,
    /// The literal text after the last piece; the rest of a line is not read.
    after: String,
}

impl Pattern {
    /// Reads `$remote_addr - [$time_local] "$request"`. `names` are the fields that are asked for.
    pub(super) fn new(text: &str, names: &[String]) -> Result<Self, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut parts = text.split('$');
        let mut before = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, after) = match part.strip_prefix('{') {
                Some(part) => part.split_once('}').ok_or_else(|| format!("`${part}`: `}}` is missing"))?,
                None => {
                    part.split_at(part.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(part.len()))
                }
            };
            if name.is_empty() {
                return Err("`$` needs the name of a field".into());
            }
            if before.is_empty() && !pieces.is_empty() {
                return Err(format!("nothing separates `${name}` from the field before it"));
            }
            pieces.push(Piece { before, slot: names.iter().position(|wanted| wanted == name) });
            before = after.to_owned();
        }
        let missing = names.iter().enumerate().find(|(slot, _)| !pieces.iter().any(|piece| piece.slot == Some(*slot)));
        if let Some((_, name)) = missing {
            return Err(format!("the log's lines have no field `${name}`"));
        }
        // What follows the last field that is asked for need not be read.
        let read = pieces.iter().rposition(|piece| piece.slot.is_some()).map_or(0, |last| last + 1);
        let after = pieces.get(read).map_or(before, |piece| piece.before.clone());
        pieces.truncate(read);
        Ok(Self { pieces, after })
    }

    /// Puts the values of a line into `slots`.
    pub(super) fn read<'l>(&self, line: &'l str, slots: &mut [Option<Cow<'l, str>>]) -> Result<(), String> {
        let mut rest = line;
        for (index, piece) in self.pieces.iter().enumerate() {
            rest = rest
                .strip_prefix(&*piece.before)
                .ok_or_else(|| format!("expected `{}` at byte {}", piece.before, line.len() - rest.len()))?;
            let next = self.pieces.get(index + 1).map_or(&*self.after, |next| &*next.before);
            let is_quoted = piece.before.ends_with('"') && next.starts_with('"');
            let end = match next {
                "" => rest.len(),
                next => end(rest, next, is_quoted)
                    .ok_or_else(|| format!("expected `{next}` after byte {}", line.len() - rest.len()))?,
            };
            if let Some(slot) = piece.slot {
                slots[slot] = Some(unescape(&rest[..end]));
            }
            rest = &rest[end..];
        }
        Ok(())
    }
}

/// Where a value ends.
fn end(rest: &str, next: &str, is_quoted: bool) -> Option<usize> {
    // Fields are short: to look at each byte is faster than a search that has to be set up. The
    // first byte of a text is found at a character only, not within one.
    let first = *next.as_bytes().first()?;
    let mut from = 0;
    loop {
        let found = from + rest.as_bytes()[from..].iter().position(|byte| *byte == first)?;
        let is_escaped = is_quoted && rest[..found].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        if !is_escaped && rest[found..].starts_with(next) {
            return Some(found);
        }
        from = found + 1;
    }
}

/// Takes back what servers write for quotes, backslashes and unprintable bytes: `\"`, `\\`, `\x22`.
fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return value.into();
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        (rest, _) = match (first, after) {
            (b'\\', [b'x', high, low, left @ ..]) if hex(&[*high, *low]).is_some() => {
                (left, bytes.extend(hex(&[*high, *low])))
            }
            (b'\\', [escaped @ (b'"' | b'\\'), left @ ..]) => (left, bytes.push(*escaped)),
            _ => (after, bytes.push(*first)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// Puts the members of a line with these names into `slots`.
pub(super) fn read_json<'l>(line: &'l str, names: &[String], slots: &mut [Option<Cow<'l, str>>]) -> Result<(), String> {
    let members = serde_json::from_str::<HashMap<Text<'_>, &RawValue, RandomState>>(line);
    let members = members.map_err(|error| format!("no JSON object: {error}"))?;
    for (name, slot) in names.iter().zip(slots) {
        *slot = members.get(&Text(name.into())).and_then(|value| text(value.get()));
    }
    Ok(())
}

#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

/// The text of a value as it is written, but of a whole number without its point.
fn text(value: &str) -> Option<Cow<'_, str>> {
    match value.as_bytes().first()? {
        b'"' => serde_json::from_str(value).ok().map(|Text(text)| text),
        b'{' | b'[' | b'n' => None,
        // A status may be written as 429.0.
        _ => Some(value.strip_suffix(".0").unwrap_or(value).into()),
    }
}
