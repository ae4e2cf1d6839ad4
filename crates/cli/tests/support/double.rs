//! A host on this machine that a policy puts in the place of another: it answers plain HTTP, and
//! keeps what it was sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

/// It answers until the test program ends.
pub struct Double {
    pub port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Double {
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let keep = Arc::clone(&keep);
                std::thread::spawn(move || answer(stream, &keep));
            }
        });
        Ok(Self { port, seen })
    }

    /// The heads of all requests so far.
    pub fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

fn answer(stream: TcpStream, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        // Whatever was sent comes back where the request asks for it.
        let answer = match path.as_str() {
            "/echo" => head.clone(),
            path => format!("you asked for {path}\n"),
        };
        let mut all = seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(head);
        drop(all);
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}",
            answer.len()
        );
        stream.write_all(reply.as_bytes()).ok()?;
    }
}
