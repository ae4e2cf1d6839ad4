//! How long things get as JSON, so that answers keep to their bound.

use std::io;

use ringfence_model::tools::MAX_RESPONSE;
use serde::Serialize;

/// BOUND: what is left of an answer for the fields around a list or a content.
const AROUND: usize = 64 << 10;

/// Room that is left in an answer.
#[derive(Debug)]
pub struct Room(usize);

/// Whether something still had its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Fits,
    Full,
}

impl Room {
    pub fn new() -> Self {
        Self(MAX_RESPONSE - AROUND)
    }

    /// Takes the room of this item, with the comma behind it.
    pub fn take<T: Serialize>(&mut self, item: &T) -> Fit {
        match self.0.checked_sub(json_length(item) + 1) {
            Some(left) => {
                self.0 = left;
                Fit::Fits
            }
            None => Fit::Full,
        }
    }
}

/// Bytes of the value when it is written as JSON.
fn json_length<T: Serialize>(value: &T) -> usize {
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        // What cannot be written fits nowhere.
        Err(_) => MAX_RESPONSE,
    }
}

struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_counted_as_they_are_written() {
        assert_eq!(json_length(&"a\u{1}"), 9);
        let mut room = Room(10);
        assert_eq!(room.take(&"a\u{1}"), Fit::Fits);
        assert_eq!(room.take(&""), Fit::Full);
    }
}
