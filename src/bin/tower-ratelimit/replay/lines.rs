//! The lines of logs, plain or compressed: [`Lines`].
//!
//! It reads no line's content. Invariant: it holds one line at a time, of at most
//! [`LONGEST`] bytes.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

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
