//! The lines of logs, plain or compressed: [`Lines`].
//!
//! It reads no line's content. Invariant: it holds one line at a time, of at most
//! [`LONGEST`] bytes.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    rc::Rc,
};

use flate2::bufread::MultiGzDecoder;

/// The longest line that is read; the rest of a longer one is left out.
pub(super) const LONGEST: usize = 64 * 1_024;

pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    read: Rc<Cell<u64>>,
    /// The length of the file; `None` where it is not known.
    length: Option<u64>,
}

/// Counts what is read of a file.
struct Counted<R> {
    reader: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

impl Lines {
    /// Opens a file; `-` is standard input.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (source, length): (Box<dyn Read>, _) = match path == Path::new("-") {
            true => (Box::new(io::stdin()), None),
            false => {
                let file = File::open(path)?;
                let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
                (Box::new(file), length)
            }
        };
        let read = Rc::new(Cell::new(0));
        let mut plain = BufReader::with_capacity(1 << 18, Counted { reader: source, read: Rc::clone(&read) });
        let is_compressed = plain.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = match is_compressed {
            true => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(plain))),
            false => Box::new(plain),
        };
        Ok(Self { reader, line: Vec::new(), read, length })
    }

    /// How much of the file is read, in percent.
    pub(super) fn percent(&self) -> Option<u64> {
        self.length.map(|length| (self.read.get().saturating_mul(100) / length.max(1)).min(100))
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
