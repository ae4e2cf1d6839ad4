//! Talking to pid 1 by its standard streams, through the engine: where no socket of ours leads into the
//! container.
//!
//! ```text
//! ours ═ socket pair ═ two threads ═ connection to the engine ═ input and output of pid 1
//! ```
//!
//! The engine puts a head of eight bytes before each piece that comes out: which stream it is of, and how
//! long it is. It closes the input of pid 1 where the connection ends, and the guest goes with that.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::api::{Engine, SILENCE, VERSION, message};
use crate::backend::BackendError;

const WHAT: &str = "talk to the sandbox";
/// BOUND: the head of an answer.
const HEAD_BYTES: usize = 16 << 10;
/// BOUND: copied at once.
const CHUNK: usize = 64 << 10;
/// The number of standard output in the head of a piece.
const OUTPUT: u8 = 1;

/// Connects to the streams of a container that was made and not started.
pub fn attach(engine: &Engine, id: &str) -> Result<UnixStream, BackendError> {
    let way = ask(
        engine,
        &format!(
            "POST /{VERSION}/containers/{id}/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\n\
             Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        ),
    )?;
    joined(way).map_err(|source| BackendError::Streams {
        engine: engine.name,
        source,
    })
}

/// Asks for something that has no end, and reads the head of the answer.
pub fn ask(engine: &Engine, request: &str) -> Result<UnixStream, BackendError> {
    let talk = |source| BackendError::Streams {
        engine: engine.name,
        source,
    };
    let mut way = engine.way.connect().map_err(talk)?;
    way.set_read_timeout(Some(SILENCE)).map_err(talk)?;
    way.write_all(request.as_bytes()).map_err(talk)?;
    let head = head(&mut way).map_err(talk)?;
    match status(&head) {
        Some(101 | 200) => {}
        other => {
            // What it says besides is of no use without the rest of its answer.
            return Err(BackendError::Refused {
                engine: engine.name,
                what: WHAT,
                status: other.unwrap_or_default(),
                message: message(&head),
            });
        }
    }
    way.set_read_timeout(None).map_err(talk)?;
    Ok(way)
}

/// Up to the empty line. What comes after it is pid 1's, and stays where it is.
fn head(way: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES || way.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.push(byte[0]);
    }
    Ok(head)
}

fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.split(' ').nth(1)?.parse().ok()
}

/// Our end of a socket that is joined with the connection.
fn joined(way: UnixStream) -> io::Result<UnixStream> {
    let (ours, inner) = UnixStream::pair()?;
    let (mut up_from, mut up_to) = (inner.try_clone()?, way.try_clone()?);
    std::thread::spawn(move || {
        // Whatever went wrong, it is over.
        let _ = io::copy(&mut up_from, &mut up_to);
        let _ = up_to.shutdown(Shutdown::Write);
    });
    std::thread::spawn(move || {
        let _ = unwrapped(way.try_clone()?, &inner);
        let _ = inner.shutdown(Shutdown::Both);
        way.shutdown(Shutdown::Both)
    });
    Ok(ours)
}

/// Copies pieces of the output without their heads.
fn unwrapped(mut from: UnixStream, mut to: &UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        let [stream, _, _, _, a, b, c, d] = head;
        let mut left = u32::from_be_bytes([a, b, c, d]) as usize;
        while left > 0 {
            let part = left.min(CHUNK);
            from.read_exact(&mut buffer[..part])?;
            if stream == OUTPUT {
                to.write_all(&buffer[..part])?;
            }
            left -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_without_their_heads_and_ends_are_ends() {
        let (engine, way) = UnixStream::pair().expect("a pair");
        let mut ours = joined(way).expect("joined");
        ours.write_all(b"asked").expect("written");
        let mut engine = engine;
        let mut got = [0; 5];
        engine.read_exact(&mut got).expect("read");
        assert_eq!(&got, b"asked");
        for (stream, piece) in [(1, &b"an"[..]), (2, b"noise"), (1, b""), (1, b"swered")] {
            let length = (piece.len() as u32).to_be_bytes();
            let head = [&[stream, 0, 0, 0], &length[..], piece].concat();
            engine.write_all(&head).expect("written");
        }
        let mut answer = [0; 8];
        ours.read_exact(&mut answer).expect("read");
        assert_eq!(&answer, b"answered");
        engine.shutdown(Shutdown::Both).expect("shut");
        assert_eq!(ours.read(&mut answer).expect("the end"), 0);
        // The other way round: the engine sees the end of ours.
        let (mut engine, way) = UnixStream::pair().expect("a pair");
        let ours = joined(way).expect("joined");
        ours.shutdown(Shutdown::Both).expect("shut");
        assert_eq!(engine.read(&mut answer).expect("the end"), 0);
    }

    #[test]
    fn an_answer_has_a_head_and_a_number() {
        let (mut engine, mut way) = UnixStream::pair().expect("a pair");
        engine
            .write_all(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nmore")
            .expect("written");
        let told = head(&mut way).expect("a head");
        assert_eq!(status(&told), Some(101));
        drop(engine);
        let mut rest = Vec::new();
        way.read_to_end(&mut rest).expect("the rest");
        assert_eq!(rest, b"more");
        assert!(head(&mut way).is_err());
        assert_eq!(status(b"nonsense"), None);
    }
}
