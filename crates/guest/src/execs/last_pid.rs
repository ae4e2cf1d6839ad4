//! The last pid that the kernel gave to anybody in this namespace: whoever starts anything moves it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Opened once, and read anew each time.
#[derive(Debug, Default)]
pub(super) struct LastPid(Option<File>);

impl LastPid {
    /// `None` where a kernel does not tell.
    pub fn read(&mut self) -> Option<i32> {
        if self.0.is_none() {
            // The kernel tells it at its end.
            self.0 = File::open("/proc/loadavg").ok();
        }
        // Five short numbers.
        let mut text = [0; 128];
        let length = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        last_word(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// `0.00 0.01 0.05 1/123 4567`
fn last_word(loadavg: &str) -> Option<i32> {
    loadavg.split_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_last_word() {
        assert_eq!(last_word("0.00 0.01 0.05 1/123 4567\n"), Some(4567));
        assert_eq!(last_word("0.00 0.01 0.05 1/123"), None);
        assert_eq!(last_word(""), None);
    }
}
