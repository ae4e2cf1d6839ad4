//! Tars that are too much: each bound holds, and says which it is.

use std::io::{self, Write as _};

use super::*;

#[test]
fn a_bomb_does_not_go_off() {
    let large = archive(&[file(b"zeros", &vec![0; 20 << 20])]);
    let (_directory, unpacked) = try_unpack(&large, BOUNDS);
    let error = unpacked.unwrap_err();
    assert!(
        matches!(error, UnpackError::Bomb(Bomb::Bytes(_))),
        "{error}"
    );

    let zeros = archive(&[file(b"zeros", &vec![0; 8 << 20])]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&zeros).unwrap();
    let (_directory, unpacked) = try_unpack(&gzip.finish().unwrap(), BOUNDS);
    let error = unpacked.unwrap_err();
    assert!(
        matches!(error, UnpackError::Bomb(Bomb::Ratio(100))),
        "{error}"
    );

    // What is behind the last entry is no way around.
    let mut trailing = archive(&[file(b"a", b"")]);
    trailing.resize(20 << 20, 0);
    let (_directory, unpacked) = try_unpack(&trailing, BOUNDS);
    let error = unpacked.unwrap_err();
    assert!(
        matches!(error, UnpackError::Bomb(Bomb::Bytes(_))),
        "{error}"
    );
}

/// A million entries, as a reader that has none of them in memory.
struct Endless {
    header: Vec<u8>,
    at: usize,
    left: u64,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let length = buffer.len().min(self.header.len() - self.at);
        buffer[..length].copy_from_slice(&self.header[self.at..self.at + length]);
        self.at += length;
        if self.at == self.header.len() {
            self.at = 0;
            self.left -= 1;
        }
        Ok(length)
    }
}

#[test]
fn a_million_entries_have_a_bound_with_its_own_message() {
    let directory = tempfile::tempdir().unwrap();
    let root = open(directory.path());
    let endless = Endless {
        // The cheapest there is.
        header: header(b'3', b"d", 0, b""),
        at: 0,
        left: 1_000_000,
    };
    let error = unpack(
        endless,
        root,
        crate::images::BOUNDS,
        &Spent::default(),
        Owners::Caller,
    )
    .unwrap_err();
    let most = crate::images::BOUNDS.entries;
    assert_eq!(
        error.to_string(),
        format!("it has more than {most} entries")
    );
    let long = Endless {
        header: header(b'3', &[b'd'; 99], 0, b""),
        at: 0,
        left: 1000,
    };
    let directory = tempfile::tempdir().unwrap();
    let error = unpack(
        long,
        open(directory.path()),
        BOUNDS,
        &Spent::default(),
        Owners::Caller,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the paths of its entries have more than 65536 bytes"
    );
}

#[test]
fn what_no_layer_has_too_much_of_all_of_them_may_have() {
    let spent = Spent::default();
    let one = |_| {
        let many = Endless {
            header: header(b'3', b"d", 0, b""),
            at: 0,
            left: 900,
        };
        let directory = tempfile::tempdir().unwrap();
        let root = open(directory.path());
        unpack(many, root, BOUNDS, &spent, Owners::Caller).map(|_| ())
    };
    let ends: Vec<bool> = (0..3).map(one).map(|end| end.is_ok()).collect();
    assert_eq!(ends, [true, true, false]);
}
