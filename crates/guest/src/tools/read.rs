//! `read`: a part of a file, by bytes or by lines.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};

use ringfence_model::tools::{Base64, DEFAULT_READ, MAX_READ, ReadAnswer, ReadRequest};

use crate::content;
use crate::failure::{Hint as _, Outcome, invalid, refused_io, too_large};
use crate::measure::{Fit, Room};
use crate::place::{Last, Parents, Place, Root};

/// BOUND: how far lines are counted; a sparse file can be of any size.
const MAX_COUNTED: u64 = 256 << 20;

/// A part of a file as it was read.
#[derive(Debug, Default)]
struct Part {
    content: Vec<u8>,
    offset: u64,
    lines_total: Option<u64>,
    /// Whether there is more of what was asked for, or of the file, behind it.
    truncated: bool,
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn read(root: &Root, request: ReadRequest) -> Outcome<ReadAnswer> {
    let length = request.length.unwrap_or(DEFAULT_READ);
    if length > MAX_READ {
        return Err(invalid(format!(
            "a length of {length} is over the bound of {MAX_READ}"
        )));
    }
    let place = root.find(&request.path, Last::Follow, Parents::Existing)?;
    let (file, size) = content::open(&place)?;
    let mut part = match (request.lines, request.offset) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                "`lines` and `offset` exclude each other".to_owned(),
            ));
        }
        (Some([from, to]), None) => read_lines(&place, file, size, (from, to), length)?,
        (None, offset) => read_bytes(&place, file, size, offset.unwrap_or(0), length)?,
    };
    if part.truncated {
        drop_split_character(&mut part.content);
    }
    let length = part.content.len() as u64;
    let (text, bytes) = match String::from_utf8(part.content) {
        // Text full of control characters is longer as JSON than as base64.
        Ok(text) => match Room::new().take(&text) {
            Fit::Fits => (Some(text), None),
            Fit::Full => (None, Some(Base64(text.into_bytes()))),
        },
        Err(error) => (None, Some(Base64(error.into_bytes()))),
    };
    Ok(ReadAnswer {
        path: place.shown(),
        size,
        text,
        bytes,
        offset: part.offset,
        length,
        lines_total: part.lines_total,
        truncated: part.truncated,
    })
}

fn read_bytes(place: &Place, mut file: File, size: u64, offset: u64, length: u64) -> Outcome<Part> {
    let failed = |error| refused_io("read", &place.path, &error);
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(offset.min(size)))
        .map_err(failed)?;
    file.take(length)
        .read_to_end(&mut content)
        .map_err(failed)?;
    let truncated = offset.saturating_add(content.len() as u64) < size;
    let lines_total = (offset == 0 && !truncated).then(|| count_lines(&content));
    Ok(Part {
        content,
        offset,
        lines_total,
        truncated,
    })
}

fn read_lines(
    place: &Place,
    file: File,
    size: u64,
    (from, to): (u64, u64),
    length: u64,
) -> Outcome<Part> {
    if from == 0 || to < from {
        return Err(invalid(format!("there are no lines {from} to {to}"))
            .hint("the first line is 1, and both ends are given"));
    }
    let mut part = Part::default();
    let mut reader = BufReader::with_capacity(64 << 10, file).take(MAX_COUNTED);
    let mut line = 1;
    let mut position = 0;
    let mut ends_open = false;
    loop {
        let piece = reader
            .fill_buf()
            .map_err(|error| refused_io("read", &place.path, &error))?;
        if piece.is_empty() {
            break;
        }
        // One line, or as much of it as the buffer has.
        let end = piece.iter().position(|byte| *byte == b'\n');
        let piece = &piece[..end.map_or(piece.len(), |end| end + 1)];
        if (from..=to).contains(&line) {
            if part.content.is_empty() {
                part.offset = position;
            }
            let room = usize::try_from(length).unwrap_or(usize::MAX) - part.content.len();
            part.truncated |= piece.len() > room;
            part.content.extend(&piece[..piece.len().min(room)]);
        }
        ends_open = end.is_none();
        line += u64::from(end.is_some());
        let taken = piece.len();
        position += taken as u64;
        reader.consume(taken);
    }
    let total = line - u64::from(!ends_open);
    if position == MAX_COUNTED && size > MAX_COUNTED {
        if line <= to && part.content.is_empty() {
            return Err(too_large(format!(
                "line {from} of `{}` lies behind the {MAX_COUNTED} bytes in which lines are counted",
                place.shown()
            ))
            .hint("read by `offset` and `length`"));
        }
        part.truncated |= line <= to;
    } else {
        part.lines_total = Some(total);
        if from > total && size > 0 {
            return Err(invalid(format!("`{}` has no line {from}", place.shown()))
                .hint(format!("it has {total} lines")));
        }
    }
    Ok(part)
}

fn count_lines(content: &[u8]) -> u64 {
    content
        .split_inclusive(|byte| *byte == b'\n')
        .fold(0, |count, _| count + 1)
}

/// A bound may fall into the middle of a character; the piece of it is left for the next read.
fn drop_split_character(content: &mut Vec<u8>) {
    if let Err(error) = std::str::from_utf8(content)
        && error.error_len().is_none()
        && error.valid_up_to() > 0
    {
        content.truncate(error.valid_up_to());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use ringfence_model::tools::FailureKind;
    use serde_json::json;

    use super::*;
    use crate::testing::Bench;

    fn text(bench: &Bench, request: serde_json::Value) -> (String, bool) {
        let answer = bench.call(read, request).unwrap();
        (answer.text.unwrap(), answer.truncated)
    }

    fn kind(bench: &Bench, request: serde_json::Value) -> FailureKind {
        bench.call(read, request).unwrap_err().kind
    }

    #[test]
    fn parts_are_read_by_bytes_and_by_lines() {
        let bench = Bench::new();
        bench.file("f", "one\r\ntwo\nthree");
        let whole = bench.call(read, json!({"path": "f"})).unwrap();
        assert_eq!(whole.text.as_deref(), Some("one\r\ntwo\nthree"));
        assert_eq!((whole.size, whole.lines_total), (14, Some(3)));
        for (request, expected, truncated) in [
            (json!({"path": "f", "offset": 5, "length": 3}), "two", true),
            (json!({"path": "f", "offset": 9}), "three", false),
            (json!({"path": "f", "offset": 99}), "", false),
            (json!({"path": "f", "lines": [1, 1]}), "one\r\n", false),
            (json!({"path": "f", "lines": [2, 9]}), "two\nthree", false),
            (
                json!({"path": "f", "lines": [2, 3], "length": 5}),
                "two\nt",
                true,
            ),
        ] {
            assert_eq!(text(&bench, request), (expected.to_owned(), truncated));
        }
        let lines = bench
            .call(read, json!({"path": "f", "lines": [3, 3]}))
            .unwrap();
        assert_eq!((lines.offset, lines.lines_total), (9, Some(3)));
        assert_eq!(
            kind(&bench, json!({"path": "f", "lines": [4, 5]})),
            FailureKind::Invalid
        );
        assert_eq!(
            kind(&bench, json!({"path": "f", "lines": [0, 1]})),
            FailureKind::Invalid
        );
        let too_long = json!({"path": "f", "length": MAX_READ + 1});
        assert_eq!(kind(&bench, too_long), FailureKind::Invalid);
    }

    #[test]
    fn what_is_not_text_comes_as_bytes() {
        let bench = Bench::new();
        bench.file("f", [0xff, 0, 1]);
        let answer = bench.call(read, json!({"path": "f"})).unwrap();
        assert_eq!(answer.text, None);
        assert_eq!(answer.bytes, Some(Base64(vec![0xff, 0, 1])));
        // Six bytes of JSON for each: over the bound as text.
        bench.file("controls", vec![1; 2 << 20]);
        let answer = bench
            .call(read, json!({"path": "controls", "length": 2 << 20}))
            .unwrap();
        assert_eq!(answer.bytes.unwrap().0.len(), 2 << 20);
    }

    #[test]
    fn a_bound_does_not_split_a_character() {
        let bench = Bench::new();
        bench.file("f", "aä");
        let answer = bench.call(read, json!({"path": "f", "length": 2})).unwrap();
        assert_eq!((answer.text.as_deref(), answer.length), (Some("a"), 1));
        assert!(answer.truncated);
    }

    #[test]
    fn a_huge_file_is_read_in_parts() {
        let bench = Bench::new();
        let file = File::create(bench.path("f")).unwrap();
        file.set_len(1 << 40).unwrap();
        let answer = bench.call(read, json!({"path": "f"})).unwrap();
        assert_eq!((answer.size, answer.length), (1 << 40, DEFAULT_READ));
        assert!(answer.truncated);
        let end = json!({"path": "f", "offset": (1u64 << 40) - 1});
        assert_eq!(bench.call(read, end).unwrap().length, 1);
    }

    #[test]
    fn only_regular_files_are_read() {
        let bench = Bench::new();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            bench.path("fifo"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        symlink("/dev/zero", bench.path("zero")).unwrap();
        symlink("../outside", bench.path("out")).unwrap();
        assert_eq!(kind(&bench, json!({"path": "fifo"})), FailureKind::Invalid);
        assert_eq!(kind(&bench, json!({"path": "."})), FailureKind::Invalid);
        assert_eq!(kind(&bench, json!({"path": "zero"})), FailureKind::Denied);
        assert_eq!(kind(&bench, json!({"path": "out/x"})), FailureKind::Denied);
        assert_eq!(kind(&bench, json!({"path": "no"})), FailureKind::NotFound);
    }

    #[test]
    fn a_name_may_have_a_newline() {
        let bench = Bench::new();
        bench.file("a\nb", "x");
        let answer = bench.call(read, json!({"path": "\"a\\nb\""})).unwrap();
        assert_eq!(answer.path.as_bytes(), b"a\nb");
    }
}
