//! A registry on loopback that answers as a test wants it to.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::image::made::{Made, OCI_MANIFEST, digest};

/// What was asked: path and headers, in small letters.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn is_blob(&self) -> bool {
        self.path.contains("/blobs/")
    }

    pub fn is_manifest(&self) -> bool {
        self.path.contains("/manifests/")
    }
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Only so many bytes of the body are sent, then the connection ends.
    pub cut: Option<usize>,
    /// Instead of ending there, nothing more is said until the other side goes.
    pub stall: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            cut: None,
            stall: false,
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn cut(mut self, at: usize) -> Self {
        self.cut = Some(at);
        self
    }
}

/// Decides an answer; `None` is the right one. The number counts requests for the same path.
type Behaviour = dyn Fn(&Asked, usize) -> Option<Reply> + Send + Sync;

/// Listens until the test ends.
pub struct Server {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Serves an image as `team/app:1`.
    pub fn start(
        image: &Made,
        behaviour: impl Fn(&Asked, usize) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (image, behaviour) = (image.clone(), Arc::new(behaviour));
        let seen = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (image, behaviour, seen) = (image.clone(), behaviour.clone(), seen.clone());
                // A client that goes away in the middle is what some tests are about.
                thread::spawn(move || {
                    let _ = answer(stream, &image, &*behaviour, &seen);
                });
            }
        });
        Self { port, asked }
    }

    pub fn reference(&self) -> String {
        format!("127.0.0.1:{}/team/app:1", self.port)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no thread fails with it").clone()
    }
}

fn answer(
    mut stream: TcpStream,
    image: &Made,
    behaviour: &Behaviour,
    seen: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    // This registry speaks no TLS.
    if reader.fill_buf()?.first() == Some(&0x16) {
        return Ok(());
    }
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
    }
    let length = headers.get("content-length");
    let length = length.and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let asked = Asked { path, headers };
    let count = {
        let mut seen = seen.lock().expect("no thread fails with it");
        let count = seen.iter().filter(|one| one.path == asked.path).count();
        seen.push(asked.clone());
        count
    };
    let reply = behaviour(&asked, count).unwrap_or_else(|| right(&asked, image));
    let mut head = format!("HTTP/1.1 {} Said\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", reply.body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(&reply.body[..reply.cut.unwrap_or(reply.body.len())])?;
    if reply.stall {
        // Until the other side is gone.
        let _ = reader.read(&mut [0]);
    }
    Ok(())
}

/// What a good registry says.
pub fn right(asked: &Asked, image: &Made) -> Reply {
    let blobs = image.blobs.iter().chain([&image.config]);
    if asked.path == "/v2/" {
        return Reply::new(200, "{}");
    }
    if asked.path == "/v2/team/app/manifests/1"
        || asked
            .path
            .ends_with(&format!("manifests/{}", digest(&image.manifest)))
    {
        return Reply::new(200, image.manifest.clone()).with("content-type", OCI_MANIFEST);
    }
    for blob in blobs {
        if asked.path == format!("/v2/team/app/blobs/{}", digest(blob)) {
            return ranged(asked, blob);
        }
    }
    Reply::new(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#)
}

pub fn ranged(asked: &Asked, blob: &[u8]) -> Reply {
    let range = asked.header("range").strip_prefix("bytes=");
    match range.and_then(|text| text.trim_end_matches('-').parse::<usize>().ok()) {
        Some(from) => {
            let total = blob.len();
            Reply::new(206, &blob[from..]).with(
                "content-range",
                format!("bytes {from}-{}/{total}", total - 1),
            )
        }
        None => Reply::new(200, blob),
    }
}
