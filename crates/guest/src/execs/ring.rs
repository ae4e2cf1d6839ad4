//! The last output of a command, kept for whoever attaches later.

use std::collections::VecDeque;

use ringfence_model::wire::Kind;

/// BOUND: what is kept of one command.
const KEPT: usize = 256 * 1024;

/// Output in the order in which it came, cut at the front.
#[derive(Debug, Default)]
pub struct Ring {
    chunks: VecDeque<(Kind, Vec<u8>)>,
    kept: usize,
    stdout: u64,
    stderr: u64,
}

impl Ring {
    pub fn push(&mut self, kind: Kind, bytes: &[u8]) {
        match kind {
            Kind::ErrorOutput => self.stderr += bytes.len() as u64,
            _ => self.stdout += bytes.len() as u64,
        }
        self.kept += bytes.len();
        match self.chunks.back_mut() {
            Some((last, chunk)) if *last == kind && chunk.len() < 4096 => {
                chunk.extend_from_slice(bytes);
            }
            _ => self.chunks.push_back((kind, bytes.to_vec())),
        }
        while self.kept > KEPT {
            let Some((_, chunk)) = self.chunks.pop_front() else {
                break;
            };
            self.kept -= chunk.len();
        }
    }

    /// All bytes that a stream ever had.
    pub fn total(&self, kind: Kind) -> u64 {
        match kind {
            Kind::ErrorOutput => self.stderr,
            _ => self.stdout,
        }
    }

    /// What is kept from a position on (counted over both streams), and where that begins.
    pub fn since(&self, from: u64) -> (u64, Vec<(Kind, Vec<u8>)>) {
        let end = self.stdout + self.stderr;
        let mut position = end - self.kept as u64;
        let begin = from.clamp(position, end);
        let mut out = Vec::new();
        for (kind, chunk) in &self.chunks {
            let skip = begin.saturating_sub(position).min(chunk.len() as u64) as usize;
            position += chunk.len() as u64;
            if skip < chunk.len() {
                out.push((*kind, chunk[skip..].to_vec()));
            }
        }
        (begin, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_can_be_read_from_any_position() {
        let mut ring = Ring::default();
        ring.push(Kind::Output, b"abc");
        ring.push(Kind::ErrorOutput, b"de");
        ring.push(Kind::Output, b"f");
        assert_eq!(ring.total(Kind::Output), 4);
        assert_eq!(
            ring.since(2),
            (
                2,
                vec![
                    (Kind::Output, b"c".to_vec()),
                    (Kind::ErrorOutput, b"de".to_vec()),
                    (Kind::Output, b"f".to_vec())
                ]
            )
        );
        assert_eq!(ring.since(99), (6, vec![]));
    }

    #[test]
    fn the_front_is_cut() {
        let mut ring = Ring::default();
        for _ in 0..100 {
            ring.push(Kind::Output, &[b'x'; 8192]);
        }
        let (from, kept) = ring.since(0);
        let bytes: usize = kept.iter().map(|(_, chunk)| chunk.len()).sum();
        assert!(bytes <= KEPT);
        assert_eq!(from + bytes as u64, ring.total(Kind::Output));
    }
}
